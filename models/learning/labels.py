"""What a heuristic is trained on and scored by: the measured times, and what a power makes of them.

Which measurement counts is decided in `tilecast.data_collection.dataset.select_times`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilecast.data_collection.dataset.dataset import Dataset
from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.data_collection.dataset.select_times import MeasuredProblem, measured_problems
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.config_table import Candidates
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.candidates import config_table

POWERS: tuple[str, ...] = (*REGIMES, "robust")
"""What a ranking may aim at: the best time in one regime, or the smallest worst case over both."""


def check_power(power: str) -> str:
    """Return ``power`` if it is one of `POWERS`.

    Raises:
        TilecastError: it is not.
    """
    if power not in POWERS:
        raise TilecastError(
            f"power {power!r} is not known; allowed: {', '.join(POWERS)}; "
            "use robust when you cannot tell how hot the card will run"
        )
    return power


@dataclass(frozen=True, eq=False)
class ProblemLabels(MeasuredProblem):
    """The configs of one problem that ran, with their times and what follows from these."""

    candidates: Candidates
    """The same configs, in the same order, as rows of a table that all problems share."""
    elsewhere: Hardware | None = None
    """The GPU that it was measured on, where that is not the one that a model is for: such labels
    are learned from, and nothing is scored by them."""

    def cost(self, power: str, *, truth: bool = False) -> np.ndarray:
        """What ``power`` asks to minimise, of each config.

        Args:
            power: one of `POWERS`.
            truth: take the times for scoring instead of those for learning.

        Returns:
            Microseconds for a regime; for ``robust`` the worse of the slowdowns against the best
            config of each regime, 1 or more.
        """
        times = self.truth if truth else self.label
        if power != "robust":
            return times[power]
        return np.maximum.reduce([times[regime] / times[regime].min() for regime in REGIMES])

    def slowdown(self, power: str, *, truth: bool = False) -> np.ndarray:
        """Cost of each config over that of the best one; 1 or more."""
        cost = self.cost(power, truth=truth)
        return cost / cost.min()

    def library_over(self, power: str) -> np.ndarray:
        """The library's time over that of each config, by the truth.

        For ``robust`` in the regime where that is less. NaN where the library was not timed.
        """
        asked = REGIMES if power == "robust" else (power,)
        return np.minimum.reduce([self.reference[one] / self.truth[one] for one in asked])

    def noise_floor(self, power: str) -> float:
        """Regret, by the truth, of the config that is best by the labels.

        No selector that learns from these labels can be expected to stay below it.
        """
        best = int(np.argmin(self.cost(power)))
        return float(self.slowdown(power, truth=True)[best]) - 1


def label_table(dataset: Dataset, elsewhere: Hardware | None = None) -> list[ProblemLabels]:
    """Gather the labels of every problem, sorted by extents and operands.

    Args:
        dataset: the measurements.
        elsewhere: the GPU that they are of, where a model of another one is to learn from them.

    Raises:
        TilecastError: no config of the data set has a time to learn from.
    """
    found = measured_problems(dataset.columns())
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
