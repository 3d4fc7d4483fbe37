"""The contract of everything that orders candidates, and the check that it was kept."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from tilecast.heuristics.config import Candidates
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import GemmProblem


class Heuristic(Protocol):
    """Orders candidates best first."""

    name: str
    """Short key, used in tables."""

    def rank(
        self, problem: GemmProblem, candidates: Candidates, *, limit: int | None = None
    ) -> Candidates:
        """Order candidates by expected run time.

        Args:
            problem: what is to be multiplied.
            candidates: configs that are valid for it.
            limit: how many the caller wants; all when left out.

        Returns:
            An ordered subset of ``candidates``, best first, at most ``limit`` long: a heuristic
            prunes and never invents.
        """
        ...


def rank(
    heuristic: Heuristic,
    problem: GemmProblem,
    candidates: Candidates,
    *,
    limit: int | None = None,
) -> Candidates:
    """Ask a heuristic and check that its answer is an ordered subset of ``candidates``.

    Raises:
        TilecastError: ``limit`` is below 1, or the answer has a stranger, a repeat or too many.
    """
    if limit is not None and limit < 1:
        raise TilecastError(f"limit {limit} is out of range; allowed: 1 or more")
    ranking = heuristic.rank(problem, candidates, limit=limit)
    proposed = np.unique(ranking.rows)
    strangers = np.setdiff1d(proposed, candidates.rows, assume_unique=True)
    if ranking.table is not candidates.table or len(strangers):
        stranger = ranking.table.configs[strangers[0]] if len(strangers) else "another table"
        raise TilecastError(
            f"heuristic {heuristic.name!r} proposed {stranger}, which is no candidate for "
            f"{problem}; allowed: an ordered subset of what it was given; fix the heuristic"
        )
    if len(proposed) < len(ranking) or (limit is not None and len(ranking) > limit):
        raise TilecastError(
            f"heuristic {heuristic.name!r} returned {len(ranking)} configs, {len(proposed)} of "
            f"them distinct; allowed: at most {limit or len(candidates)}, each once; "
            "fix the heuristic"
        )
    return ranking
