"""Commands that meet what somebody changed: they refuse it in one line, or do correct work."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import wrong_in
from fixtures import change_manifest

from attack.changes import changed, damage, poison
from tilecast.cli.commands import collect as collect_command
from tilecast.cli.main import main
from tilecast.data_collection.dataset.dataset import Dataset, read_dataset, write_dataset
from tilecast.data_collection.dataset.measurement import Measurement
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.kernels.families import UNSTATED
from tilecast.kernels.quack_sm90.config import QuackConfig
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


def _attack_model(
    model: Path, folder: Path, seed: int, capfd: pytest.CaptureFixture[str]
) -> str | None:
    """Change a model, sign it anew or not, ask it and show what it says of itself."""
    shutil.copytree(model, folder)
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
    wrong = complaint_of(["predict", "64x4096x4096", "--model", str(folder), "--json"], capfd)
    try:
        artifact = load(folder)
    except TilecastError:
        return wrong
    page("model", [model_section(artifact.name, artifact.facts)])
    if not sign and _content(folder) != _content(model):
        return "a digest that does not fit is taken"
    return wrong or _unsound(folder)


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


def _attack_provenance(rows: pd.DataFrame, path: Path, seed: int) -> str | None:
    """Write a data set whose provenance somebody changed; what is read can be shown."""
    provenance = {"runs": [RUN], "space_version": 3, "protocol_version": 3}
    write_dataset(Dataset(rows, changed(provenance, seed)), path)
    return _shown(path)


def _attack_file(data: Path, path: Path, seed: int) -> str | None:
    """Damage the file of a data set; what is read is what was written."""
    shutil.copyfile(data, path)
    damage(path, seed)
    try:
        found = read_dataset(path)
    except TilecastError as error:
        return None if "\n" not in str(error) else "more than one line"
    return None if found.digest == read_dataset(data).digest else "other data"


def _shown(path: Path) -> str | None:
    try:
        dataset = read_dataset(path)
    except TilecastError as error:
        return None if "\n" not in str(error) else "more than one line"
    page("data", dataset_sections(dataset, label_table(dataset), "robust"))
    return None


def few_rows(dataset: Dataset, path: Path) -> Path:
    """Write the part of a data set that is of one problem."""
    rows: Any = dataset.rows
    write_dataset(Dataset(rows[(rows["m"] == 64) & (rows["n"] == 4096)], dataset.provenance), path)
    return path


def _collecting(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[list[str]], str | None]:
    """Runs `collect` on a store and says what is wrong with it; nothing is measured."""
    monkeypatch.setattr(collect_command, "collect", lambda wanted, report: None)
    monkeypatch.setenv("TILECAST_CACHE", str(folder / "objects"))
    (folder / "own.csv").write_text("m,n,k\n1,4096,4096\n")

    def run(paths: list[str]) -> str | None:
        store, export = paths
        asked = ["collect", "--problems", str(folder / "own.csv"), "--gpu", "H200", "--json"]
        return complaint_of([*asked, "--store", store, "--export", export], capfd)

    return run


def _make_store(path: Path) -> None:
    """A store of some measurements."""
    with closing(MeasurementStore(path)) as store:
        store.begin_run(RUN)
        configs = [QuackConfig(64, 64, 64), QuackConfig(128, 64, 64)]
        store.add(
            [
                Measurement(GemmProblem(m, 4096, 4096), config, "burst", "race", 12.5, 0.0, 3)
                for m in range(1, 60)
                for config in configs
            ],
            "card",
        )


def _attack_store(
    store: Path, right: str, path: Path, seed: int, command: Callable[[list[str]], str | None]
) -> str | None:
    """Damage a store; ``collect`` refuses it, or exports what was written, of a right digest."""
    shutil.copyfile(store, path)
    damage(path, seed)
    export = path.with_suffix(".parquet")
    wrong = command([str(path), str(export)])
    if export.exists() and read_dataset(export).digest != right:
        return "exported other rows"
    return wrong


def _wrong(seeds: Iterable[int], attack: Callable[[int], str | None]) -> dict[int, str]:
    """What went wrong, by the seed of the change."""
    return {seed: found for seed in seeds if (found := attack(seed))}


def wrong_models(
    model: Path, folder: Path, seeds: Iterable[int], capfd: pytest.CaptureFixture[str]
) -> dict[int, str]:
    """Changed models that are neither refused in one line nor answer, by seed."""
    return _wrong(seeds, lambda seed: _attack_model(model, folder / str(seed), seed, capfd))


def wrong_provenances(dataset: Dataset, folder: Path, seeds: Iterable[int]) -> dict[int, str]:
    """Data sets of a changed provenance that are neither refused nor shown, by seed."""
    rows = read_dataset(few_rows(dataset, folder / "good.parquet")).rows
    return _wrong(seeds, lambda seed: _attack_provenance(rows, folder / f"{seed}.parquet", seed))


def wrong_files(dataset: Dataset, folder: Path, seeds: Iterable[int]) -> dict[int, str]:
    """Damaged data sets that are neither refused nor what was written, by seed."""
    good, path = few_rows(dataset, folder / "good.parquet"), folder / "data.parquet"
    return _wrong(seeds, lambda seed: _attack_file(good, path, seed))


def wrong_stores(
    folder: Path,
    seeds: Iterable[int],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> dict[int, str]:
    """Damaged stores that are neither refused nor exported, by seed."""
    command = _collecting(folder, monkeypatch, capfd)
    good = folder / "good.db"
    _make_store(good)
    with closing(MeasurementStore(good)) as store:
        right = store.export().digest

    def attack(seed: int) -> str | None:
        return _attack_store(good, right, folder / f"{seed}.db", seed, command)

    return _wrong(seeds, attack)
