"""What models and data sets say of themselves, changed by somebody: it is refused, or shown."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import wrong_in
from fixtures import change_manifest

from tilecast.cli.main import main
from tilecast.data_collection.dataset.dataset import Dataset, read_dataset, write_dataset
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.forms import count, holding, misfit, number, optional, text
from tilecast.models.learning.labels import label_table
from tilecast.models.runtime.artifact import load
from tilecast.reporting.page import page
from tilecast.reporting.sections import dataset_sections, model_section

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 5, 0.5, -0.5, 1e9, 1e18, 1e-320, 1e308, 2**31, 2**63, 10**30),
    *("", "x", "a\r\nb", "\x1b[31m", "💥", "9" * 5000, "bf16:rcr", "4096x4096", "-1", "nan"),
    *([], {}, [[]], [None], {"": None}, [1, 2, 3], {"a": {"b": {"c": {}}}}, ["x"] * 100),
)
"""What JSON may hold where something else should be."""


def places(data: Any, at: tuple = ()) -> Iterator[tuple]:
    """The path of everything inside plain data; of a long list that of its first elements."""
    if isinstance(data, dict):
        inside = list(data.items())
    else:
        inside = list(enumerate(data[:3])) if isinstance(data, list) else []
    for key, value in inside:
        yield (*at, key)
        yield from places(value, (*at, key))


def changed(data: Any, seed: int) -> Any:
    """A copy of plain data in which one to three things are another, gone, or more."""
    source, copied = random.Random(seed), copy.deepcopy(data)
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        *above, last = source.choice(list(places(copied)))
        holder = copied
        for key in above:
            holder = holder[key]
        match source.randrange(5):
            case 0:
                del holder[last]
            case 1 if isinstance(holder[last], (int, float)):
                holder[last] = type(holder[last])(holder[last] * source.choice((-1, 0, 1e3, 1e-3)))
            case 2 if isinstance(holder, list):
                holder.extend(holder * source.choice((1, 50)))
            case _:
                holder[last] = copy.deepcopy(source.choice(ODD))
    return copied


RUN: dict[str, Any] = {
    "gpus": [{"name": "NVIDIA H200", "uuid_hash": "1a", "driver_version": "580.1"}],
    "cuda": "13.0",
    "versions": {"torch": "2.13.0", "nvidia-cublas": "13.1", "triton": None},
    "protocol_version": 3,
    "date": "2026-11-21T00:00:00+00:00",
    "command": "tilecast collect",
    "gpu": "H200",
    "end": {"seconds": 12.5, "gpus": []},
    "troubles": [{"card": "1a", "reason": "throttled"}],
    "compared": [
        {
            "card": card,
            "problem": [64, 4096, 4096, 1, "bf16:rcr"],
            "times": [["burst", "torch.mm", 12.0], ["burst", "64x64x64_c1x1x1_s4_coop", 11.0]],
        }
        for card in ("1a", "2b")
    ],
}
FACTS: dict[str, Any] = {
    "dataset": {"sha256": "a" * 64, "rows": 5, "problems": 2, "families": 2, "dates": ["2026"]},
    "versions": {"numpy": "2.0"},
    "library": {"cuBLAS": ["13.1"], "driver": ["580"]},
    "held_out": {"tilecast": {"robust": {"regret@1": {"geomean": 0.01, "max": 0.2}}}},
    "noise_floor": {"robust": {"geomean": 0.001}},
    "beside_library": {"robust": {"left": 0.2, "geomean": 1.1, "slower": 0.0, "worst": 0.9}},
    "seen_families": ["4096x4096"],
    "learned_from": ["b" * 64],
    "elsewhere": {"problems": 1, "gpus": ["H100"], "sha256": ["c" * 64]},
}


def complaint_of(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> str | None:
    """What is wrong with how a command ends: status 2 and one line, or 0 or 1 and JSON."""
    try:
        status = main(arguments)
    except BaseException as error:
        return f"raised {error!r}"
    out, err = capfd.readouterr()
    if status == 2:
        return wrong_in(err, "") or (f"printed {out[:100]!r}" if out else None)
    try:
        json.loads(out, parse_constant=lambda text: pytest.fail(text))
    except ValueError as error:
        return f"status {status}, {error}, {err[:200]}"
    return None if "fault of tilecast" not in err and "Traceback" not in err else err[:300]


def test_changed_models_are_refused_or_answer(
    small_model_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """They are signed anew; what is read can be shown."""
    for seed in range(24):
        folder = Path(shutil.copytree(small_model_folder, tmp_path / str(seed)))
        facts = changed(FACTS, seed)
        change_manifest(folder, lambda manifest, facts=facts: manifest.update(facts=facts))
        asked = ["predict", "64x4096x4096", "--model", str(folder), "--json"]
        assert complaint_of(asked, capfd) is None, seed
        try:
            artifact = load(folder)
        except TilecastError:
            continue
        page("model", [model_section(artifact.name, artifact.facts)])


def test_data_sets_of_a_changed_provenance_are_refused_or_shown(
    few_dataset: Dataset, tmp_path: Path
) -> None:
    every: Any = few_dataset.rows
    rows, path = every[(every["m"] == 64) & (every["n"] == 4096)], tmp_path / "data.parquet"
    provenance = {"runs": [RUN], "space_version": 3, "protocol_version": 3}
    for seed in range(12):
        write_dataset(Dataset(rows, changed(provenance, seed)), path)
        try:
            dataset = read_dataset(path)
        except TilecastError as error:
            assert "\n" not in str(error)
        else:
            page("data", dataset_sections(dataset, label_table(dataset), "robust"))


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_forms_take_what_they_say_and_nothing_else(value: object) -> None:
    assert (misfit(value, text) is None) == isinstance(value, str)
    assert (misfit({"a": [value]}, {"a": [count]}) is None) == (
        type(value) is int and 0 <= value < 2**53
    )
    found = misfit([{"a": 1, "b": value}], [{"*": number}], "x")
    assert found is None or found == "x[0].b"
    assert optional(text)(value) == (value is None or isinstance(value, str))
    assert not holding({"z": text})(value)
