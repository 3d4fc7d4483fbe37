"""From measurements to what a heuristic is trained on and scored by.

A problem has two times for each config and regime: a label to learn from (``race``, else
``screen``) and the truth to be scored by (``verify``, else ``race``, else ``screen``). A config
that the exact passes saw in the other regime only, or not at all, gets its next best time, brought
to level by the problem's own median ratio between the two; so every config has a time for every
regime.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, cast

import numpy as np

from tilecast.data_collection.dataset import Dataset, is_reference, problem_of
from tilecast.data_collection.measurement import REGIMES
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import GemmProblem

if TYPE_CHECKING:
    import pandas as pd

POWERS: tuple[str, ...] = (*REGIMES, "robust")
"""What a ranking may aim at: the best time in one regime, or the smallest worst case over both."""

_PROBLEM_COLUMNS = ["m", "n", "k", "batch", "dtype", "out_dtype", "layout"]


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
class ProblemLabels:
    """The configs of one problem that ran, with their times."""

    problem: GemmProblem
    """What was multiplied."""
    configs: tuple[KernelConfig, ...]
    """Every config with a time and no failure, sorted."""
    label: dict[str, np.ndarray]
    """Regime to microseconds of each config, to learn from; float64."""
    truth: dict[str, np.ndarray]
    """Regime to microseconds of each config, to be scored by; float64."""

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

    def noise_floor(self, power: str) -> float:
        """Regret, by the truth, of the config that is best by the labels.

        No selector that learns from these labels can be expected to stay below it.
        """
        best = int(np.argmin(self.cost(power)))
        return float(self.slowdown(power, truth=True)[best]) - 1


def label_table(dataset: Dataset) -> list[ProblemLabels]:
    """Gather the labels of every problem, sorted by extents, dtypes and layout.

    A config that failed once on a problem, in whatever pass, is left out of that problem. Repeated
    measurements of one pass count by their median.

    Raises:
        TilecastError: no config of the data set has a time.
    """
    rows = dataset.rows.loc[~is_reference(dataset.rows)]
    times = _median_times(rows)
    names = times.index.get_level_values("config")
    parsed = {name: KernelConfig.parse(name) for name in names.unique()}
    groups = times.groupby(level=_PROBLEM_COLUMNS, observed=True)
    table = [_problem_labels(cast("tuple", key), group, parsed) for key, group in groups]
    if not table:
        raise TilecastError(
            "the data set has no config with a time; allowed: at least one measured problem; "
            "run `tilecast collect`"
        )
    return table


def _median_times(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per (problem, config) that never failed, one column per (regime, pass)."""
    keys = [*_PROBLEM_COLUMNS, "config"]
    flagged = rows.assign(failed=rows["failure"].notna())
    failed = flagged.groupby(keys, observed=True, sort=False)["failed"].transform("any")
    groups = rows.loc[~failed].groupby([*keys, "regime", "stage"], observed=True, sort=False)
    medians = groups["microseconds"].median().unstack(["regime", "stage"])
    return cast("pd.DataFrame", medians)


def _problem_labels(
    key: tuple, times: pd.DataFrame, parsed: dict[str, KernelConfig]
) -> ProblemLabels:
    configs = [parsed[name] for name in times.index.get_level_values("config")]
    order = sorted(range(len(configs)), key=configs.__getitem__)

    def complete(regime: str, exact: tuple[str, ...]) -> np.ndarray:
        other = REGIMES[1 - REGIMES.index(regime)]
        chain = [(r, stage) for r in (regime, other) for stage in exact]
        chain += [(regime, "screen"), (other, "screen")]
        measured = [
            times[column].to_numpy(np.float64)[order] for column in chain if column in times
        ]
        return reduce(_filled, measured)

    return ProblemLabels(
        problem_of(*key),
        tuple(configs[i] for i in order),
        {regime: complete(regime, ("race",)) for regime in REGIMES},
        {regime: complete(regime, ("verify", "race")) for regime in REGIMES},
    )


def _filled(times: np.ndarray, other: np.ndarray) -> np.ndarray:
    """``times`` with its gaps taken from ``other``, scaled by the median ratio where both have one.

    The card is warmer or cooler in another pass or regime; the ratio takes that out of the
    comparison.
    """
    both = ~np.isnan(times) & ~np.isnan(other)
    ratio = float(np.median(times[both] / other[both])) if both.any() else 1.0
    return np.where(np.isnan(times), other * ratio, times)
