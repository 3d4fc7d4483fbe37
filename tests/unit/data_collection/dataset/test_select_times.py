"""What is learned from, scored by and shown of a problem are the same measurements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilecast.data_collection.dataset.dataset import Dataset
from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.data_collection.dataset.select_times import measured_times, rows_of
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.learning.labels import ProblemLabels


def test_what_is_shown_is_what_is_scored_by(
    synthetic_dataset: Dataset, synthetic_table: list[ProblemLabels]
) -> None:
    assert bool(synthetic_dataset.rows["failure"].notna().to_numpy().any())
    for labels in synthetic_table:
        by_regime = measured_times(rows_of(synthetic_dataset.rows, labels.problem), labels.problem)
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
    synthetic_dataset: Dataset, synthetic_table: list[ProblemLabels]
) -> None:
    known = synthetic_table[0].problem
    assert measured_times(rows_of(synthetic_dataset.rows, known), known)
    for other in (
        replace(known, m=1_000_000),
        replace(known, batch=2),
        replace(known, operands=GemmOperands.parse("bf16:rcr>fp32")),
    ):
        assert measured_times(rows_of(synthetic_dataset.rows, other), other) == {}


def test_a_data_set_without_the_reference(synthetic_dataset: Dataset) -> None:
    rows = synthetic_dataset.rows.query("config != 'torch.mm'")
    problem = GemmProblem(8, 4096, 4096)
    by_regime = measured_times(rows_of(rows, problem), problem)
    assert [found.reference for found in by_regime.values()] == [None, None]
