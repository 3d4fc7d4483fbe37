"""Which of several measurements of a config counts: one time to learn from, and one to score by.

Labels, scores and what commands show come from here. A config that failed once on a problem, in any
pass, is left out of that problem. Repeated measurements of one pass count by their median.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import compress
from statistics import median
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tilecast.data_collection.dataset.columns import each
from tilecast.data_collection.dataset.measurement import PASSES, REFERENCE, REGIMES
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem
from tilecast.kernels.families import parse_config

if TYPE_CHECKING:
    import pandas as pd

SAME, OTHER = 0, 1
LABEL = ((SAME, "race"), (OTHER, "race"), (SAME, "screen"), (OTHER, "screen"))
"""Where the time to learn from comes from, first choice first: this regime or the other, and which
pass. The screen comes last, since the other regime's race orders the best configs better."""
SCORE = (
    (SAME, "verify"),
    (SAME, "race"),
    (OTHER, "verify"),
    (OTHER, "race"),
    (SAME, "screen"),
    (OTHER, "screen"),
)
"""The same for the time to score by."""


@dataclass(frozen=True, eq=False)
class MeasuredProblem:
    """What was measured for one problem: every config has a time in every regime."""

    problem: GemmProblem
    """What was multiplied."""
    configs: tuple[KernelConfig, ...]
    """The configs that never failed, sorted."""
    label: dict[str, np.ndarray]
    """Regime to microseconds of each config, to learn from; float64."""
    truth: dict[str, np.ndarray]
    """Regime to microseconds of each config, to be scored by; float64."""
    reference: dict[str, float]
    """Regime to microseconds of PyTorch's kernel, scaled to the level of ``truth``; NaN if not
    measured."""


@dataclass(frozen=True)
class MeasuredTimes:
    """What was measured for one problem in one power regime, in microseconds."""

    times: Mapping[str, float]
    """Config name to run time."""
    best: str
    """The oracle: the fastest."""
    reference: float | None
    """Run time of PyTorch's kernel."""

    def slowdown(self, config: str) -> float | None:
        """Run time over the oracle's, less 1; None for a config without a time."""
        time = self.times.get(config)
        return None if time is None else time / self.times[self.best] - 1


def rows_of(rows: pd.DataFrame, problem: GemmProblem) -> pd.DataFrame:
    """The rows of one problem among those of a data set."""
    for name, value in zip(PROBLEM_FIELDS, problem.row(), strict=True):
        rows = cast("pd.DataFrame", rows[rows[name] == value])
    return rows


def measured_times(
    rows: Mapping[str, Sequence[Any]] | pd.DataFrame, problem: GemmProblem
) -> dict[str, MeasuredTimes]:
    """Regime to what was measured in it, by the rows of one problem; empty where there are none."""
    configs = _ordered(set(rows["config"]))
    places = _places(configs)
    config = np.array([places[name] for name in rows["config"]], np.int64)
    regime = np.array([*map(REGIMES.index, rows["regime"])], np.int64)
    stage = np.array([*map(PASSES.index, rows["stage"])], np.int64)
    microseconds = np.array(rows["microseconds"], np.float64)
    found = _measured(problem, configs, (regime, stage, config), microseconds)
    names = [config.name for config in found.configs]
    return {
        regime: MeasuredTimes(
            dict(zip(names, times.tolist(), strict=True)),
            names[int(times.argmin())],
            None if math.isnan(found.reference[regime]) else found.reference[regime],
        )
        for regime, times in found.truth.items()
        if names
    }


def measured_problems(rows: pd.DataFrame) -> list[MeasuredProblem]:
    """What was measured for every problem, sorted by extents and operands.

    A config that only ``verify`` timed is left out, as there is nothing to learn from, and so is a
    problem without configs.
    """
    configs = _ordered(rows["config"].unique())
    config = each(rows["config"], _places(configs).__getitem__)
    regime = each(rows["regime"], REGIMES.index)
    stage = each(rows["stage"], PASSES.index)
    microseconds = rows["microseconds"].to_numpy(np.float64)
    found = [
        _measured(problem, configs, (regime[at], stage[at], config[at]), microseconds[at])
        for problem, at in _by_problem(rows)
    ]
    return [problem for problem in found if problem.configs]


