"""``tilecast train`` with a real fit, which learns from what Inductor timed."""

from __future__ import annotations

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


def test_train_learns_from_autotuning_and_says_what_it_left_out(
    few_trained: Artifact,
    few_dataset: Dataset,
    h200: Hardware,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, own, model = (tmp_path / name for name in ("data.parquet", "own.jsonl", "model"))
    write_dataset(few_dataset, data)
    times = {config: 1.0 + i / 10 for i, config in enumerate(candidates(OWN, h200)[:5])}
    date = "2026-11-22T00:00:00+00:00"
    measured = Autotuned(OWN, times, 0.5, "H200", toolchain(), {}, date)
    known = replace(measured, problem=GemmProblem(512, 4096, 4096))
    others = (replace(measured, gpu="H100"), replace(measured, toolchain="older"))
    # The same times of another date are those that Inductor kept.
    lines = [one.line() for one in (measured, known, *others, replace(measured, date="later"))]
    own.write_text(HEADER + "".join(lines))
    files = ["--data", str(data), "--add", str(own), "--out", str(model)]
    arguments = ["train", *files, "--jobs", "2"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "Learned from autotuning: 5 times of 1 problems that no collection measured" in text
    assert "Left out: lines of another GPU than H200 (1), of kernels of another version (1)" in text
    artifact = load(model)
    assert artifact.facts["autotuned"] == {"problems": 1, "times": 5}
    assert artifact.facts["dataset"] == few_trained.facts["dataset"]
    assert artifact.ranker.forest.pack() == few_trained.ranker.forest.pack()
    assert artifact.ranker.network.pack() != few_trained.ranker.network.pack()
