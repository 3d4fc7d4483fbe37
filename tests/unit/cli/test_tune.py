"""`tilecast tune`: what is measured joins what is known, and the model that comes out knows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from own_measurements import *  # noqa: F403
from own_measurements import OWN

from tilecast.cli.main import main
from tilecast.data_collection.dataset.dataset import Dataset
from tilecast.heuristics.hardware import hardware
from tilecast.models.learning.training_sets import Measurements
from tilecast.models.runtime.artifact import Artifact, load_shipped

Refused = Callable[..., str]


def _add_unknown(path: Path) -> None:
    """Problems whose operands no model has seen, as the hook may record them."""
    path.write_text(path.read_text().replace("\n", ",operands\n", 1) + "\n8,64,64,bf16:ccc\n")


def test_both_models_are_scored_on_what_was_measured(
    arguments: list[str],
    tmp_path: Path,
    few_dataset: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    learned_from: list[Measurements] = []

    def fake(measured: Measurements, jobs: int) -> Artifact:
        learned_from.append(measured)
        return load_shipped(hardware("H200"))

    monkeypatch.setattr("tilecast.cli.commands.tune.train_shown", fake)
    _add_unknown(tmp_path / "own.csv")
    assert main([*arguments, "--json"]) == 0
    told = capsys.readouterr()
    assert told.err == ("tilecast: left out: 1 problem of bf16:ccc, which the model has not seen\n")
    document = json.loads(told.out)
    assert (document["problems"], document["measured"]) == (2, 2)
    assert document["regret"]["tuned"] == document["regret"]["shipped"]
    assert set(document["regret"]["tuned"]) == {"burst", "sustained", "robust"}
    (measured,) = learned_from
    assert {labels.problem for labels in measured.own} == {*few_dataset.problems(), *OWN}
    assert (tmp_path / "model" / "manifest.json").exists()


def test_too_few_families_for_a_model_are_refused_before_anything_is_measured(
    arguments: list[str], refused: Refused, tmp_path: Path
) -> None:
    """Of another GPU than what is known: that is learned from, and a model is not scored by it."""
    line = refused(*arguments, "--gpu", "H100")
    assert line == (
        "2 (n, k) families are too few for 5 folds; allowed: 5 or more; collect more problems"
    )
    assert not (tmp_path / "run.db").exists()


def test_a_budget_in_which_nothing_is_measured(arguments: list[str], refused: Refused) -> None:
    line = refused(*arguments, "--budget", "1")
    assert "none of the 2 problems was measured, and 0 kernels failed;" in line
