"""Which candidates of a problem are worth measuring: what a model likes, what is near, and chance.

Measuring every candidate is what makes data dear, and most of them teach nothing that their
neighbours did not. A random share keeps the data honest where the model is wrong, and the stock
configs are measured so that what chooses among them can be scored.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilecast.heuristics.config import Candidates, ConfigColumns
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.heuristic import Heuristic, rank
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import stock_candidates
from tilecast.models.runtime.unmeasured import AnalyticOrder

KNOBS = (
    "tile_m",
    "tile_n",
    "tile_k",
    "cluster_m",
    "cluster_n",
    "ctas_per_sm",
    "raster_m",
    "swizzle",
    "swap_ab",
    "split_k",
    "ping_pong",
)
"""What is turned to come from one config to another. Stages and warp groups follow from these, or
are left alone: configs that differ in them alone are neighbours, too."""


@dataclass(frozen=True)
class Guided:
    """Chooses some of a problem's candidates; see `tilecast.data_collection.run.collect`."""

    heuristic: Heuristic
    """Who says what is likely fast."""
    hardware: Hardware
    """The GPU that is measured."""
    first: int = 64
    """Of its ranking, all of the first so many."""
    best: int = 8
    """Of these the first so many have their neighbours measured, too."""
    neighbours: int = 16
    """Most of these, as the heuristic ranks them."""
    new: int = 48
    """Of each family that it does not know and ranks nothing of, the first so many by the analytic
    time; with 0 nothing of such a family is measured."""
    chance: int = 16
    """Of all others that it may rank, drawn anew for each problem and the same in every run."""

    def __call__(self, problem: GemmProblem, candidates: Candidates) -> Candidates:
        """The candidates to measure, in the order in which they were given."""
        ranking = rank(self.heuristic, problem, candidates)
        order = np.array([candidates.index(config) for config in ranking], np.intp)
        rest = order[self.first :]
        near = rest[_beside(candidates.columns, order[: self.best])[rest]][: self.neighbours]
        stock = stock_candidates(problem.operands, self.hardware, candidates)
        chosen = {*order[: self.first].tolist(), *near.tolist(), *map(candidates.index, stock)}
        known = {config.family for config in ranking}
        unknown = [i for i, config in enumerate(candidates) if config.family not in known]
        others = sorted(set(range(len(candidates))) - chosen - set(unknown))
        drawn = random.Random(f"guided {problem}").sample(others, min(self.chance, len(others)))
        return candidates.take(sorted({*chosen, *drawn, *self._new(problem, candidates, unknown)}))

    def _new(
        self, problem: GemmProblem, candidates: Candidates, places: Sequence[int]
    ) -> Iterator[int]:
        """The places of the first of each family among those at some places."""
        taken = Counter[str]()
        order = AnalyticOrder(self.hardware).rank(problem, candidates.take(places))
        for config in order:
            taken[config.family] += 1
            if taken[config.family] <= self.new:
                yield candidates.index(config)


def _beside(columns: ConfigColumns, places: np.ndarray) -> np.ndarray:
    """Which configs differ from one of those at some places in one knob at most; bool [configs]."""
    knobs = np.stack([getattr(columns, name) for name in KNOBS])
    differing = (knobs[:, :, None] != knobs[:, None, places]).sum(0)
    return (differing <= 1).any(1)
