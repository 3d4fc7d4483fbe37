"""How many candidates a problem deserves: one more for as long as it is expected to pay.

The ranker's trees and its network err in different ways. Where they agree, the first candidate is
usually right; where the network puts a later one close behind, or the trees put it ahead, it may
well be the better one. The more they differ over the first few, the less they know such problems.
The gain that is expected of a candidate is the exponential of a weighted sum of such features;
candidates are taken where that is large enough, so compilations go where they pay most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilecast.heuristics.errors import TilecastError
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.learning.targets import problem_features
from tilecast.models.runtime.ranker import ConfigRanker

MAX_TAKEN = 8
"""Candidates that a problem gets at most."""
MEANS = (2, 3, 4, 5, 6)
"""Candidates per problem, on average, that may be asked for."""
MOST_GAIN = 0.1
"""Log gain beyond which a gain says nothing more of when to stop: a few such would decide alone."""
MOST_WEIGHT = 1e6
"""The largest weight, constant or threshold of a rule."""
_DIGITS = 6


@dataclass(frozen=True)
class StoppingRule:
    """Says from the scores of a ranking's first candidates how many of them to take."""

    constant: float
    """Log of the gain that is expected of a second candidate whose `stop_features` are all 0."""
    weights: tuple[float, float, float, float]
    """What one unit of each of `stop_features` adds to the log of the expected gain."""
    thresholds: Mapping[int, float]
    """For each of `MEANS` the log of the expected gain from which a candidate is taken."""

    def size(self, features: np.ndarray, mean: int) -> int:
        """Candidates to take: the first, and the next for as long as they are worth it.

        Args:
            features: of the problem, `stop_features`.
            mean: candidates per problem, on average over many problems.

        Raises:
            TilecastError: ``mean`` is none of `MEANS`.
        """
        if mean not in self.thresholds:
            raise TilecastError(
                f"a mean of {mean} candidates is out of range; allowed: "
                f"{', '.join(map(str, self.thresholds))}; give a limit to get a fixed number"
            )
        worth = self.expected(features) >= self.thresholds[mean]
        return 1 + int(np.logical_and.accumulate(worth).sum())

    def expected(self, features: np.ndarray) -> np.ndarray:
        """Log of the gain that is expected of each candidate but the first; float64 array."""
        return self.constant + features @ np.array(self.weights)


def stop_features(distance: np.ndarray, network: np.ndarray) -> np.ndarray:
    """What speaks for or against compiling each candidate but the first.

    Args:
        distance: of the first candidates of a ranking, as in `ranker.ModelScores`.
        network: likewise.

    Returns:
        float64 array [candidates - 1, 4]: log of how many candidates come before; how far the
        network puts it behind the best of these, and how far the trees put it ahead of the best of
        these, 0 where they do not; the standard deviation, over all, of what they differ by.
    """
    before = np.log(np.arange(1, len(distance)))
    behind = network[1:] - np.minimum.accumulate(network)[:-1]
    ahead = np.minimum.accumulate(distance)[:-1] - distance[1:]
    differ = np.full(len(before), np.std(network - distance, dtype=np.float64))
    return np.stack([before, np.maximum(behind, 0), np.maximum(ahead, 0), differ], axis=1)


@dataclass(frozen=True, eq=False)
class FirstCandidates:
    """The first of the ranking of a problem that the ranker had not seen, and how fast they are."""

    features: np.ndarray
    """float64 array [candidates - 1, 4]: `stop_features`."""
    slowdowns: np.ndarray
    """float64 array [candidates]: measured cost over the best config's, by the truth."""

    @property
    def gains(self) -> np.ndarray:
        """Log of what each candidate but the first took off the best cost before it."""
        return -np.diff(np.log(np.minimum.accumulate(self.slowdowns)))


def first_candidates(ranker: ConfigRanker, labels: ProblemLabels) -> FirstCandidates:
    """Ask a ranker about a problem that it was not fitted on."""
    features = problem_features(labels, ranker.hardware)
    first = ranker.order(features)[:MAX_TAKEN]
    scores = ranker.model_scores(features[first])
    return FirstCandidates(
        stop_features(scores.distance, scores.network),
        labels.slowdown(ranker.power, truth=True)[first],
    )


def fit_stopping_rule(asked: Sequence[FirstCandidates]) -> StoppingRule:
    """Learn what further candidates gain, and where to stop for each of `MEANS`.

    Most candidates gain nothing and a few gain much: a Poisson regression estimates the mean of
    such numbers, of which one beyond `MOST_GAIN` counts as that. The problems were held out.
    """
    from sklearn.linear_model import PoissonRegressor

    features = np.concatenate([first.features for first in asked])
    gains = np.minimum(np.concatenate([first.gains for first in asked]), MOST_GAIN)
    fitted = [-MOST_WEIGHT, *np.zeros(features.shape[1])]  # for the logarithm of nothing
    if gains.any():
        line = PoissonRegressor(alpha=0, solver="newton-cholesky", max_iter=1000)
        line.fit(features, gains)
        fitted = [line.intercept_, *line.coef_]
    constant, *weights = (round(float(v), _DIGITS) for v in fitted)
    rule = StoppingRule(constant, (weights[0], weights[1], weights[2], weights[3]), {})
    # A candidate is taken when all up to it are worth it: when the least promising of them is.
    worth = [np.minimum.accumulate(rule.expected(first.features)) for first in asked]
    falling = np.sort(np.concatenate(worth))[::-1]
    last = {mean: min((mean - 1) * len(asked), len(falling)) - 1 for mean in MEANS}
    return replace(rule, thresholds={m: round(float(falling[i]), _DIGITS) for m, i in last.items()})
