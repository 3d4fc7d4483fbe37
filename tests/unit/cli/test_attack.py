"""Models and data sets that somebody changed: refused in one line, or work is correct.

Stores: tests/unit/data_collection/jobs/test_store.py.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attack.changes import ODD, changed, damage, poison
from command_line import wrong_in
from fixtures import change_manifest

from tilecast.cli.main import main
from tilecast.data_collection.dataset.dataset import Dataset, read_dataset, write_dataset
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.forms import count, holding, misfit, number, optional, text
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.kernels.families import UNSTATED
from tilecast.models.learning.labels import label_table
from tilecast.models.runtime.artifact import load
from tilecast.models.runtime.learned import load_heuristic
from tilecast.reporting.page import page
from tilecast.reporting.sections import dataset_sections, model_section

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
FAILING = {LINEAR_BF16.text: ["64x64x64_c1x1x1_s4_coop_o1_rm8", "64x80x64_c1x1x1_s4_coop_o1_rm8"]}


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


@pytest.mark.parametrize("seed", range(540))
def test_a_changed_model_is_refused_or_answers(
    small_model_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], seed: int
) -> None:
    """Signed anew or not; it is asked, and what it says of itself is shown."""
    folder = tmp_path / "model"
    shutil.copytree(small_model_folder, folder)
    sign = seed % 4 > 0
    if seed % 5 == 0:
        _change_arrays(folder, seed, sign)
    else:

        def change(manifest: dict) -> None:
            manifest.update(facts=FACTS, failing=FAILING)
            odd = changed({"m": manifest}, seed).get("m") if seed % 5 > 1 else None
            if seed % 5 == 1:
                manifest["facts"] = changed(FACTS, seed)
            elif isinstance(odd, dict):
                manifest.clear()
                manifest.update(odd)

        change_manifest(folder, change, sign=sign)
    predict = ["predict", "64x4096x4096", "--model", str(folder), "--json"]
    assert complaint_of(predict, capfd) is None
    try:
        artifact = load(folder)
    except TilecastError:
        return
    page("model", [model_section(artifact.name, artifact.facts)])
    assert sign or _content(folder) == _content(small_model_folder)
    assert _unsound(folder) is None


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _unsound(folder: Path) -> str | None:
    """What is wrong with the answers of a model that is not refused, for which nothing warns."""
    gpu, problem = hardware("H200"), GemmProblem(64, 4096, 4096)
    configs = candidates(problem, gpu, families=UNSTATED)
    try:
        with warnings.catch_warnings(action="error"):
            heuristic = load_heuristic(gpu, LINEAR_BF16, folder=folder)
            ranking = heuristic.rank(problem, configs)
            predictions = heuristic.predict(problem, configs, limit=9)
            count = len(heuristic.shortlist(problem, configs))
            reasons = heuristic.explain(problem, configs, ranking[3])
    except TilecastError as error:
        return None if "\n" not in str(error) else "more than one line"
    except Exception as error:
        return repr(error)
    sound = set(configs) - heuristic.artifact.failed(LINEAR_BF16)
    numbers = [x for p in predictions for x in (p.microseconds, p.slowdown)]
    if set(ranking) != sound or len(ranking) != len(sound) or not 1 <= count <= 8:
        return "a ranking of other candidates"
    if [one.config for one in predictions] != list(ranking[:9]) or min(numbers) <= 0:
        return f"predicted {predictions}"
    return None if np.isfinite([*numbers, *(one.effect for one in reasons)]).all() else "no numbers"


def _change_arrays(folder: Path, seed: int, sign: bool) -> None:
    """Change the arrays, and state their digest anew if they are to be signed."""
    (path,) = folder.glob("*.bin.gz")
    content = folder / "content"
    content.write_bytes(gzip.decompress(path.read_bytes()))
    (damage if seed % 2 else poison)(content, seed)
    packed = gzip.compress(content.read_bytes(), mtime=0)
    content.unlink()
    path.write_bytes(packed)
    if sign:
        sha256 = hashlib.sha256(packed).hexdigest()
        name = path.rename(folder / f"model-{sha256[:12]}.bin.gz").name
        change_manifest(folder, lambda m: m.update(file={"name": name, "sha256": sha256}))


def _read(path: Path) -> Dataset | None:
    """A data set that is not refused in one line."""
    try:
        return read_dataset(path)
    except TilecastError as error:
        assert "\n" not in str(error)
    return None


@pytest.mark.parametrize("seed", range(72))
def test_a_data_set_of_a_changed_provenance_is_refused_or_shown(
    sound_data: Path, tmp_path: Path, seed: int
) -> None:
    path = tmp_path / "data.parquet"
    provenance = changed({"runs": [RUN], "space_version": 3, "protocol_version": 3}, seed)
    write_dataset(Dataset(read_dataset(sound_data).rows, provenance), path)
    if dataset := _read(path):
        page("data", dataset_sections(dataset, label_table(dataset), "robust"))


@pytest.mark.parametrize("seed", range(80))
def test_a_damaged_data_set_is_refused_or_what_was_written(
    sound_data: Path, tmp_path: Path, seed: int
) -> None:
    path = shutil.copyfile(sound_data, tmp_path / "data.parquet")
    damage(path, seed)
    found = _read(path)
    assert found is None or found.digest == read_dataset(sound_data).digest


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
