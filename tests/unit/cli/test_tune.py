"""`tilecast tune`: what is measured joins what is known, and the model that comes out knows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from own_measurements import OWN, own_measurements

from tilecast.cli.main import main
from tilecast.data_collection.dataset.dataset import Dataset, write_dataset
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.run.collect import CollectOptions
from tilecast.models.runtime.artifact import load

Refused = Callable[..., str]


@pytest.fixture
def arguments(tmp_path: Path, few_dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of a command whose collection finds what the synthetic card says."""

    def fake(options: CollectOptions, report: Callable[..., None]) -> None:
        store = MeasurementStore(options.store)
        store.begin_run(dict(few_dataset.provenance["runs"][0]))
        if options.seconds > 1:
            assert options.problems == OWN
            store.add(own_measurements(), "synthetic")
        store.close()

    monkeypatch.setattr("tilecast.cli.commands.collect.collect", fake)
    write_dataset(few_dataset, tmp_path / "known.parquet")
    lines = [f"{problem.m},{problem.n},{problem.k}" for problem in OWN]
    (tmp_path / "own.csv").write_text("\n".join(["m,n,k", *lines]))
    return [
        *("tune", "--problems", str(tmp_path / "own.csv"), "--store", str(tmp_path / "run.db")),
        *("--data", str(tmp_path / "known.parquet"), "--out", str(tmp_path / "model")),
        *("--cache", str(tmp_path / "objects"), "--workers", "2"),
    ]


def _add_unknown(path: Path) -> None:
    """Problems whose operands no model has seen, as the hook may record them."""
    path.write_text(path.read_text().replace("\n", ",operands\n", 1) + "\n8,64,64,bf16:ccc\n")


def test_the_tuned_model_knows_what_was_measured(
    arguments: list[str],
    tmp_path: Path,
    few_dataset: Dataset,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _add_unknown(tmp_path / "own.csv")
    assert main([*arguments, "--json"]) == 0
    told = capsys.readouterr()
    assert told.err == ("tilecast: left out: 1 problem of bf16:ccc, which the model has not seen\n")
    document = json.loads(told.out)
    assert (document["problems"], document["measured"]) == (2, 2)
    for power in ("burst", "sustained", "robust"):
        shipped, tuned = (document["regret"][name][power] for name in ("shipped", "tuned"))
        assert list(tuned) == ["1", "3", "5"]
        assert tuned["5"] <= tuned["3"] <= tuned["1"]
        assert tuned["1"] < shipped["1"], power
    learned = load(tmp_path / "model").facts["dataset"]
    assert learned["problems"] == len(few_dataset.problems()) + len(OWN)  # type: ignore


def test_too_few_families_for_a_model_are_refused_before_anything_is_measured(
    arguments: list[str], refused: Refused, tmp_path: Path
) -> None:
    """Of another GPU than what is known: that is learned from, and a model is not scored by it."""
    line = refused(*arguments, "--gpu", "H100")
    assert line == (
        "2 (n, k) families are too few for 5 folds; allowed: 5 or more; collect more problems"
    )
    assert not (tmp_path / "run.db").exists()


def test_what_it_needs_is_told(arguments: list[str], refused: Refused) -> None:
    without = [word for word in arguments if not word.endswith("own.csv") and word != "--problems"]
    assert refused(*without).startswith("no problem is given; allowed: --problems or --hf-config")
    assert "none of the 2 problems was measured within --budget 1;" in refused(
        *arguments, "--budget", "1"
    )


@pytest.mark.parametrize("command", ["tune", "space", "collect", "predict", "compile", "doctor"])
def test_help_names_no_model_where_none_can_be_named(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    told = capsys.readouterr().out
    assert told.count("that of --model") == ("--model MODEL" in told)
