"""One answer to what was measured: what is learned from, scored by and shown is the same."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilecast.data_collection.dataset.columns import Columns
from tilecast.data_collection.dataset.dataset import (
    Dataset,
    read_columns,
    shipped_data,
    write_dataset,
)
from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.data_collection.dataset.select_times import LABEL, OTHER, SAME, SCORE, measured_times
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.learning.labels import ProblemLabels, label_table

LABELS = "bbba216e882910213a66b6d7601ee09932a836221a6249ebb9c70245bba9a4d6"
"""SHA-256 of what the shipped data set came to when it was collected: problems, configs, times."""


@pytest.fixture(scope="module")
def path(h200: Hardware) -> Path:
    path = shipped_data(h200)
    assert path is not None
    return path


@pytest.fixture(scope="module")
def columns(path: Path) -> Columns:
    return read_columns(path)[0]


@pytest.fixture(scope="module")
def table(columns: Columns) -> list[ProblemLabels]:
    return label_table(Dataset(columns.frame(), {}))


def test_labels_are_bit_for_bit_what_models_were_trained_on(table: list[ProblemLabels]) -> None:
    digest = hashlib.sha256()
    for labels in table:
        digest.update(f"{labels.problem} {[config.name for config in labels.configs]}".encode())
        for regime in REGIMES:
            for times in (labels.label[regime], labels.truth[regime]):
                assert times.dtype == np.float64
                digest.update(times.tobytes())
    assert len(table) == 3665
    assert digest.hexdigest() == LABELS


def _check_agreement(columns: Columns, table: list[ProblemLabels]) -> None:
    """What is shown of each problem is what heuristics are scored by."""
    for labels in table:
        by_regime = measured_times(columns, labels.problem)
        assert set(by_regime) == set(REGIMES)
        for regime, truth in by_regime.items():
            times = labels.truth[regime]
            assert truth.best == labels.configs[int(np.argmin(times))].name
            assert truth.times == {
                c.name: t for c, t in zip(labels.configs, times.tolist(), strict=True)
            }
            assert truth.slowdown(truth.best) == 0
            assert truth.reference == labels.reference[regime] > 0


def test_what_is_shown_is_what_is_scored_by(columns: Columns, table: list[ProblemLabels]) -> None:
    """In every regime: each side used to have an order of fallbacks of its own."""
    _check_agreement(columns, table[::4])


def test_so_it_is_where_configs_failed(
    synthetic_dataset: Dataset, synthetic_table: list[ProblemLabels]
) -> None:
    assert bool(synthetic_dataset.rows["failure"].notna().to_numpy().any())
    _check_agreement(synthetic_dataset.columns(), synthetic_table)


def test_fallbacks_name_every_time_once_and_labels_never_see_the_verification() -> None:
    assert set(LABEL) == {(where, stage) for where in (SAME, OTHER) for stage in ("race", "screen")}
    assert set(SCORE) == {*LABEL, (SAME, "verify"), (OTHER, "verify")}
    assert len(LABEL) == 4 and len(SCORE) == 6


def test_a_problem_that_was_not_measured(columns: Columns, table: list[ProblemLabels]) -> None:
    known = table[0].problem
    assert measured_times(columns, known)
    for other in (
        replace(known, m=1_000_000),
        replace(known, batch=2),
        replace(known, operands=GemmOperands.parse("bf16:rcr>fp32")),
    ):
        assert measured_times(columns, other) == {}


def test_a_config_without_a_time_has_no_slowdown(
    columns: Columns, table: list[ProblemLabels]
) -> None:
    truth = measured_times(columns, table[0].problem)["burst"]
    assert truth.slowdown("not measured") is None
    others = [truth.slowdown(config) for config in truth.times if config != truth.best]
    assert len(others) > 20 and all(slowdown and slowdown > 0 for slowdown in others)


def test_a_data_set_without_the_reference(tmp_path: Path, synthetic_dataset: Dataset) -> None:
    rows = synthetic_dataset.rows.query("config != 'torch.mm'")
    write_dataset(Dataset(rows, synthetic_dataset.provenance), tmp_path / "data.parquet")
    columns = read_columns(tmp_path / "data.parquet")[0]
    by_regime = measured_times(columns, GemmProblem(8, 4096, 4096))
    assert [truth.reference for truth in by_regime.values()] == [None, None]


def test_looking_up_a_problem_does_not_wait_for_pandas(
    path: Path, table: list[ProblemLabels]
) -> None:
    problem = table[0].problem
    code = (
        "import sys; from pathlib import Path; "
        "from tilecast.data_collection.dataset.select_times import measured_times;"
        "from tilecast.data_collection.dataset.dataset import read_columns;"
        "from tilecast.heuristics.problem import GemmProblem;"
        f"problem = GemmProblem({problem.m}, {problem.n}, {problem.k});"
        f"assert measured_times(read_columns(Path({str(path)!r}))[0], problem);"
        "print({'pandas', 'pyarrow.compute', 'torch'} & set(sys.modules))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stdout == "set()\n", process.stderr
