"""What the rankers are fitted to: how far each config lies from what arithmetic expects of it.

The target of a row is log(cost) - log(analytic time), less the problem's weighted mean of the
same. The analytic time carries what is known about geometry, and the mean takes out what all
configs of a problem share, so that trees are spent on telling configs apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tilecast.heuristics.hardware import Hardware
from tilecast.models.features.features import FEATURE_NAMES, featurize
from tilecast.models.learning.labels import ProblemLabels

ANALYTIC = FEATURE_NAMES.index("analytic_time")
"""Column of the analytic time."""


def log_analytic(features: np.ndarray) -> np.ndarray:
    """Natural logarithm of the analytic time in microseconds; features are [rows, features]."""
    return features[:, ANALYTIC] * np.log(np.float32(2))


@lru_cache(maxsize=2**14)
def problem_features(labels: ProblemLabels, hardware: Hardware) -> np.ndarray:
    """The `featurize` of a labelled problem, kept: folds and powers share it.

    What was measured elsewhere has the features that it has there. More are kept than a table has:
    of fewer, none would be left when it is gone through again.
    """
    features = featurize(labels.problem, labels.candidates, labels.elsewhere or hardware)
    features.flags.writeable = False
    return features


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """The rows of many problems, one below the other, the far ones thinned out."""

    features: np.ndarray
    """float32 [rows, features]."""
    residual: np.ndarray
    """float32 [rows]: log(cost / analytic time), centred within each problem."""
    level: np.ndarray
    """float32 [rows]: log(cost / analytic time) as it is."""
    weight: np.ndarray
    """float32 [rows]: near 1 at the best config of a problem, falling with the slowdown."""
    slowdown: np.ndarray
    """float32 [rows]: cost over the problem's best."""


FOCUS = 6.0
"""Exponent of a config's weight, slowdown ** -FOCUS: the order matters at the top."""
FLOOR = 0.02
"""Weight that even the slowest config keeps, so that it is not mistaken for a fast one."""
FAR = 1.25
"""Slowdown from which configs are thinned out."""
THINNING = 8
"""One in so many of the far ones is kept, they teach little; for trees with the weight of all."""


def training_rows(table: Sequence[ProblemLabels], hardware: Hardware, power: str) -> TrainingRows:
    """Assemble features, targets and weights.

    Args:
        table: labels of the problems to learn from.
        hardware: the GPU that they were measured on, unless they name another.
        power: whose cost to learn.
    """
    parts = []
    for index, labels in enumerate(table):
        features = problem_features(labels, hardware)
        slowdown = labels.slowdown(power)
        level = np.log(labels.cost(power)) - log_analytic(features)
        near = slowdown**-FOCUS
        residual = level - np.average(level, weights=near)
        far = slowdown > FAR
        weight = (near + FLOOR) * np.where(far, THINNING, 1)
        kept = ~far | ((np.arange(len(far)) + index) % THINNING == 0)
        columns = (features, residual, level, weight, slowdown)
        parts.append([column[kept] for column in columns])
    columns = (np.concatenate(column) for column in zip(*parts, strict=True))
    return TrainingRows(*(np.asarray(column, np.float32) for column in columns))
