"""How it is learned which problems to leave to cuBLAS.

Trees learn the lead of the first configs of held-out problems over cuBLAS, below its median. Other
GPUs' problems teach them, too: what cuBLAS does badly on one it does badly on another. A margin for
each objective turns that into a decision. It is the least margin with which at most `ALLOWED` of
the held-out problems would be more than 3% slower than cuBLAS, and larger where these are few. A
problem that is left to cuBLAS in vain costs what was to be gained; one that is taken in vain is a
regression.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.learning.fit_trees import boosted
from tilecast.models.learning.folds import side_by_side
from tilecast.models.learning.held_out import Asked
from tilecast.models.runtime.deferral import MOST_MARGIN, Deferral, deferral_features
from tilecast.models.runtime.forest import Forest
from tilecast.models.runtime.objectives import OBJECTIVES, ROBUST

SLOWER = 0.97
"""Speed beside cuBLAS below which a product counts as slower."""
ALLOWED = 0.01
"""Share of the problems that may be slower. Half of the 2% that are the aim: a margin does worse on
problems that it was not chosen on. With a tenth of it more than half of a language model's products
are left to cuBLAS, a quarter of them in vain (models/EXPERIMENTS.md)."""
DOUBT = 0.4
"""The least margin where cuBLAS was timed on fewer than 3 / `ALLOWED` problems, times the root of
their number: that none of so few is slower says little of others (the rule of three;
models/EXPERIMENTS.md)."""
LEARNED = 16
"""First configs of a problem that are learned from. One alone is too few: they differ in how far
they are from the best, while cuBLAS's time is the same."""
_DIGITS = 6
_TREES: dict[str, object] = {
    # Not the mean: what cuBLAS does well or badly for reasons that no feature shows has long tails.
    # With a fifth instead of a tenth, the worst of the random problems is 1 to 3 points slower
    # beside cuBLAS, and all together are half a percent faster (models/EXPERIMENTS.md).
    "objective": "reg:quantileerror",
    "quantile_alpha": 0.1,
    "max_depth": 5,
    "learning_rate": 0.05,
    "subsample": 0.7,
    "colsample_bytree": 0.4,
}
_ROUNDS = 300


@dataclass(frozen=True, eq=False)
class BesideLibrary:
    """The first of the ranking of a problem that the ranker had not seen, beside cuBLAS."""

    problem: GemmProblem
    """The problem."""
    features: Mapping[str, np.ndarray]
    """For each objective float32 [configs, DEFERRAL_FEATURES]: `deferral_features`, best first."""
    leads: Mapping[str, np.ndarray]
    """For each objective float64 [configs]: log of cuBLAS's measured time over each config's."""
    elsewhere: bool = False
    """Whether it was measured on another GPU: it is learned from, and never asked about."""


def beside_library(asked: Sequence[Asked]) -> tuple[BesideLibrary, ...]:
    """What is learned from the rankings of held-out problems that cuBLAS was timed on."""
    found = []
    for one in asked:
        labels = one.labels
        if not np.isnan(labels.library_over(ROBUST)).any():
            features, leads = {}, {}
            for objective, ranking in one.rankings.items():
                seen = deferral_features(ranking.features, ranking.scores)
                features[objective] = seen[:LEARNED]
                over = labels.library_over(objective)[ranking.first[:LEARNED]]
                leads[objective] = np.log(over)
            elsewhere = labels.elsewhere is not None
            found.append(BesideLibrary(labels.problem, features, leads, elsewhere))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class FirstChoices:
    """What was expected of the first choices for held-out problems, and what was measured."""

    problems: tuple[GemmProblem, ...]
    """The problems."""
    expected: np.ndarray
    """float64 array [problems]: `Deferral.least_lead` of the first choice."""
    measured: np.ndarray
    """float64 array [problems]: log of cuBLAS's time over the first choice's."""
    part: np.ndarray
    """int array [problems]: which were held out together."""

    @property
    def margin(self) -> float:
        """The least margin with which at most `ALLOWED` are slower."""
        return _least_margin(self.expected, self.measured)

    @property
    def deferred(self) -> np.ndarray:
        """Which are left to cuBLAS by a margin that was chosen on the other parts; bool.

        Parts are not nested: what is expected of the others comes from trees and rankers that have
        seen this one, so a margin is not quite of problems that are new to it.
        """
        deferred = np.zeros(len(self.problems), bool)
        for part in np.unique(self.part):
            own = self.part == part
            margin = _least_margin(self.expected[~own], self.measured[~own])
            deferred[own] = self.expected[own] < margin
        return deferred


