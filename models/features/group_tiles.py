"""How many tiles cover groups of rows whose sizes are known on the device alone."""

from __future__ import annotations

from functools import lru_cache
from math import lgamma

import numpy as np

_DEVIATIONS = np.array([-1.28, -0.52, 0, 0.52, 1.28])
"""The middles of fifths of a normal distribution, in standard deviations."""
_MANY = 256
"""Tiles of a group beyond which its last one is half full on average, whatever else is drawn."""
_NEVER = 30
"""How many times its share of the rows, and one more, no group has."""


@lru_cache(maxsize=4096)
def group_tiles(rows: int, groups: int, height: int) -> np.ndarray:
    """Five numbers of tiles that the groups may have together, equally likely; float64 [5].

    As in `tilecast.heuristics.problem.GemmProblem.products` every way to deal the rows is as likely
    as any other. That a group has ``least`` rows or more leaves ways to deal ``rows - least`` among
    all groups, and so does that two have as many together beyond what each is to have. A group has
    a tile for each multiple of the height that it exceeds, hence mean and variance of the sum.
    """
    if rows > _MANY * groups * height:
        mean, variance = rows / height + groups / 2, (groups - 1) / 12
    else:
        most = min(rows, _NEVER * (rows // groups + 1))
        before = np.arange(-(-most // height))
        left = rows - 1 - height * before
        ways = np.array([lgamma(rest + groups) - lgamma(rest + 1) for rest in left.tolist()])
        one = np.exp(ways - lgamma(rows + groups) + lgamma(rows + 1))
        two = one * left / np.maximum(left + groups - 1, 1)
        mean = groups * one.sum()
        squares = groups * (2 * before + 1) @ one + groups * (groups - 1) * (before + 1) @ two
        variance = max(squares - mean**2, 0.0)
    return np.maximum(np.round(mean + np.sqrt(variance) * _DEVIATIONS), 1)


def expected(drawn: np.ndarray) -> np.ndarray:
    """The mean of [draws, configs]; what has no draws, [configs], is as it is."""
    return drawn.mean(0) if drawn.ndim > 1 else drawn
