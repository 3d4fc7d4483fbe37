"""When to leave a problem to the library: where it is expected to win, and where that is in doubt.

Trees learn what the library takes beside one of our first choices, nine times in ten or more: of
operands that few problems were measured of, that is further below the median. Other GPUs' problems
teach them, too: what the library does badly on one it does badly on another. One margin for each
power turns that into a decision: the first choice is taken where it is expected to be ahead by
as much, or, below 0, behind by no more. It is the least margin with which at most `ALLOWED` of the
problems that were held out would be more than 3% slower than the library, and larger where these
are few. A problem left to the library in vain costs what was to be gained, one that is taken in
vain is a regression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilecast.heuristics.problem import GemmProblem
from tilecast.models.features.features import FEATURE_NAMES
from tilecast.models.learning.boosting import boosted
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.learning.targets import log_analytic, problem_features
from tilecast.models.runtime.forest import Forest
from tilecast.models.runtime.ranker import ConfigRanker, ModelScores

SLOWER = 0.97
"""Speed beside the library's below which a product counts as slower."""
ALLOWED = 0.01
"""Share of the problems that may be slower. Half of the 2% that are the aim: a margin does worse on
problems that it was not chosen on. With a tenth of it more than half of a language model's products
are left, a quarter of them in vain (models/EXPERIMENTS.md)."""
DOUBT = 0.4
"""The least margin where the library was timed on fewer than 3 / `ALLOWED` problems, times the root
of their number: that none of so few is slower says little of others (the rule of three;
models/EXPERIMENTS.md)."""
MOST_MARGIN = 10.0
"""Margin that no expectation reaches: with it all is left to the library."""
LEARNED = 16
"""First configs of a problem that are learned from. One alone is too few: they differ in how far
they are from the best, while the library's time is the same."""
DEFERRAL_FEATURES = len(FEATURE_NAMES) + 3
"""Columns of `deferral_features`."""
_DIGITS = 6
_OBJECTIVE: dict[str, object] = {
    # Not the mean: what the library does well or badly without our seeing why has long tails. With
    # a fifth instead of a tenth, the worst of the random problems is 1 to 3 points slower beside
    # the library, and all together are half a percent faster (models/EXPERIMENTS.md).
    "objective": "reg:quantileerror",
    "quantile_alpha": 0.1,
    "max_depth": 5,
    "learning_rate": 0.05,
    "subsample": 0.7,
    "colsample_bytree": 0.4,
}
_ROUNDS = 300


@dataclass(frozen=True, eq=False)
class Deferral:
    """Says whether a first choice is worth taking, with the library there to do the same."""

    forest: Forest
    """Predicts the log of the library's time over a config's, from `deferral_features`: what it is
    nine times in ten, or more."""
    margin: float
    """What is expected of a first choice that is taken, at least: a logarithm."""

    def expected(self, features: np.ndarray) -> float:
        """Log of the library's time over a config's; features are [1, DEFERRAL_FEATURES]."""
        return float(self.forest.predict(features)[0])

    def defers(self, expected: float) -> bool:
        """Whether a problem is left to the library, given what is `expected` of the first."""
        return expected < self.margin


def deferral_features(features: np.ndarray, scores: ModelScores) -> np.ndarray:
    """What the trees see of configs: geometry and arithmetic, and what the ranker thinks of them.

    How far one is behind the first tells them that it is no first choice, which alone is asked
    about later on.

    Args:
        features: float32 array [configs, features], of `tilecast.models.features.features.featurize`, with
            the first choice first.
        scores: of these configs, `ConfigRanker.model_scores`.

    Returns:
        float32 array [configs, DEFERRAL_FEATURES].
    """
    analytic = log_analytic(features)
    behind = scores.blended - scores.blended[0]
    return np.column_stack(
        [features, scores.distance - analytic, scores.network - analytic, behind]
    )


@dataclass(frozen=True, eq=False)
class BesideLibrary:
    """The first of the ranking of a problem that the ranker had not seen, beside the library."""

    problem: GemmProblem
    """The problem."""
    features: np.ndarray
    """float32 array [configs, DEFERRAL_FEATURES]: `deferral_features`, best first."""
    lead: np.ndarray
    """float64 array [configs]: log of the library's measured time over each config's."""
    elsewhere: bool = False
    """Whether that was measured on another GPU: it is learned from, and never asked about."""


