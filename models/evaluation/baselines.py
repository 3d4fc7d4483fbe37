"""The heuristics that a learned one has to beat, behind the same contract."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from tilecast.heuristics.config import Candidates, KernelConfig
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import stock_candidates
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.runtime.objectives import ROBUST

SUBSET = 64
"""Configs of a fixed subset; more than are asked for, since not all suit every problem."""


@dataclass(frozen=True)
class RandomChoice:
    """Any order, the same for the same problem."""

    name = "random"

    def rank(
        self, problem: GemmProblem, candidates: Candidates, *, limit: int | None = None
    ) -> Candidates:
        """Shuffle the candidates."""
        count = min(len(candidates), limit or len(candidates))
        return candidates.take(random.Random(f"0 {problem}").sample(range(len(candidates)), count))


@dataclass(frozen=True)
class StockDefault:
    """The stock kernels in listing order: what PyTorch takes without nvMatmulHeuristics."""

    name = "default config"

    hardware: Hardware
    """The GPU, for the stages that fit."""

    def rank(
        self, problem: GemmProblem, candidates: Candidates, *, limit: int | None = None
    ) -> Candidates:
        """The candidates that are stock configs, in the order of `stock_configs`."""
        found = stock_candidates(problem.operands, self.hardware, candidates)
        return candidates.select(found)[:limit]


@dataclass(frozen=True, eq=False)
class FixedSubset:
    """The same kernels for every problem of some operands, chosen greedily in training."""

    name = "best fixed subset"

    subsets: Mapping[GemmOperands, Sequence[KernelConfig]]
    """Configs in the order in which they were chosen."""

    def rank(
        self, problem: GemmProblem, candidates: Candidates, *, limit: int | None = None
    ) -> Candidates:
        """The configs of its operands' subset that are candidates, in the order of choice."""
        return candidates.select(self.subsets.get(problem.operands, ()))[:limit]


def fit_fixed_subset(table: Sequence[ProblemLabels], objective: str = ROBUST) -> FixedSubset:
    """Choose one config after another, each the one that lowers the geometric mean regret most.

    A config that a problem was not measured with counts there as the slowest that was.
    """
    kinds = dict.fromkeys(labels.problem.operands for labels in table)
    return FixedSubset(
        {
            kind: _chosen([one for one in table if one.problem.operands == kind], objective)
            for kind in kinds
        }
    )


def _chosen(table: Sequence[ProblemLabels], objective: str) -> list[KernelConfig]:
    found = {config for labels in table for config in labels.configs}
    configs = sorted(found, key=lambda config: (config.family, config))
    index = {config: i for i, config in enumerate(configs)}
    slowdown = np.empty((len(table), len(configs)))
    for row, labels in zip(slowdown, table, strict=True):
        cost = np.log(labels.cost(objective))
        row[:] = cost.max() - cost.min()
        row[[index[config] for config in labels.configs]] = cost - cost.min()
    best = slowdown.max(axis=1, keepdims=True)
    subset = []
    chosen = np.zeros(len(configs), bool)
    for _ in range(min(SUBSET, len(configs))):
        regret = np.minimum(best, slowdown).sum(axis=0)
        choice = int(np.where(chosen, np.inf, regret).argmin())
        chosen[choice] = True
        best = np.minimum(best, slowdown[:, [choice]])
        subset.append(configs[choice])
    return subset


@dataclass(frozen=True, eq=False)
class NearestNeighbour:
    """The ranking of the training problem of its operands that lies nearest in log(m, n, k)."""

    name = "nearest neighbour"

    operands: Sequence[GemmOperands]
    """Of each problem in training."""
    points: np.ndarray
    """float64 [problems, 3]: log2 of m, n, k."""
    rankings: Sequence[Sequence[KernelConfig]]
    """Configs of each problem, best first."""

    def rank(
        self, problem: GemmProblem, candidates: Candidates, *, limit: int | None = None
    ) -> Candidates:
        """The nearest problem's configs that are candidates, then those of the next nearest."""
        limit = limit or len(candidates)
        distance = np.linalg.norm(self.points - _point(problem), axis=1)
        # A dict keeps what came first and forgets repeats.
        chosen: dict[KernelConfig, None] = {}
        for neighbour in np.argsort(distance, kind="stable").tolist():
            if self.operands[neighbour] != problem.operands:
                continue
            ranking = (c for c in self.rankings[neighbour] if c in candidates and c not in chosen)
            chosen |= dict.fromkeys(islice(ranking, limit - len(chosen)))
            if len(chosen) == limit:
                break
        return candidates.select(chosen)


def fit_nearest(table: Sequence[ProblemLabels], objective: str = ROBUST) -> NearestNeighbour:
    """Remember every problem and its ranking."""
    return NearestNeighbour(
        [labels.problem.operands for labels in table],
        np.array([_point(labels.problem) for labels in table]),
        [
            [labels.configs[i] for i in np.argsort(labels.cost(objective), kind="stable")]
            for labels in table
        ],
    )


def _point(problem: GemmProblem) -> tuple[float, float, float]:
    return math.log2(problem.m), math.log2(problem.n), math.log2(problem.k)
