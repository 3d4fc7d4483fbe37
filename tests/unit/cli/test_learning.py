"""Which data sets ``train`` and ``evaluate`` read, and what ``train`` says; the fit is faked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tilecast.cli.main import main
from tilecast.cli.options import load_measurements
from tilecast.data_collection.dataset.autotuned import HEADER, Autotuned
from tilecast.data_collection.dataset.dataset import Dataset, write_dataset
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.kernels.objects.keys import toolchain
from tilecast.models.learning.training_sets import Measurements
from tilecast.models.runtime.artifact import Artifact, load, load_shipped

OWN = GemmProblem(640, 5120, 5120)
FIGURES = {"geomean": 0.0125, "p95": 0.05, "max": 0.1, "within_2_percent": 0.75}


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Stands in for the fit; gives what was learned from, autotuned times among it."""
    calls: list[tuple] = []

    def fake(measured: Measurements, autotuned: list[Autotuned], **_: int) -> Artifact:
        calls.append((measured, autotuned))
        facts = {
            "dataset": {"sha256": "", "problems": 12, "families": 6},
            "elsewhere": {"problems": 7, "gpus": ["H100"]},
            "autotuned": {"problems": 1, "times": 5},
            "held_out": {"tilecast": {"robust": {f"regret@{k}": FIGURES for k in (1, 3, 5)}}},
            "noise_floor": {"robust": FIGURES},
        }
        return replace(load_shipped(hardware("H200")), hardware=measured.gpu, facts=facts)

    monkeypatch.setattr("tilecast.cli.commands.train.train", fake)
    return calls


@pytest.fixture
def shipped(
    few_dataset: Dataset, other_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """Small data sets in place of those that are shipped."""
    files = {"H200": tmp_path / "h200.parquet", "H100": tmp_path / "h100.parquet"}
    for file, dataset in zip(files.values(), (few_dataset, other_dataset), strict=True):
        write_dataset(dataset, file)
    monkeypatch.setattr(load_measurements, "shipped_data", lambda gpu: files.get(gpu.name))
    monkeypatch.setattr(load_measurements, "first_hardware", lambda: None)
    return {name: str(file) for name, file in files.items()}


SCORED = ("evaluate", "--only", "random", "--power", "robust")


def test_the_data_set_is_that_of_the_gpu_at_hand(
    answer: Callable[..., dict],
    refused: Callable[..., str],
    shipped: dict[str, str],
    other_dataset: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The one that is named, this machine's, that of what is added, or else the H200."""
    mine = str(tmp_path / "mine.parquet")
    write_dataset(other_dataset, Path(mine))
    assert answer(*SCORED)["data"] == [shipped["H200"]]
    assert answer(*SCORED, "--add", mine)["data"] == [shipped["H100"], mine]
    named = answer(*SCORED, "--add", mine, "--gpu", "H200")
    assert named["data"] == [shipped["H200"], mine]
    monkeypatch.setattr(load_measurements, "first_hardware", lambda: hardware("H100"))
    assert answer(*SCORED)["data"] == [shipped["H100"]]
    assert main([*SCORED]) == 0
    assert f"Data: {shipped['H100']}\n" in capsys.readouterr().out
    line = refused(*SCORED, "--data", shipped["H200"], "--gpu", "H100")
    assert "was measured on H200; allowed: one of H100, or --gpu H200" in line
    new = replace(hardware("H200"), name="H20")
    monkeypatch.setattr(load_measurements, "first_hardware", lambda: new)
    assert refused(*SCORED).startswith("no data set is shipped for H20; allowed: --data with")


def test_a_model_of_ones_own_learns_from_groups_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_measurements, "read_dataset", lambda path: path.name)
    names = ["h200.parquet", "h200-row-groups.parquet", "h200-k-groups.parquet", "h100.parquet"]
    assert load_measurements.shipped_datasets(hardware("H200")) == names


def test_what_is_added_makes_a_model_of_its_gpu(
    answer: Callable[..., dict],
    fitted: list[tuple],
    shipped: dict[str, str],
    other_dataset: Dataset,
    tmp_path: Path,
) -> None:
    mine, model = tmp_path / "mine.parquet", tmp_path / "model"
    write_dataset(other_dataset, mine)
    document = answer("train", "--add", str(mine), "--out", str(model), "--jobs", "2")
    assert document["data"] == [shipped["H100"], str(mine)]
    assert load(model).hardware == hardware("H100")


def test_train_says_what_it_learned_from_and_what_it_left_out(
    fitted: list[tuple],
    shipped: dict[str, str],
    h200: Hardware,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    times = {config: 1.0 + i / 10 for i, config in enumerate(candidates(OWN, h200)[:5])}
    found = Autotuned(OWN, times, 0.5, "H200", toolchain(), {}, "2026-11-22T00:00:00+00:00")
    own, model = tmp_path / "own.jsonl", tmp_path / "model"
    own.write_text(HEADER + found.line() + replace(found, gpu="H100").line() + '{"half": 1}\n')
    arguments = ["train", "--add", str(own), "--out", str(model), "--jobs", "1"]
    assert main(arguments) == 0
    ((measured, autotuned),) = fitted
    assert (measured.gpu, [one.problem for one in autotuned]) == (h200, [OWN])
    text = capsys.readouterr().out
    for part in (
        "1.25%",
        "noise floor",
        "Also learned from 7 problems of H100",
        "Learned from autotuning: 5 times of 1 problems",
        "of another GPU than H200 (1)",
        "damaged (1)",
        f"12 problems of 6 families, written to {model}",
    ):
        assert part in text
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"]["damaged"] == 1
