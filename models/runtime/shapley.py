"""What each feature adds to a prediction of boosted trees: Shapley values along paths (TreeSHAP).

A leaf counts with its value when every comparison on its path comes out its way. A feature that is
not known comes out as it did for the training rows: its way with their share. What knowing a
feature changes is averaged over all orders in which features become known, which is an integral
over how many are; its integrand is a polynomial, so a quadrature of Gauss and Legendre is exact.
"""

from __future__ import annotations

import numpy as np

from tilecast.models.runtime.forest import Forest


def contributions(forest: Forest, features: np.ndarray) -> np.ndarray:
    """What each feature adds to each prediction.

    Args:
        forest: the trees.
        features: float32 array [rows, features], without NaN.

    Returns:
        float64 array [rows, features]; rows add up to what `Forest.predict` says of them, less the
        mean over the training rows.
    """
    # The ways to all leaves that training rows ended in: what is compared on them, with what,
    # whether they go on where the feature is not smaller, and with which share of the rows.
    leaf = np.flatnonzero(forest.cover > 0)
    below = forest.cover.astype(np.float64)
    steps = []
    for height, (compared, bound) in enumerate(reversed(forest.levels)):
        node, inner = leaf >> height, leaf >> height + 1
        above = below[0::2] + below[1::2]
        steps.append((compared[inner], bound[inner], node % 2 == 1, below[node] / above[inner]))
        below = above
    feature, threshold, right, shares = map(np.stack, zip(*reversed(steps), strict=True))
    first = np.argmax(feature[None] == feature[:, None], axis=1)
    share, value = _merged(shares, first, np.multiply), forest.value[leaf]

    points, weights = np.polynomial.legendre.leggauss((forest.depth + 1) // 2)
    effects = np.empty(features.shape)
    for row, effect in zip(features, effects, strict=True):
        passed = _merged((row[feature] >= threshold) == right, first, np.logical_and)
        gained = passed - share
        total = np.zeros_like(gained)
        for known, weight in zip((points + 1) / 2, weights / 2, strict=True):
            likely = share + known * gained
            total += weight * likely.prod(0) / likely
        total *= gained * value
        effect[:] = np.bincount(feature.ravel(), total.ravel(), len(row))
    return effects


def _merged(each: np.ndarray, first: np.ndarray, join: np.ufunc) -> np.ndarray:
    """What holds of the comparisons of paths [D, L], joined over those of the same feature.

    It stands where the feature is compared first, which ``first`` says of each; elsewhere it is 1.
    """
    joined, path = np.ones_like(each), np.arange(each.shape[1])
    for at, found in zip(first, each, strict=True):
        joined[at, path] = join(joined[at, path], found)
    return joined
