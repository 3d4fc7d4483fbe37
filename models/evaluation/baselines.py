"""The heuristics that a learned one has to beat, behind the same contract."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Self

import numpy as np

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.config_table import Candidates
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.quack_sm90.stock import stock_candidates
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.runtime.fitted import check_fitted


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


@dataclass(eq=False)
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


@dataclass(eq=False)
class BestFixedSubset:
    """The same kernels for every problem of some operands, chosen greedily for those in training.

    Attributes:
        subsets_: operands to configs in the order in which they were chosen.
    """

    name = "best fixed subset"

    power: str = "robust"
    """Whose cost to minimise."""
    size: int = 64
    """Configs to choose; more than are asked for, since not all suit every problem."""

    def fit(self, table: Sequence[ProblemLabels]) -> Self:
        """Choose one config after another, each the one that lowers the geometric mean regret most.

        A config that a problem was not measured with counts there as the slowest that was.
        """
        kinds = dict.fromkeys(labels.problem.operands for labels in table)
        self.subsets_ = {
            kind: self._chosen([one for one in table if one.problem.operands == kind])
            for kind in kinds
        }
        return self

    def _chosen(self, table: Sequence[ProblemLabels]) -> list[KernelConfig]:
        found = {config for labels in table for config in labels.configs}
        configs = sorted(found, key=lambda config: (config.family, config))
        index = {config: i for i, config in enumerate(configs)}
        slowdown = np.empty((len(table), len(configs)))
        for row, labels in zip(slowdown, table, strict=True):
            cost = np.log(labels.cost(self.power))
            row[:] = cost.max() - cost.min()
            row[[index[config] for config in labels.configs]] = cost - cost.min()
        best = slowdown.max(axis=1, keepdims=True)
        subset = []
        chosen = np.zeros(len(configs), bool)
        for _ in range(min(self.size, len(configs))):
            regret = np.minimum(best, slowdown).sum(axis=0)
            choice = int(np.where(chosen, np.inf, regret).argmin())
            chosen[choice] = True
            best = np.minimum(best, slowdown[:, [choice]])
            subset.append(configs[choice])
        return subset

    def rank(
        self, problem: GemmProblem, candidates: Candidates, *, limit: int | None = None
    ) -> Candidates:
        """The configs of its operands' subset that are candidates, in the order of choice.

        Raises:
            NotFittedError: `fit` has not been called.
        """
        check_fitted(self, "subsets_")
        return candidates.select(self.subsets_.get(problem.operands, ()))[:limit]


@dataclass(eq=False)
class NearestNeighbour:
    """The ranking of the training problem of its operands that lies nearest in log(m, n, k).

    Attributes:
        operands_: of each problem.
        points_: float64 [problems, 3], log2 of m, n, k.
        rankings_: configs of each problem, best first.
    """

    name = "nearest neighbour"

    power: str = "robust"
    """Whose cost orders the neighbour's configs."""

    def fit(self, table: Sequence[ProblemLabels]) -> Self:
        """Remember every problem and its ranking."""
        self.operands_ = [labels.problem.operands for labels in table]
        self.points_ = np.array([_point(labels.problem) for labels in table])
        self.rankings_ = [
            [labels.configs[i] for i in np.argsort(labels.cost(self.power), kind="stable")]
            for labels in table
        ]
        return self

    def rank(
        self, problem: GemmProblem, candidates: Candidates, *, limit: int | None = None
    ) -> Candidates:
        """The nearest problem's configs that are candidates, then those of the next nearest.

        Raises:
            NotFittedError: `fit` has not been called.
        """
        check_fitted(self, "rankings_")
        limit = limit or len(candidates)
        distance = np.linalg.norm(self.points_ - _point(problem), axis=1)
        # A dict keeps what came first and forgets repeats.
        chosen: dict[KernelConfig, None] = {}
        for neighbour in np.argsort(distance, kind="stable").tolist():
            if self.operands_[neighbour] != problem.operands:
                continue
            ranking = (c for c in self.rankings_[neighbour] if c in candidates and c not in chosen)
            chosen |= dict.fromkeys(islice(ranking, limit - len(chosen)))
            if len(chosen) == limit:
                break
        return candidates.select(chosen)


def _point(problem: GemmProblem) -> tuple[float, float, float]:
    return math.log2(problem.m), math.log2(problem.n), math.log2(problem.k)
