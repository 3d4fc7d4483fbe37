"""What the synthetic card says of one's own problems, also to a command line of ``tune``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures import make_dataset, synthetic_configs

from tilecast.data_collection.dataset.dataset import Dataset, write_dataset
from tilecast.data_collection.dataset.measurement import REFERENCE, Measurement
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.run.collect import CollectOptions
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.families import parse_config

OWN = (GemmProblem(96, 3072, 2048), GemmProblem(700, 640, 8192))


def own_measurements() -> list[Measurement]:
    """What the synthetic card would have said of one's own problems."""
    rows = make_dataset(list(OWN), synthetic_configs()).rows.astype(object)
    rows = rows.where(rows.notna(), None)
    return [
        Measurement(
            GemmProblem(row["m"], row["n"], row["k"]),
            None if row["config"] == REFERENCE else parse_config(row["config"]),
            *(row["regime"], row["stage"], row["microseconds"], row["spread"]),
            *(row["rounds"], row["failure"]),
        )
        for row in rows.to_dict("records")
    ]


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
