"""Which candidates of a problem are worth measuring: what a model likes, what is near, and chance.

Measuring every candidate is what makes data dear, and most of them teach nothing that their
neighbours did not. A random share keeps the data honest where the model is wrong, and the stock
configs are measured so that what chooses among them can be scored.
"""

from __future__ import annotations

import random
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from tilecast.heuristics.candidates import Candidates, ConfigColumns
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.heuristic import Heuristic, rank
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.quack_sm90.stock import stock_candidates
from tilecast.models.artifact import Artifact, load_shipped, shipped_names
from tilecast.models.manifest import HARDWARE_FIELDS

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
    """Chooses some of a problem's candidates; see `tilecast.data_collection.collect`."""

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


def nearest_shipped(gpu: Hardware) -> Artifact | None:
    """The shipped model that knows most of a GPU, as if it were for that; None without any.

    It is that of the nearest of `known_gpus`. Its features are computed from the figures of the GPU
    that is asked about: so far as these explain a time, it holds there, too.
    """
    known = known_gpus(gpu)
    return lent(load_shipped(known[0]), gpu) if known else None


def lent(artifact: Artifact, gpu: Hardware) -> Artifact:
    """A model of another GPU as if it were for this one."""
    rankers = {power: copy(ranker) for power, ranker in artifact.rankers.items()}
    for ranker in rankers.values():
        ranker.hardware = gpu
    return replace(artifact, hardware=gpu, rankers=rankers)


def known_gpus(gpu: Hardware) -> list[Hardware]:
    """Those that a model is shipped for and that run the same code, by how near they are to one."""
    rivals = [one for one in map(hardware, shipped_names()) if one.arch == gpu.arch]
    return sorted(rivals, key=lambda one: _distance(one, gpu))


def _distance(one: Hardware, other: Hardware) -> float:
    """How far two GPUs are from each other: the sum of the logarithms of their figures' ratios."""
    pairs = (np.hstack([getattr(gpu, name) for name in HARDWARE_FIELDS]) for gpu in (one, other))
    first, second = (np.log1p(figures.astype(np.float64)) for figures in pairs)
    return float(np.abs(first - second).sum())
