"""Which candidates of a problem are worth measuring: what a model likes, what is near, and chance.

Measuring every candidate is what makes data dear, and most of them teach nothing that their
neighbours did not. A random share keeps the data honest where the model is wrong, and the stock
configs are measured so that what chooses among them can be scored.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from tilecast.heuristics.config import Candidates, ConfigColumns
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.heuristic import Heuristic, rank
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import stock_candidates

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
    chance: int = 16
    """Of all others, drawn anew for each problem and the same in every run."""

    def __call__(self, problem: GemmProblem, candidates: Candidates) -> Candidates:
        """The candidates to measure, in the order in which they were given."""
        ranking = rank(self.heuristic, problem, candidates)
        order = np.array([candidates.index(config) for config in ranking], np.intp)
        rest = order[self.first :]
        near = rest[_beside(candidates.columns, order[: self.best])[rest]][: self.neighbours]
        stock = stock_candidates(problem.operands, self.hardware, candidates)
        chosen = {*order[: self.first].tolist(), *near.tolist(), *map(candidates.index, stock)}
        others = sorted(set(range(len(candidates))) - chosen)
        drawn = random.Random(f"guided {problem}").sample(others, min(self.chance, len(others)))
        return candidates.take(sorted({*chosen, *drawn}))


def _beside(columns: ConfigColumns, places: np.ndarray) -> np.ndarray:
    """Which configs differ from one of those at some places in one knob at most; bool [configs]."""
    knobs = np.stack([getattr(columns, name) for name in KNOBS])
    differing = (knobs[:, :, None] != knobs[:, None, places]).sum(0)
    return (differing <= 1).any(1)
