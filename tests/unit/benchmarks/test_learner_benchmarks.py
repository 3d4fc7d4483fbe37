"""Which problems the learner's benchmarks train on, ask about and leave out, and their figures."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import invariant_regret
import learn_on_gpu
import numpy as np
import operator_speed
import pytest

from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import config_table
from tilecast.kernels.families import parse_config
from tilecast.models.learning.labels import ProblemLabels

OTHER = GemmOperands.parse("bf16:crr")


def _labels(problem: GemmProblem) -> Any:
    return SimpleNamespace(problem=problem, elsewhere=None)


@pytest.fixture
def table() -> list[Any]:
    """Labels of ten (n, k) with three m each, of which nothing but the problem is known."""
    families = [(64 * i, 128 * i) for i in range(1, 11)]
    return [_labels(GemmProblem(m, *nk)) for nk in families for m in (16, 64, 256)]


def test_every_problem_is_production_once_and_unseen_once(table: list[Any]) -> None:
    parts = learn_on_gpu.parts(table)
    assert len(parts) == 5
    for which in ("production", "unseen"):
        problems = [labels.problem for part in parts for labels in getattr(part, which)]
        assert len(problems) == len(set(problems)) == len(table)
    for part in parts:
        families = [{labels.problem.family for labels in one} for one in part]
        assert sum(map(len, families)) == len(set.union(*families)) == 10
        assert sum(map(len, part)) == len(table)


def test_production_is_what_inductor_multiplies_by_a_gemm(table: list[Any]) -> None:
    first = table[0].problem
    changes: list[dict[str, Any]] = [{"m": 1}, {"batch": 2}, {"operands": OTHER}]
    others = [_labels(replace(first, **change)) for change in changes]
    found = learn_on_gpu.production([*others, *table])
    asked = [labels.problem for labels in table]
    assert set(found) == set(asked)
    assert found != asked
    assert found == learn_on_gpu.production([*others, *table])


@pytest.mark.parametrize(
    ("text", "operator", "others"),
    [
        ("bf16:rcr", "matmul", False),
        ("bf16:rcr:bias", "addmm", False),
        ("bf16:rcr:bias+gelu", "addmm", True),
        ("bf16:rcr:bias+gelu-tanh", "_addmm_activation", False),
        ("bf16xint8:rcr:column-scales", "matmul", True),
        ("int8:rcr>bf16:row-scales", "_int_mm", True),
        ("e4m3:rcr>bf16:row-scales", "_scaled_mm", False),
    ],
)
def test_operator_and_whether_it_takes_others(text: str, operator: str, others: bool) -> None:
    found = operator_speed.library(GemmOperands.parse(text))
    assert found == {"operator": operator, "others": others}


def test_regret_is_counted_among_the_kernels_that_agree() -> None:
    names = ("64x64x64_c1x1x2_s12_coop_o1_rm8", "64x64x64_c1x1x1_s12_coop_o1_rm8")
    configs = tuple(map(parse_config, (*names, "64x64x64_c1x1x4_s12_coop_o1_rm8")))
    times = {regime: np.array([1.0, 2.0, 3.0]) for regime in ("burst", "sustained")}
    library = {"burst": 4.0, "sustained": 4.0}
    problem, gpu = GemmProblem(16, 64, 4096), hardware("H200")
    every = config_table(configs, LINEAR_BF16).all()
    labels = ProblemLabels(problem, configs, times, times, library, every)
    own = invariant_regret.agreeing(labels, gpu)
    assert own.configs == tuple(own.candidates) == configs[1:]
    found = invariant_regret.figures([labels], [own], [(1, 0)])["m 1 to 16"]
    assert found["burst"]["best over best of all"]["geomean"] == 2.0
    assert found["burst"]["cuBLAS over best"]["geomean"] == 2.0
    assert found["burst"]["cuBLAS over first"]["geomean"] == pytest.approx(4 / 3, abs=1e-3)
    assert [found["regret"][k]["geomean"] for k in "13"] == [0.5, 0.0]
