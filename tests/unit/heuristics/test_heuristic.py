"""The contract of heuristics: an ordered subset of what was given, and no more than asked for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tilecast.heuristics.config import Candidates
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.heuristic import rank
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import config_table
from tilecast.kernels.quack_sm90.config import QuackConfig

PROBLEM = GemmProblem(16, 64, 64)
TABLE = config_table(
    (QuackConfig(64, 64, 64, stages=stages) for stages in range(2, 8)), LINEAR_BF16
)
CANDIDATES = TABLE.all()[:4]
STRANGER = TABLE.configs[4]
OTHER = config_table(TABLE.configs, LINEAR_BF16)


@dataclass
class Answers:
    """Gives one answer whatever it is asked."""

    answer: Candidates
    name: str = "fixed"

    def rank(
        self, problem: GemmProblem, candidates: Candidates, *, limit: int | None = None
    ) -> Candidates:
        return self.answer


@pytest.mark.parametrize("rows", [(), (0, 1, 2, 3), (3, 2, 1, 0), (1, 2)])
def test_ordered_subset_is_passed_on_in_its_order(rows: tuple[int, ...]) -> None:
    answer = TABLE.all().take(rows)
    assert rank(Answers(answer), PROBLEM, CANDIDATES) is answer


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(TilecastError, match=rf"limit {limit} is out of range; allowed: 1 or more"):
        rank(Answers(CANDIDATES), PROBLEM, CANDIDATES, limit=limit)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (TABLE.all().take([0, 4]), f"'fixed' proposed {STRANGER}, which is no candidate"),
        (OTHER.all()[:2], "'fixed' proposed another table, which is no candidate"),
        (TABLE.all().take([0, 0]), "returned 2 configs, 1 of them distinct; allowed: "),
        (CANDIDATES, "returned 4 configs, .* allowed: at most 3, each once"),
    ],
    ids=["stranger", "another table", "repeat", "too many"],
)
def test_what_is_no_ordered_subset_is_refused(answer: Candidates, told: str) -> None:
    with pytest.raises(TilecastError, match=told):
        rank(Answers(answer), PROBLEM, CANDIDATES, limit=3)
