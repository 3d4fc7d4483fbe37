"""The baselines keep the contract and do what their names say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tilecast.heuristics.config import Candidates
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.heuristic import rank
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates, config_table, stock_candidates
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.models.evaluation.baselines import (
    RandomChoice,
    StockDefault,
    fit_fixed_subset,
    fit_nearest,
)
from tilecast.models.evaluation.nvmatmul import NvMatmulHeuristic, layout, precision

H200 = hardware("H200")
PROBLEM = GemmProblem(2048, 4096, 4096)
A, B, C, D = (QuackConfig(128, n, 64) for n in (64, 128, 192, 256))


def _those(*configs: QuackConfig) -> Candidates:
    return config_table(configs, LINEAR_BF16).all()


@dataclass(frozen=True)
class Measured:
    """Labels of one problem, written down."""

    problem: GemmProblem
    times: dict[QuackConfig, float]

    @property
    def configs(self) -> tuple[QuackConfig, ...]:
        return tuple(self.times)

    def cost(self, power: str) -> np.ndarray:
        assert power == "burst"
        return np.array(list(self.times.values()), np.float64)


def _problem(m: int) -> GemmProblem:
    return GemmProblem(m, 1024, 1024)


TABLE: Any = (
    Measured(_problem(64), {A: 1.0, B: 2.0, C: 4.0}),
    Measured(_problem(128), {A: 1.0, B: 3.0, C: 5.0}),
    Measured(_problem(4096), {B: 2.0, C: 1.0, D: 3.0}),
)


@pytest.mark.parametrize(
    "heuristic",
    [
        RandomChoice(),
        StockDefault(H200),
        fit_fixed_subset(TABLE, "burst"),
        fit_nearest(TABLE, "burst"),
    ],
    ids=lambda heuristic: heuristic.name,
)
@pytest.mark.parametrize("limit", [None, 1, 3])
def test_the_contract_is_kept(heuristic, limit: int | None) -> None:
    configs = candidates(PROBLEM, H200)
    first = list(rank(heuristic, PROBLEM, configs, limit=limit))
    assert list(rank(heuristic, PROBLEM, configs, limit=limit)) == first
    assert len(rank(heuristic, PROBLEM, configs[:0], limit=limit)) == 0


def test_random_order_depends_on_the_problem() -> None:
    configs = candidates(PROBLEM, H200)
    one = list(RandomChoice().rank(PROBLEM, configs))
    assert sorted(one) == sorted(configs)
    assert one[:5] == list(RandomChoice().rank(PROBLEM, configs, limit=5))
    assert one != list(RandomChoice().rank(GemmProblem(2048, 4096, 4104), configs))


def test_the_best_fixed_subset_is_greedy() -> None:
    subset = fit_fixed_subset(TABLE, "burst")
    # A is best on two problems and counts as the slowest on the third, which C mends.
    assert list(subset.subsets.values()) == [[A, C, B, D]]
    assert list(subset.rank(PROBLEM, _those(D, C))) == [C, D]


def test_the_nearest_neighbour_gives_its_ranking() -> None:
    neighbour = fit_nearest(TABLE, "burst")
    assert list(neighbour.rank(_problem(70), _those(C, B, A), limit=2)) == [A, B]
    for limit in (None, 4):
        ranking = neighbour.rank(_problem(8192), _those(A, B, C, D), limit=limit)
        assert list(ranking) == [C, B, D, A]


def test_the_library_is_asked_in_its_own_words() -> None:
    assert (precision(LINEAR_BF16), layout(LINEAR_BF16)) == ("TST", "TN_ROW_MAJOR")
    half = GemmOperands.parse("fp16:crc>fp32")
    assert (precision(half), layout(half)) == ("HSS", "NT_COL_MAJOR")


def test_the_library_ranks_stock_kernels_only() -> None:
    pytest.importorskip("nvMatmulHeuristics")
    heuristic = NvMatmulHeuristic(H200)
    configs = candidates(PROBLEM, H200)
    ranking = rank(heuristic, PROBLEM, configs)
    assert len(ranking)
    assert set(ranking) <= set(stock_candidates(LINEAR_BF16, H200, configs))
    assert list(rank(heuristic, PROBLEM, configs, limit=1)) == list(ranking[:1])
    exchanged = configs.take(np.flatnonzero(configs.columns.swap_ab))
    assert len(rank(heuristic, PROBLEM, exchanged)) == 0


@pytest.mark.parametrize(
    ("text", "extents", "mean"),
    [
        ("bf16:rcr:row-groups", "32x2048x4096x4096", "32x64x4096x4096"),
        ("bf16:crr:k-groups", "4x4096x4096x1024", "4x4096x4096x256"),
    ],
)
def test_the_library_is_asked_for_groups_as_for_a_batch_of_their_mean(
    text: str, extents: str, mean: str
) -> None:
    pytest.importorskip("nvMatmulHeuristics")
    grouped = GemmProblem.parse(extents, GemmOperands.parse(text))
    batch = GemmProblem.parse(mean, grouped.operands.grouped(""))
    ranking = rank(NvMatmulHeuristic(H200), grouped, candidates(grouped, H200))
    every = candidates(batch, H200)
    expected = [it for it in rank(NvMatmulHeuristic(H200), batch, every) if it in set(ranking)]
    assert expected
    assert list(ranking) == expected


@pytest.mark.parametrize("text", ["int8:rcr>int32", "e4m3:rcr>bf16", "bf16xint8:rcr"])
def test_the_library_proposes_nothing_of_what_it_does_not_model(text: str) -> None:
    problem = replace(PROBLEM, operands=GemmOperands.parse(text))
    assert precision(problem.operands) is None
    configs = candidates(problem, H200)
    assert len(rank(NvMatmulHeuristic(H200), problem, configs)) == 0
