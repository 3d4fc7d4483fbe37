"""What clock and power of the card do to all times alike, taken out; and the noise that is left."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

import numpy as np

SMOOTHED = (1.0, 2.0, 3.0, 2.0, 1.0)
"""Weights of neighbouring times of a reference kernel: the card's level changes in some tens of
milliseconds, and each of these times has noise of its own."""
MEDIAN_OF = {2: 0.707, 3: 0.670}
"""Standard deviation of the median of so many normal numbers, over theirs."""


def without_drift(rounds: Sequence[Sequence[float]]) -> list[list[float]]:
    """Remove the drift of clock and power, which all entrants of a round share.

    Each time is divided by its round's level (the geometric mean over the entrants that took part
    in all rounds) and multiplied by the median level.

    Args:
        rounds: for each entrant its times, one a round from the first; fewer if it dropped out.

    Returns:
        The same shape.
    """
    most = max(map(len, rounds))
    whole = [row for row in rounds if len(row) == most]
    levels = [statistics.geometric_mean(column) for column in zip(*whole, strict=True)]
    level = statistics.median(levels)
    return [[t * level / own for t, own in zip(row, levels, strict=False)] for row in rounds]


def own_noise(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The factor by which `without_drift` changes the standard deviation of each entrant's noise.

    The level is a mean over n entrants. Of equal variances, an entrant keeps 1 - 1/n of its own; an
    entrant that dropped out is not in the level and gains its noise, 1/n.
    """
    most = max(map(len, rounds))
    whole = sum(len(row) == most for row in rounds)
    return [math.sqrt(1 + (-1 if len(row) == most else 1) / whole) for row in rounds]


def levelled(run: Sequence[tuple[int, float]], reference: int) -> dict[int, list[float]]:
    """Remove the card's level from times of kernels that ran one behind the other.

    Where kernels that draw little power stand side by side, the clock rises and all are faster;
    one kernel that runs every few shows that. Each time is divided by that kernel's, as it would
    be at that moment, and multiplied by its median.

    Args:
        run: a kernel and its time, in the order in which they ran. The first and the last is the
            reference.
        reference: which kernel shows the level.

    Returns:
        The times of each other kernel, in their order.
    """
    kernels = np.array([kernel for kernel, _ in run])
    times = np.log([time for _, time in run])
    moments = np.cumsum(np.exp(times))
    shown = kernels == reference
    looks = times[shown]
    inside = slice(len(SMOOTHED) // 2, len(SMOOTHED) // 2 + len(looks))
    weights = np.convolve(np.ones(len(looks)), SMOOTHED)[inside]
    smooth = np.convolve(looks, SMOOTHED)[inside] / weights
    level = np.interp(moments, moments[shown], smooth) - np.median(smooth)
    found: dict[int, list[float]] = {}
    for kernel, time in zip(kernels[~shown].tolist(), np.exp(times - level)[~shown], strict=True):
        found.setdefault(kernel, []).append(float(time))
    return found


def median_noise(rounds: Iterable[Sequence[float]]) -> float:
    """Relative standard deviation of the median of an entrant's times, of those timed most often.

    The typical one of all entrants; 0 where each was timed once.
    """
    rows = [row for row in rounds if len(row) > 1]
    most = max(map(len, rows), default=0)
    spreads = [statistics.variance(map(math.log, row)) for row in rows if len(row) == most]
    if not spreads:
        return 0.0
    # The median of a variance of few numbers is below their variance: chi-square's over its mean.
    degrees = most - 1
    typical = statistics.median(spreads) / (1 - 2 / (9 * degrees)) ** 3
    return math.sqrt(typical) * MEDIAN_OF.get(most, 1.253 / math.sqrt(most))
