"""What each feature adds to a prediction of boosted trees: Shapley values along paths (TreeSHAP).

A leaf counts with its value when every comparison on its path comes out its way. A feature that is
not known comes out as it did for the training rows: its way with their share. What knowing a
feature changes is averaged over all orders in which features become known, which is an integral
over how many are; its integrand is a polynomial, so a quadrature of Gauss and Legendre is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilecast.models.forest import Forest


@dataclass(frozen=True, eq=False)
class _Paths:
    """The ways to all leaves that training rows ended in: L of them, D comparisons each."""

    value: np.ndarray
    """float32 [L]: of the leaves."""
    feature: np.ndarray
    """Integers [D, L]: which feature is compared."""
    threshold: np.ndarray
    """float32 [D, L]: with what."""
    right: np.ndarray
    """bool [D, L]: whether the path goes on where the feature is not smaller."""
    first: np.ndarray
    """Integers [D, L]: where on the path the same feature is compared first."""
    share: np.ndarray
    """float64 [D, L]: share of the training rows that passes all comparisons of the feature that
    is compared first here; 1 where it is not the first."""

    def passed(self, row: np.ndarray) -> np.ndarray:
        """Whether a row passes all comparisons of a feature; bool [D, L], as ``share``."""
        each = (row[self.feature] >= self.threshold) == self.right
        return _merged(np.ones_like(each), each, self.first, np.logical_and)


def _merged(start: np.ndarray, each: np.ndarray, first: np.ndarray, join: np.ufunc) -> np.ndarray:
    """What holds of single comparisons, joined over those of the same feature."""
    path = np.arange(each.shape[1])
    for at, found in zip(first, each, strict=True):
        start[at, path] = join(start[at, path], found)
    return start


def _paths(forest: Forest) -> _Paths:
    leaf = np.flatnonzero(forest.cover > 0)
    below = forest.cover.astype(np.float64)
    features, thresholds, rights, shares = [], [], [], []
    for height, (feature, threshold) in enumerate(reversed(forest.levels)):
        node, inner = leaf >> height, leaf >> height + 1
        above = below[0::2] + below[1::2]
        features.append(feature[inner])
        thresholds.append(threshold[inner])
        rights.append(node % 2 == 1)
        shares.append(below[node] / above[inner])
        below = above
    feature = np.stack(features[::-1])
    first = np.argmax(feature[None] == feature[:, None], axis=1)
    share = np.stack(shares[::-1])
    return _Paths(
        forest.value[leaf],
        feature,
        np.stack(thresholds[::-1]),
        np.stack(rights[::-1]),
        first,
        _merged(np.ones_like(share), share, first, np.multiply),
    )


def contributions(forest: Forest, features: np.ndarray) -> np.ndarray:
    """What each feature adds to each prediction.

    Args:
        forest: the trees.
        features: float32 array [rows, features], without NaN.

    Returns:
        float64 array [rows, features]; rows add up to what `Forest.predict` says of them, less the
        mean over the training rows.
    """
    paths = _paths(forest)
    points, weights = np.polynomial.legendre.leggauss((forest.depth + 1) // 2)
    effects = np.empty(features.shape)
    for row, effect in zip(features, effects, strict=True):
        gained = paths.passed(row) - paths.share
        total = np.zeros_like(gained)
        for known, weight in zip((points + 1) / 2, weights / 2, strict=True):
            likely = paths.share + known * gained
            total += weight * likely.prod(0) / likely
        total *= gained * paths.value
        effect[:] = np.bincount(paths.feature.ravel(), total.ravel(), len(row))
    return effects
