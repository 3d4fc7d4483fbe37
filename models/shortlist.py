"""How many candidates a problem deserves: one more for as long as it is expected to pay.

The ranker's two sets of trees learn different things. Where they agree, the first candidate is
usually right; where the order trees put a later one close behind, or the distance trees put it
ahead, it may well be the better one. The gain that is expected of it is the exponential of a
weighted sum of these doubts; candidates are taken where that is large enough, so compilations go
where they pay most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilecast.heuristics.errors import TilecastError
from tilecast.models.features import featurize
from tilecast.models.labels import ProblemLabels
from tilecast.models.ranker import ConfigRanker

MOST = 8
"""Candidates that a problem gets at most."""
MEANS = (2, 3, 4, 5, 6)
"""Candidates per problem, on average, that may be asked for."""
_DIGITS = 6


@dataclass(frozen=True)
class ShortlistRule:
    """Says from a ranking's doubts how many of its first candidates to take."""

    constant: float
    """Log of the gain that is expected of a second candidate whose `doubts` are all 0."""
    weights: tuple[float, float, float]
    """What one unit of each of `doubts` adds to the log of the expected gain."""
    least: Mapping[int, float]
    """For each of `MEANS` the log of the expected gain from which a candidate is taken."""

    def size(self, doubts: np.ndarray, mean: int) -> int:
        """Candidates to take: the first, and the next for as long as they are worth it.

        Args:
            doubts: of the problem, `doubts`.
            mean: candidates per problem, on average over many problems.

        Raises:
            TilecastError: ``mean`` is none of `MEANS`.
        """
        if mean not in self.least:
            raise TilecastError(
                f"a mean of {mean} candidates is out of range; allowed: "
                f"{', '.join(map(str, self.least))}; give a limit to get a fixed number"
            )
        worth = self.expected(doubts) >= self.least[mean]
        return 1 + int(np.logical_and.accumulate(worth).sum())

    def expected(self, doubts: np.ndarray) -> np.ndarray:
        """Log of the gain that is expected of each candidate but the first; float64 array."""
        return self.constant + doubts @ np.array(self.weights)


def doubts(distance: np.ndarray, order: np.ndarray) -> np.ndarray:
    """What speaks for or against trying each candidate but the first.

    Args:
        distance: expected log cost of the first candidates of a ranking, at most `MOST`.
        order: what the order trees say of them, higher for a better one.

    Returns:
        float64 array [candidates - 1, 3]: log of the number of candidates before it, how far the
        order trees put it behind the best of these, and how far the distance trees put it ahead
        of the best of these; 0 where they do not.
    """
    before = np.log(np.arange(1, len(distance)))
    behind = np.maximum.accumulate(order)[:-1] - order[1:]
    ahead = np.minimum.accumulate(distance)[:-1] - distance[1:]
    return np.stack([before, np.maximum(behind, 0), np.maximum(ahead, 0)], axis=1)


@dataclass(frozen=True, eq=False)
class Head:
    """The first candidates of the ranking of a problem that the ranker had not seen."""

    doubts: np.ndarray
    """float64 array [candidates - 1, 3]: `doubts`."""
    slowdowns: np.ndarray
    """float64 array [candidates]: measured cost over the best config's, by the truth."""

    @property
    def gains(self) -> np.ndarray:
        """Log of what each candidate but the first took off the best cost before it."""
        return -np.diff(np.log(np.minimum.accumulate(self.slowdowns)))


def head(ranker: ConfigRanker, labels: ProblemLabels) -> Head:
    """Ask a ranker about a problem that it was not fitted on."""
    features = featurize(labels.problem, labels.configs, ranker.hardware)
    first = ranker.order(features)[:MOST]
    return Head(
        doubts(*ranker.opinions(features[first])),
        labels.slowdown(ranker.power, truth=True)[first],
    )


def fit_rule(heads: Sequence[Head]) -> ShortlistRule:
    """Learn what further candidates gain, and where to stop for each of `MEANS`.

    Most candidates gain nothing and a few gain much: a Poisson regression estimates the mean of
    such numbers.

    Args:
        heads: of held-out problems.
    """
    from sklearn.linear_model import PoissonRegressor

    line = PoissonRegressor(alpha=0, solver="newton-cholesky", max_iter=1000).fit(
        np.concatenate([h.doubts for h in heads]), np.concatenate([h.gains for h in heads])
    )
    constant, *weights = (round(float(v), _DIGITS) for v in (line.intercept_, *line.coef_))
    rule = ShortlistRule(constant, (weights[0], weights[1], weights[2]), {})
    # A candidate is taken when all up to it are worth it: when the least of them is.
    reach = [np.minimum.accumulate(rule.expected(h.doubts)) for h in heads]
    reach = np.sort(np.concatenate(reach))[::-1]
    least = {mean: reach[min((mean - 1) * len(heads), len(reach)) - 1] for mean in MEANS}
    rounded = {mean: round(float(bound), _DIGITS) for mean, bound in least.items()}
    return ShortlistRule(rule.constant, rule.weights, rounded)
