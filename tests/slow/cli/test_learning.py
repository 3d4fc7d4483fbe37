"""``tilecast train`` with real fits: beside another GPU's data, and from what Inductor timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tilecast.cli.main import main
from tilecast.data_collection.dataset.autotuned import HEADER, Autotuned
from tilecast.data_collection.dataset.dataset import Dataset, write_dataset
from tilecast.heuristics.hardware import Hardware
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
    assert "Also learned from 12 problems of H100" in capsys.readouterr().out
    ours = ("--only", "nearest neighbour", "--power", "robust")
    alone, both = (answer("evaluate", *one, *ours) for one in (("--data", data), given))
    assert [both[part] for part in ("problems", "families")] == [12, 6]
    assert both["noise_floor"] == alone["noise_floor"]


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
    assert "Learned from autotuning: 5 times of 1 problems that no collection measured" in text
    assert "Left out: lines of another GPU than H200 (1), of kernels of another version (1)" in text
    artifact = load(model)
    assert artifact.facts["autotuned"] == {"problems": 1, "times": 5}
    assert artifact.facts["dataset"] == few_trained.facts["dataset"]
    assert artifact.ranker.forest.pack() == few_trained.ranker.forest.pack()
    assert artifact.ranker.network.pack() != few_trained.ranker.network.pack()
