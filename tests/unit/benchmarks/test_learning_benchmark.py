"""Learning from autotuning: who sees what, and what production is."""

from __future__ import annotations

from dataclasses import replace

import learn_on_gpu
import simulation

from tilecast.heuristics.operands import GemmOperands
from tilecast.models.learning.labels import ProblemLabels


def test_every_problem_is_production_once_and_unseen_once(
    synthetic_table: list[ProblemLabels],
) -> None:
    parts = simulation.parts(synthetic_table)
    assert len(parts) == 5
    for which in ("production", "unseen"):
        problems = [labels.problem for part in parts for labels in getattr(part, which)]
        assert len(problems) == len(set(problems)) == len(synthetic_table)
    for part in parts:
        families = [{labels.problem.family for labels in table} for table in part]
        assert sum(map(len, families)) == len(set.union(*families)) == 6
        assert sum(map(len, part)) == len(synthetic_table)


def test_production_is_what_inductor_multiplies_by_a_gemm(
    synthetic_table: list[ProblemLabels],
) -> None:
    first = synthetic_table[0]
    others = [
        replace(first, problem=replace(first.problem, m=1)),
        replace(first, problem=replace(first.problem, batch=2)),
        replace(first, problem=replace(first.problem, operands=GemmOperands.parse("bf16:crr"))),
    ]
    found = learn_on_gpu.production([*others, *synthetic_table])
    asked = [labels.problem for labels in synthetic_table if labels.problem.m > 1]
    assert set(found) == set(asked)
    assert found != asked
    assert found == learn_on_gpu.production([*others, *synthetic_table])
