"""What autotuning teaches: of a few configs of a problem, which are ahead of which, and no more.

Inductor times the few that a model chose. How far these are from the best of the problem is not
known, so nothing is scored by such times. The ranker's network learns from them, since it is fitted
to what configs of a problem differ by; its trees, which need to know where the best lies, do not.

Inductor's benchmark flushes the L2 cache before each call and takes the least of some hundred calls
in at most 25 ms. That is the ``burst`` regime, more or less, with 5 us of launch on top and a ratio
of two configs that is off by 3% (standard deviation over 36 problems,
benchmarks/results/inductor_timing.json). Both regimes learn from the times as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

import numpy as np

from tilecast.data_collection.dataset.autotuned import Autotuned
from tilecast.heuristics.config import Candidates
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.models.features.features import featurize


@dataclass(frozen=True, eq=False)
class Comparison:
    """Some candidates of one problem that were timed one after the other."""

    problem: GemmProblem
    """What was multiplied."""
    configs: Candidates
    """Two or more of its candidates."""
    slowdown: np.ndarray
    """float64 [configs]: time over that of the fastest of them, 1 or more."""


def comparisons(
    found: Iterable[Autotuned], measured: Collection[GemmProblem], hardware: Hardware
) -> list[Comparison]:
    """What there is to learn from what the autotuner measured, sorted by problem and configs.

    Problems that a collection measured are left out: its times are better. Runs of a problem that
    timed the same configs count once, by the medians; others stay apart, as times of two runs
    compare less well than those of one.
    """
    runs: dict[tuple, list[Autotuned]] = {}
    for one in found:
        if one.problem not in measured:
            names = tuple(sorted(config.name for config in one.milliseconds))
            runs.setdefault((*one.problem.row(), names), []).append(one)
    compared = (_comparison(runs[key], hardware) for key in sorted(runs))
    return [one for one in compared if len(one.configs) > 1]


def _comparison(runs: list[Autotuned], hardware: Hardware) -> Comparison:
    """The medians of runs of one problem, of the configs that still are candidates."""
    problem = runs[0].problem
    configs = sorted(runs[0].milliseconds, key=str)
    families = {config.family for config in configs}
    timed = candidates(problem, hardware, families=families).select(configs)
    times = [median(run.milliseconds[config] for run in runs) for config in timed]
    return Comparison(problem, timed, np.array(times) / min(times, default=1.0))


@lru_cache(maxsize=8192)
def compared_features(one: Comparison, hardware: Hardware) -> np.ndarray:
    """The `featurize` of the configs, kept: folds share it."""
    return featurize(one.problem, one.configs, hardware)