def beside_library(
    ranker: ConfigRanker, asked: Sequence[ProblemLabels]
) -> tuple[BesideLibrary, ...]:
    """Ask a ranker about problems that it was not fitted on and the library was timed on."""
    found = []
    for labels in asked:
        lead = np.log(labels.library_over(ranker.power))
        if not np.isnan(lead).any():
            features = problem_features(labels, ranker.hardware)
            first = ranker.order(features)[:LEARNED]
            columns = deferral_features(features[first], ranker.model_scores(features[first]))
            elsewhere = labels.elsewhere is not None
            found.append(BesideLibrary(labels.problem, columns, lead[first], elsewhere))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class FirstChoices:
    """What was expected of the first choices for problems that were held out, and measured."""

    problems: tuple[GemmProblem, ...]
    """The problems."""
    expected: np.ndarray
    """float64 array [problems]: log of the library's time over the first choice's."""
    measured: np.ndarray
    """float64 array [problems]: the same as it was."""
    part: np.ndarray
    """int array [problems]: which were held out together."""

    @property
    def margin(self) -> float:
        """The least margin with which at most `ALLOWED` are slower."""
        return _least_margin(self.expected, self.measured)

    @property
    def left(self) -> np.ndarray:
        """Which are left to the library by a margin that was chosen on the other parts; bool.

        Parts are not nested: what is expected of the others comes from trees and rankers that have
        seen this one, so a margin is not quite of problems that are new to it.
        """
        left = np.zeros(len(self.problems), bool)
        for part in np.unique(self.part):
            own = self.part == part
            margin = _least_margin(self.expected[~own], self.measured[~own])
            left[own] = self.expected[own] < margin
        return left


def held_out_choices(
    parts: Sequence[Sequence[BesideLibrary]], *, seed: int = 0
) -> FirstChoices | None:
    """What trees that learned from all parts but one expect of that one; None of less than two.

    Args:
        parts: `beside_library` of the problems of each fold, by the ranker that had not seen it.
        seed: of the trees' sampling.
    """
    asked = [[one for one in part if not one.elsewhere] for part in parts]
    places = [place for place, some in enumerate(asked) if some]
    if len(places) < 2:
        return None
    expected = []
    for place in places:
        forest = _fitted(
            [one for part in (*parts[:place], *parts[place + 1 :]) for one in part], seed
        )
        expected.append(forest.predict(np.concatenate([one.features[:1] for one in asked[place]])))
    every = [one for some in asked for one in some]
    return FirstChoices(
        tuple(one.problem for one in every),
        np.concatenate(expected).astype(np.float64),
        np.array([one.lead[0] for one in every]),
        np.repeat(places, [len(asked[place]) for place in places]),
    )


def fit_deferral(
    parts: Sequence[Sequence[BesideLibrary]], *, seed: int = 0
) -> tuple[Deferral, FirstChoices] | None:
    """Learn when to leave a problem to the library; None where it was not timed.

    Returns:
        The rule, of trees that learned from all parts; and `held_out_choices`, which its margin was
        chosen on.
    """
    choices = held_out_choices(parts, seed=seed)
    if choices is None:
        return None
    forest = _fitted([one for part in parts for one in part], seed)
    return Deferral(forest, round(choices.margin, _DIGITS)), choices


def speed(measured: np.ndarray, left: np.ndarray) -> dict[str, float]:
    """How fast some problems are beside the library, of which some are left to it.

    Args:
        measured: float64 array [problems]: log of the library's time over the first choice's.
        left: bool array [problems].

    Returns:
        Share of them that are ``left``; the ``geomean`` of the speeds, the share that is
        ``slower`` than `SLOWER`, and the ``worst`` of them.
    """
    gained = np.where(left, 0.0, measured)
    return {
        "left": float(left.mean()),
        "geomean": float(np.exp(gained.mean())),
        "slower": float((gained < np.log(SLOWER)).mean()),
        "worst": float(np.exp(gained.min())),
    }


def _least_margin(expected: np.ndarray, measured: np.ndarray) -> float:
    """The least margin with which at most `ALLOWED` of some problems are slower."""
    order = np.argsort(-expected, kind="stable")
    falling, slower = expected[order], np.cumsum(measured[order] < np.log(SLOWER))
    # Of those that are expected to be as much ahead, a margin takes all or none.
    whole = np.append(falling[1:] < falling[:-1], True)
    allowed = np.flatnonzero(whole & (slower <= ALLOWED * len(order)))
    least = float(falling[allowed[-1]]) if len(allowed) else MOST_MARGIN
    few = len(expected) * ALLOWED < 3
    return max(least, DOUBT / math.sqrt(len(expected))) if few else least


def _fitted(asked: Sequence[BesideLibrary], seed: int) -> Forest:
    """Trees that learned from what was measured of some problems, each with the same weight."""
    counts = [len(one.lead) for one in asked]
    return boosted(
        np.concatenate([one.features for one in asked]),
        np.concatenate([one.lead for one in asked]),
        np.repeat([1 / count for count in counts], counts),
        _ROUNDS,
        _OBJECTIVE | {"seed": seed},
    )
