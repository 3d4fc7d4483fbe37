"""What is learned from, scored by and shown of a problem are the same measurements."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilecast.data_collection.dataset.columns import Columns
from tilecast.data_collection.dataset.dataset import Dataset, read_columns, write_dataset
from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.data_collection.dataset.select_times import measured_times
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.learning.labels import ProblemLabels


@pytest.fixture(scope="module")
def columns(synthetic_dataset: Dataset) -> Columns:
    return synthetic_dataset.columns()


def test_what_is_shown_is_what_is_scored_by(
    synthetic_dataset: Dataset, columns: Columns, synthetic_table: list[ProblemLabels]
) -> None:
    assert bool(synthetic_dataset.rows["failure"].notna().to_numpy().any())
    for labels in synthetic_table:
        by_regime = measured_times(columns, labels.problem)
        assert set(by_regime) == set(REGIMES)
        for regime, found in by_regime.items():
            times = labels.truth[regime]
            assert found.best == labels.configs[int(np.argmin(times))].name
            assert found.times == {
                c.name: t for c, t in zip(labels.configs, times.tolist(), strict=True)
            }
            assert found.slowdown(found.best) == 0
            assert found.slowdown("not measured") is None
            assert min(map(found.slowdown, found.times.keys() - {found.best})) > 0  # type: ignore[type-var]
            assert found.reference == labels.reference[regime] > 0


def test_a_problem_that_was_not_measured(
    columns: Columns, synthetic_table: list[ProblemLabels]
) -> None:
    known = synthetic_table[0].problem
    assert measured_times(columns, known)
    for other in (
        replace(known, m=1_000_000),
        replace(known, batch=2),
        replace(known, operands=GemmOperands.parse("bf16:rcr>fp32")),
    ):
        assert measured_times(columns, other) == {}


def test_a_data_set_without_the_reference(tmp_path: Path, synthetic_dataset: Dataset) -> None:
    rows = synthetic_dataset.rows.query("config != 'torch.mm'")
    write_dataset(Dataset(rows, synthetic_dataset.provenance), tmp_path / "data.parquet")
    columns = read_columns(tmp_path / "data.parquet")[0]
    by_regime = measured_times(columns, GemmProblem(8, 4096, 4096))
    assert [found.reference for found in by_regime.values()] == [None, None]


def test_times_are_read_without_pandas(tmp_path: Path, synthetic_dataset: Dataset) -> None:
    write_dataset(synthetic_dataset, tmp_path / "data.parquet")
    code = (
        "import sys; from pathlib import Path; "
        "from tilecast.data_collection.dataset.select_times import measured_times;"
        "from tilecast.data_collection.dataset.dataset import read_columns;"
        "from tilecast.heuristics.problem import GemmProblem;"
        f"columns = read_columns(Path({str(tmp_path / 'data.parquet')!r}))[0];"
        "assert measured_times(columns, GemmProblem(8, 4096, 4096));"
        "print({'pandas', 'pyarrow.compute', 'torch'} & set(sys.modules))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stdout == "set()\n", process.stderr