def held_out_choices(
    parts: Sequence[Sequence[BesideLibrary]], *, seed: int = 0, jobs: int = 1
) -> dict[str, FirstChoices]:
    """What trees that learned from all parts but one expect of that one, for each objective.

    ``parts`` are the `beside_library` of the problems of each fold, by the ranker that had not seen
    it. There is nothing to say where less than two parts have problems to ask about.
    """
    asked = [[one for one in part if not one.elsewhere] for part in parts]
    places = [place for place, some in enumerate(asked) if some]
    if len(places) < 2:
        return {}
    fits = []
    for place in places:
        others = [one for part in (*parts[:place], *parts[place + 1 :]) for one in part]
        fits += [partial(_fitted, others, regime, seed) for regime in REGIMES]
    forests = iter(side_by_side(jobs, fits))
    expected: dict[str, list[np.ndarray]] = {objective: [] for objective in OBJECTIVES}
    for place in places:
        trees: dict[str, Forest] = {regime: next(forests) for regime in REGIMES}
        deferral = Deferral(trees, {})
        for objective, found in expected.items():
            first = np.concatenate([one.features[objective][:1] for one in asked[place]])
            found.append(deferral.least_lead(first, objective))
    every = [one for some in asked for one in some]
    return {
        objective: FirstChoices(
            tuple(one.problem for one in every),
            np.concatenate(found).astype(np.float64),
            np.array([one.leads[objective][0] for one in every]),
            np.repeat(places, [len(asked[place]) for place in places]),
        )
        for objective, found in expected.items()
    }


def fit_deferral(
    parts: Sequence[Sequence[BesideLibrary]], *, seed: int = 0, jobs: int = 1
) -> tuple[Deferral | None, dict[str, FirstChoices]]:
    """Learn when to leave a problem to cuBLAS.

    Returns:
        The rule, of trees that learned from all parts, None where cuBLAS was not timed; and
        `held_out_choices`, which its margins were chosen on.
    """
    choices = held_out_choices(parts, seed=seed, jobs=jobs)
    if not choices:
        return None, {}
    every = [one for part in parts for one in part]
    fits = [partial(_fitted, every, regime, seed) for regime in REGIMES]
    forests: dict[str, Forest] = dict(zip(REGIMES, side_by_side(jobs, fits), strict=True))
    margins = {objective: round(one.margin, _DIGITS) for objective, one in choices.items()}
    return Deferral(forests, margins), choices


def speed(measured: np.ndarray, deferred: np.ndarray) -> dict[str, float]:
    """How fast some problems are beside cuBLAS, of which some are left to it.

    Args:
        measured: float64 array [problems]: log of cuBLAS's time over the first choice's.
        deferred: bool array [problems].

    Returns:
        Share of them that are ``left`` to cuBLAS; the ``geomean`` of the speeds, the share that is
        ``slower`` than `SLOWER`, and the ``worst`` of them.
    """
    gained = np.where(deferred, 0.0, measured)
    return {
        "left": float(deferred.mean()),
        "geomean": float(np.exp(gained.mean())),
        "slower": float((gained < np.log(SLOWER)).mean()),
        "worst": float(np.exp(gained.min())),
    }


def _least_margin(expected: np.ndarray, measured: np.ndarray) -> float:
    """The least margin with which at most `ALLOWED` of some problems are slower."""
    order = np.argsort(-expected, kind="stable")
    falling, slower = expected[order], np.cumsum(measured[order] < np.log(SLOWER))
    # Of problems with the same expectation, a margin takes all or none.
    whole = np.append(falling[1:] < falling[:-1], True)
    allowed = np.flatnonzero(whole & (slower <= ALLOWED * len(order)))
    least = float(falling[allowed[-1]]) if len(allowed) else MOST_MARGIN
    few = len(expected) * ALLOWED < 3
    return max(least, DOUBT / math.sqrt(len(expected))) if few else least


def _fitted(asked: Sequence[BesideLibrary], regime: str, seed: int) -> Forest:
    """Trees that learned from what was measured of some problems, each with the same weight."""
    counts = [len(one.leads[regime]) for one in asked]
    return boosted(
        np.concatenate([one.features[regime] for one in asked]),
        np.concatenate([one.leads[regime] for one in asked]),
        np.repeat([1 / count for count in counts], counts),
        _ROUNDS,
        _TREES | {"seed": seed},
    )
