"""Baselines that need no fitting."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tilecast.heuristics.config_table import Candidates
from tilecast.heuristics.problem import GemmProblem


@dataclass(frozen=True)
class RandomChoice:
    """Any order, the same for the same problem."""

    name = "random"
    power: str = "robust"
    """Makes no difference."""
    seed: int = 0
    """Another one is another order."""

    def rank(
        self, problem: GemmProblem, candidates: Candidates, *, limit: int | None = None
    ) -> Candidates:
        """Shuffle the candidates."""
        count = min(len(candidates), limit or len(candidates))
        shuffled = random.Random(f"{self.seed} {problem}").sample(range(len(candidates)), count)
        return candidates.take(shuffled)
