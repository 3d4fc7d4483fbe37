"""What a heuristic is trained on and scored by: measured times, and the cost for an objective.

Which measurement counts is decided in `tilecast.data_collection.dataset.select_times`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilecast.data_collection.dataset.dataset import Dataset
from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.data_collection.dataset.select_times import MeasuredProblem, measured_problems
from tilecast.heuristics.config import Candidates, KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.candidates import config_table
from tilecast.models.runtime.objectives import ROBUST, regimes_of

MAX_K = 10
"""Largest number of kernels that regret is reported for."""
CLOSE = 0.02
"""Regret that counts as having found the best."""


@dataclass(frozen=True, eq=False)
class ProblemLabels(MeasuredProblem):
    """The configs of one problem that ran, with their times and what follows from these."""

    candidates: Candidates
    """The same configs, in the same order, as rows of a table that all problems share."""
    elsewhere: Hardware | None = None
    """The GPU that it was measured on, where that is not the one that a model is for: such labels
    are learned from, and nothing is scored by them."""

    def cost(self, objective: str, *, truth: bool = False) -> np.ndarray:
        """What ``objective`` asks to minimise, of each config.

        Args:
            objective: one of `tilecast.models.runtime.objectives.OBJECTIVES`.
            truth: take the times for scoring instead of those for learning.

        Returns:
            Microseconds for a regime; for ``robust`` the worse of the slowdowns against the best
            config of each regime, 1 or more.
        """
        times = self.truth if truth else self.label
        if objective != ROBUST:
            return times[objective]
        return np.maximum.reduce([times[regime] / times[regime].min() for regime in REGIMES])

    def log_times(self) -> np.ndarray:
        """Log of the microseconds to learn from; float64 [configs, regimes], as in `REGIMES`."""
        return np.log(np.stack([self.label[regime] for regime in REGIMES], axis=1))

    def slowdown(self, objective: str, *, truth: bool = False) -> np.ndarray:
        """Cost of each config over that of the best one; 1 or more."""
        cost = self.cost(objective, truth=truth)
        return cost / cost.min()

    def library_over(self, objective: str) -> np.ndarray:
        """Time of cuBLAS over that of each config, by the truth.

        For ``robust`` in the regime where that is less. NaN where cuBLAS was not timed.
        """
        asked = regimes_of(objective)
        return np.minimum.reduce([self.reference[one] / self.truth[one] for one in asked])

    def regret(self, objective: str, picks: Sequence[int]) -> np.ndarray:
        """Best of the first k picks over the oracle, less 1, for each k up to `MAX_K`.

        Fewer picks than k are scored by what there is; of none, all are NaN.
        """
        if not len(picks):
            return np.full(MAX_K, np.nan)
        times = self.slowdown(objective, truth=True)[list(picks[:MAX_K])]
        best = np.minimum.accumulate(times)
        return np.pad(best, (0, MAX_K - len(best)), mode="edge") - 1

    def noise_floor(self, objective: str) -> float:
        """Regret, by the truth, of the config that is best by the labels.

        No selector that learns from these labels can be expected to stay below it.
        """
        best = int(np.argmin(self.cost(objective)))
        return float(self.slowdown(objective, truth=True)[best]) - 1


def spread(regret: np.ndarray) -> dict[str, float]:
    """Geometric mean, 95th percentile and maximum of the regret of some problems."""
    return {
        "geomean": float(np.expm1(np.log1p(regret).mean())),
        "p95": float(np.percentile(regret, 95)),
        "max": float(regret.max()),
    }


def spread_and_share(regret: np.ndarray) -> dict[str, float]:
    """The same, and ``within_2_percent``: the share with a regret of at most `CLOSE`."""
    return {**spread(regret), "within_2_percent": float((regret <= CLOSE).mean())}


def noise_floor(table: Sequence[ProblemLabels], objective: str) -> dict[str, float]:
    """Regret of the configs that are best by the labels: what knowing these exactly scores."""
    return spread_and_share(np.array([labels.noise_floor(objective) for labels in table]))


def label_table(dataset: Dataset, elsewhere: Hardware | None = None) -> list[ProblemLabels]:
    """Gather the labels of every problem, sorted by extents and operands.

    Args:
        dataset: the measurements.
        elsewhere: the GPU that they are of, where a model of another one is to learn from them.

    Raises:
        TilecastError: no config of the data set has a time to learn from.
    """
    found = measured_problems(dataset.rows)
    if not found:
        raise TilecastError(
            "the data set has no config with a time to learn from; allowed: at least one problem "
            "that was screened or raced; run `tilecast collect`"
        )
    timed: dict[GemmOperands, dict[KernelConfig, None]] = {}
    for one in found:
        timed.setdefault(one.problem.operands, {}).update(dict.fromkeys(one.configs))
    whole = {operands: config_table(configs, operands).all() for operands, configs in timed.items()}
    return [
        ProblemLabels(
            **vars(one),
            candidates=whole[one.problem.operands].select(one.configs),
            elsewhere=elsewhere,
        )
        for one in found
    ]
