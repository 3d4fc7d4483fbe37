"""The contract of heuristics: an ordered subset of what was given, and no more than asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.heuristic import rank
from tilecast.heuristics.problem import GemmProblem

PROBLEM = GemmProblem(16, 64, 64)
CANDIDATES = tuple(KernelConfig(64, 64, 64, stages=stages) for stages in (2, 3, 4, 5))
STRANGER = KernelConfig(256, 256, 128)


@dataclass
class Answers:
    """Gives one answer whatever it is asked."""

    answer: Sequence[KernelConfig]
    name: str = "fixed"

    def rank(
        self, problem: GemmProblem, candidates: Sequence[KernelConfig], *, limit: int | None = None
    ) -> list[KernelConfig]:
        return list(self.answer)


@pytest.mark.parametrize("answer", [(), CANDIDATES, CANDIDATES[::-1], CANDIDATES[1:3]])
def test_ordered_subset_is_passed_on_in_its_order(answer: tuple[KernelConfig, ...]) -> None:
    assert rank(Answers(answer), PROBLEM, CANDIDATES) == list(answer)


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(TilecastError, match=rf"limit {limit} is out of range; allowed: 1 or more"):
        rank(Answers(CANDIDATES), PROBLEM, CANDIDATES, limit=limit)


def test_stranger_is_refused() -> None:
    heuristic = Answers((CANDIDATES[0], STRANGER))
    with pytest.raises(TilecastError, match=f"'fixed' proposed {STRANGER}, which is no candidate"):
        rank(heuristic, PROBLEM, CANDIDATES)


def test_repeat_is_refused() -> None:
    with pytest.raises(TilecastError, match="returned 2 configs, 1 of them distinct; allowed: "):
        rank(Answers((CANDIDATES[0], CANDIDATES[0])), PROBLEM, CANDIDATES)


def test_more_than_the_limit_is_refused() -> None:
    with pytest.raises(TilecastError, match="returned 4 configs, .* allowed: at most 3, each once"):
        rank(Answers(CANDIDATES), PROBLEM, CANDIDATES, limit=3)
    assert len(rank(Answers(CANDIDATES), PROBLEM, CANDIDATES, limit=4)) == 4
