"""Baselines that need no fitting."""

from __future__ import annotations

import random

from tilecast.heuristics.candidates import Candidates
from tilecast.heuristics.problem import GemmProblem


class RandomChoice:
    """Any order, the same for the same problem."""

    name = "random"

    def __init__(self, power: str = "robust", *, seed: int = 0):
        """Store the settings.

        Args:
            power: makes no difference.
            seed: another one is another order.
        """
        self.power = power
        self.seed = seed

    def rank(
        self, problem: GemmProblem, candidates: Candidates, *, limit: int | None = None
    ) -> Candidates:
        """Shuffle the candidates."""
        count = min(len(candidates), limit or len(candidates))
        shuffled = random.Random(f"{self.seed} {problem}").sample(range(len(candidates)), count)
        return candidates.take(shuffled)