def _ordered(names: Iterable[str]) -> dict[str, KernelConfig]:
    """The tilecast kernels among some names of configs, by family and config."""
    parsed = {name: parse_config(name) for name in names if name != REFERENCE}
    return dict(sorted(parsed.items(), key=lambda item: (item[1].family, *item[::-1])))


def _places(configs: Iterable[str]) -> dict[str, int]:
    """Where each name stands; the reference comes last."""
    return {name: place for place, name in enumerate((*configs, REFERENCE))}


def _by_problem(rows: pd.DataFrame) -> Iterator[tuple[GemmProblem, np.ndarray]]:
    """Every problem in order, with the positions of its rows."""
    found: dict[Any, np.ndarray] = rows.groupby(list(PROBLEM_FIELDS), observed=True).indices
    for row in sorted(found):
        yield GemmProblem.from_row(row), found[row]


def _medians(
    cells: tuple[np.ndarray, ...], times: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    """The median of the float64 times of each cell of an array, NaN where there are none.

    ``cells`` has for each axis the index of every time, int [times].
    """
    flat = np.ravel_multi_index(cells, shape)
    order = np.lexsort((times, flat))
    filled, first, count = np.unique(flat[order], return_index=True, return_counts=True)
    ordered, medians = times[order], np.full(shape, np.nan)
    medians.flat[filled] = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2
    return medians


def _measured(
    problem: GemmProblem,
    configs: Mapping[str, KernelConfig],
    cells: tuple[np.ndarray, np.ndarray, np.ndarray],
    microseconds: np.ndarray,
) -> MeasuredProblem:
    """What the rows of one problem say: every config that never failed, with a time everywhere.

    Args:
        problem: what was multiplied.
        configs: those of the rows, and any others.
        cells: for each row the index of its regime, of its pass, and of its config as `_places`
            counts them; int [rows].
        microseconds: float64 [rows], NaN where it failed.
    """
    regime, stage, config = cells
    timed = ~np.isin(config, config[np.isnan(microseconds)])
    used, column = np.unique(np.append(config[timed], len(configs)), return_inverse=True)
    listed = [*configs.values()]
    passes = _medians(
        (regime[timed], stage[timed], column[:-1]),
        microseconds[timed],
        (len(REGIMES), len(PASSES), len(used)),
    )

    def times(chain: Sequence[tuple[int, str]]) -> dict[str, np.ndarray]:
        """Regime to the first time that a table of fallbacks finds, of each."""
        return {
            regime: reduce(_filled, (passes[i ^ other, PASSES.index(p)] for other, p in chain))
            for i, regime in enumerate(REGIMES)
        }

    label, truth = times(LABEL), times(SCORE)
    kept = ~np.isnan(label[REGIMES[0]][:-1])
    return MeasuredProblem(
        problem,
        tuple(compress((listed[place] for place in used[:-1]), kept)),
        {regime: label[regime][:-1][kept] for regime in REGIMES},
        {regime: truth[regime][:-1][kept] for regime in REGIMES},
        {regime: float(truth[regime][-1]) for regime in REGIMES},
    )


def _filled(times: np.ndarray, other: np.ndarray) -> np.ndarray:
    """``times`` with its gaps taken from ``other``, scaled by the median ratio where both have one.

    The card is warmer or cooler in another pass or regime; the ratio, which is of tilecast kernels
    alone, compensates that.
    """
    both = ~np.isnan(times) & ~np.isnan(other)
    both[-1] = False
    # numpy's median imports masked arrays: a twentieth of a second of `tilecast predict`.
    ratio = median((times[both] / other[both]).tolist()) if both.any() else 1.0
    return np.where(np.isnan(times), other * ratio, times)
