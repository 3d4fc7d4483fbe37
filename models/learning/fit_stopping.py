"""How the stopping rule is learned: from what further candidates gained on held-out problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilecast.models.learning.held_out import Asked
from tilecast.models.runtime.ranker import ModelScores
from tilecast.models.runtime.stopping import (
    MAX_TAKEN,
    MEANS,
    MOST_WEIGHT,
    StoppingRule,
    stop_features,
)

MOST_GAIN = 0.1
"""Log gain beyond which a gain says nothing more of when to stop: a few such would decide alone."""
_DIGITS = 6


@dataclass(frozen=True, eq=False)
class FirstCandidates:
    """The first of the ranking of a problem that the ranker had not seen, and how fast they are."""

    features: np.ndarray
    """float64 array [candidates - 1, 4]: `stop_features`."""
    slowdowns: np.ndarray
    """float64 array [candidates]: measured cost over the best config's, by the truth."""

    @property
    def gains(self) -> np.ndarray:
        """Log of how much each candidate but the first improved on the best cost before it."""
        return -np.diff(np.log(np.minimum.accumulate(self.slowdowns)))


def first_candidates(asked: Asked, objective: str) -> FirstCandidates:
    """What is learned from the ranking of a held-out problem for an objective."""
    ranking = asked.rankings[objective]
    scores = ModelScores(ranking.scores.trees[:MAX_TAKEN], ranking.scores.network[:MAX_TAKEN])
    slowdowns = asked.labels.slowdown(objective, truth=True)[ranking.first[:MAX_TAKEN]]
    return FirstCandidates(stop_features(scores), slowdowns)


def fit_stopping(asked: Sequence[FirstCandidates]) -> StoppingRule:
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
    worth = [np.minimum.accumulate(rule.gains(first.features)) for first in asked]
    falling = np.sort(np.concatenate(worth))[::-1]
    last = {mean: min((mean - 1) * len(asked), len(falling)) - 1 for mean in MEANS}
    return replace(rule, thresholds={m: round(float(falling[i]), _DIGITS) for m, i in last.items()})
