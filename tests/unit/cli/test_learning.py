"""`tilecast train --add` of what the hook wrote down of autotuning, from the file to the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tilecast.cli.main import main
from tilecast.data_collection.dataset import dataset as datasets
from tilecast.data_collection.dataset.autotuned import HEADER, Autotuned
from tilecast.data_collection.dataset.dataset import Dataset, write_dataset
from tilecast.data_collection.gpu import gpu_model
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.kernels.objects.keys import toolchain
from tilecast.models.runtime.artifact import Artifact, load

OWN = GemmProblem(640, 5120, 5120)


@pytest.fixture
def data(few_dataset: Dataset, tmp_path: Path) -> str:
    write_dataset(few_dataset, tmp_path / "data.parquet")
    return str(tmp_path / "data.parquet")


@pytest.fixture
def measured(h200: Hardware) -> Autotuned:
    times = {config: 1.0 + i / 10 for i, config in enumerate(candidates(OWN, h200)[:5])}
    return Autotuned(OWN, times, 0.5, "H200", toolchain(), {}, "2026-11-22T00:00:00+00:00")


def test_train_and_evaluate_learn_from_another_gpu(
    answer: Callable[..., dict],
    other_dataset: Dataset,
    data: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = tmp_path / "other.parquet"
    write_dataset(other_dataset, other)
    out = str(tmp_path / "model")
    given = ["--data", data, "--add", str(other)]
    assert main(["train", *given, "--out", out, "--jobs", "2"]) == 0
    assert "Learned from 12 problems of H100, too" in capsys.readouterr().out
    ours = ("--only", "nearest neighbour", "--power", "robust")
    alone, both = (answer("evaluate", *one, *ours) for one in (("--data", data), given))
    assert [both[part] for part in ("problems", "families")] == [12, 6]
    assert both["noise_floor"] == alone["noise_floor"]


@pytest.fixture
def shipped(
    few_dataset: Dataset, other_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """Small data sets in place of those that are shipped."""
    files = {"H200": tmp_path / "h200.parquet", "H100": tmp_path / "h100.parquet"}
    for file, dataset in zip(files.values(), (few_dataset, other_dataset), strict=True):
        write_dataset(dataset, file)
    monkeypatch.setattr(datasets, "shipped_data", lambda gpu: files.get(gpu.name))
    monkeypatch.setattr(gpu_model, "first_here", lambda: None)
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
    monkeypatch.setattr(gpu_model, "first_here", lambda: hardware("H100"))
    assert answer(*SCORED)["data"] == [shipped["H100"]]
    assert main([*SCORED]) == 0
    assert f"Data: {shipped['H100']}\n" in capsys.readouterr().out
    line = refused(*SCORED, "--data", shipped["H200"], "--gpu", "H100")
    assert "was measured on H200; allowed: one of H100, which --gpu names" in line
    new = replace(hardware("H200"), name="H20")
    monkeypatch.setattr(gpu_model, "first_here", lambda: new)
    assert refused(*SCORED).startswith("no data set is shipped for H20; allowed: --data with")


def test_what_is_added_makes_a_model_of_its_gpu(
    answer: Callable[..., dict], shipped: dict[str, str], other_dataset: Dataset, tmp_path: Path
) -> None:
    mine, model = tmp_path / "mine.parquet", tmp_path / "model"
    write_dataset(other_dataset, mine)
    document = answer("train", "--add", str(mine), "--out", str(model), "--jobs", "2")
    assert document["data"] == [shipped["H100"], str(mine)]
    assert load(model).hardware == hardware("H100")


def test_train_learns_from_autotuning_and_says_what_it_left_out(
    few_trained: Artifact,
    measured: Autotuned,
    data: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own, model = tmp_path / "own.jsonl", tmp_path / "model"
    known = replace(measured, problem=GemmProblem(512, 4096, 4096))
    others = (replace(measured, gpu="H100"), replace(measured, toolchain="older"))
    # The same times of another date are those that Inductor kept.
    lines = [one.line() for one in (measured, known, *others, replace(measured, date="later"))]
    own.write_text(HEADER + "".join(lines))
    arguments = ["train", "--data", data, "--add", str(own), "--out", str(model), "--jobs", "2"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "Learned from autotuning: 5 times of 1 problems that no collector measured" in text
    assert "Left out: lines of another GPU than H200 (1), of kernels of another version (1)" in text
    artifact = load(model)
    assert artifact.facts["autotuned"] == {"problems": 1, "times": 5}
    assert artifact.facts["dataset"] == few_trained.facts["dataset"]
    assert artifact.ranker.forest.pack() == few_trained.ranker.forest.pack()
    assert artifact.ranker.network.pack() != few_trained.ranker.network.pack()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it does not begin with {"),
        ("m,n,k\n1,2,3\n", "it does not begin with {"),
        (HEADER, "none of its lines is of use (it has none)"),
        (f'{HEADER}{{"problem": [1,\n', "none of its lines is of use (1 damaged)"),
    ],
)
def test_train_refuses_a_file_of_nothing_to_learn(
    refused: Callable[..., str], data: str, tmp_path: Path, text: str, reason: str
) -> None:
    own, model = tmp_path / "own.jsonl", tmp_path / "model"
    own.write_text(text)
    line = refused("train", "--data", data, "--add", str(own), "--out", str(model))
    assert line.startswith(f"autotuned times {own} cannot be used: {reason}")
    assert not model.exists()


def test_train_refuses_times_of_another_gpu(
    refused: Callable[..., str], measured: Autotuned, data: str, tmp_path: Path
) -> None:
    own = tmp_path / "own.jsonl"
    own.write_text(HEADER + replace(measured, gpu="H100").line())
    line = refused("train", "--data", data, "--add", str(own), "--out", str(tmp_path / "model"))
    assert "(1 of another GPU than H200); allowed: a file that TILECAST_LEARN wrote" in line


def test_the_document_says_what_was_left_out(
    answer: Callable[..., dict], measured: Autotuned, data: str, tmp_path: Path
) -> None:
    own = tmp_path / "own.jsonl"
    own.write_text(HEADER + measured.line() + json.dumps({"half": 1}) + "\n")
    document = answer(
        "train", "--data", data, "--add", str(own), "--out", str(tmp_path / "model"), "--jobs", "2"
    )
    assert document["left_out"] == {"damaged": 1}
    assert document["autotuned"] == {"problems": 1, "times": 5}
