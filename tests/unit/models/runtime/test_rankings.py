"""The shipped model ranks as it did when its first answers were written down.

Another feature, tree or step of the cascade shows here, and another order of candidates. A model
that was trained on other data ranks otherwise: then `data/rankings.json` is written anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.models.runtime.learned import LearnedHeuristic, load_heuristic
from tilecast.models.runtime.objectives import OBJECTIVES

H200 = hardware("H200")
RECORD = json.loads(Path(__file__).parents[2].joinpath("data", "rankings.json").read_text())


@pytest.fixture(scope="module")
def shipped() -> LearnedHeuristic:
    return load_heuristic(H200, LINEAR_BF16)


@pytest.mark.parametrize("power", OBJECTIVES)
def test_the_first_ten_of_a_hundred_problems_are_as_recorded(
    shipped: LearnedHeuristic, power: str
) -> None:
    heuristic = LearnedHeuristic(shipped.artifact, power)
    changed = []
    for extents, recorded in zip(RECORD["problems"], RECORD["rankings"][power], strict=True):
        problem = GemmProblem(*extents)
        ranking = heuristic.rank(problem, candidates(problem, H200), limit=10)
        if [config.name for config in ranking] != [RECORD["configs"][i] for i in recorded]:
            changed.append(str(problem))
    assert len(RECORD["problems"]) == 100
    assert changed == []
