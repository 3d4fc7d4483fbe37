"""How many candidates a problem deserves: one more for as long as it is expected to pay.

The ranker's trees and its network err in different ways. Where they agree, the first candidate is
usually right; where the network puts a later one close behind, or the trees put it ahead, it may
well be the better one. The more they differ over the first few, the less they know such problems.
The gain that is expected of a candidate is the exponential of a weighted sum of such features;
candidates are taken where that is large enough, so compilations go where they pay most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilecast.models.runtime.ranker import ModelScores

MAX_TAKEN = 8
"""Candidates that a problem gets at most."""
MEANS = (2, 3, 4, 5, 6)
"""Candidates per problem, on average, that a rule has a threshold for."""
MOST_WEIGHT = 1e6
"""The largest weight, constant or threshold of a rule."""


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

        ``features`` are `stop_features`, ``mean`` is one of `MEANS`.
        """
        worth = self.gains(features) >= self.thresholds[mean]
        return 1 + int(np.logical_and.accumulate(worth).sum())

    def gains(self, features: np.ndarray) -> np.ndarray:
        """Log of the gain that is expected of each candidate but the first; float64 array."""
        return self.constant + features @ np.array(self.weights)


def stop_features(scores: ModelScores) -> np.ndarray:
    """What speaks for or against compiling each of the first candidates of a ranking but one.

    Returns:
        float64 array [candidates - 1, 4]: log of how many candidates come before; how far the
        network puts it behind the best of these, and how far the trees put it ahead of the best of
        these, 0 where they do not; the standard deviation, over all, of what they differ by.
    """
    trees, network = scores.trees, scores.network
    before = np.log(np.arange(1, len(trees)))
    behind = network[1:] - np.minimum.accumulate(network)[:-1]
    ahead = np.minimum.accumulate(trees)[:-1] - trees[1:]
    differ = np.full(len(before), np.std(network - trees, dtype=np.float64))
    return np.stack([before, np.maximum(behind, 0), np.maximum(ahead, 0), differ], axis=1)
