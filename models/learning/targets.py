"""What the rankers are fitted to: how far each config lies from what arithmetic expects of it.

The target of a row is log(time) - log(analytic time), less the problem's weighted mean of the
same. The analytic time carries what is known about geometry, and the mean removes what all configs
of a problem share, so that the model is spent on telling configs apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tilecast.heuristics.hardware import Hardware
from tilecast.models.features.features import featurize, log_analytic
from tilecast.models.learning.labels import ProblemLabels

FOCUS = 6.0
"""Exponent of a config's weight for the trees, slowdown ** -FOCUS: the order matters at the top."""
FLOOR = 0.02
"""Weight that even the slowest config keeps, so that it is not mistaken for a fast one."""
FAR = 1.25
"""Slowdown from which configs are thinned out."""
THINNING = 8
"""One in so many of the far ones is kept, they teach little; for trees with the weight of all."""


@lru_cache(maxsize=2**14)
def problem_features(labels: ProblemLabels, hardware: Hardware) -> np.ndarray:
    """The `featurize` of a labelled problem, kept: all folds share it.

    A problem that was measured on another GPU has the features that it has there.
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
    """float32 [rows]: log(time / analytic time), centred within each problem."""
    level: np.ndarray
    """float32 [rows]: log(time / analytic time) as it is."""
    weight: np.ndarray
    """float32 [rows]: near 1 at the best config of a problem, falling with the slowdown."""
    slowdown: np.ndarray
    """float32 [rows]: time over the problem's best."""


def training_rows(
    table: Sequence[ProblemLabels], hardware: Hardware, regimes: Sequence[str]
) -> TrainingRows:
    """Assemble features, targets and weights from labels, for the geometric mean of regimes."""
    parts = []
    for index, labels in enumerate(table):
        features = problem_features(labels, hardware)
        log_time = np.mean([np.log(labels.label[regime]) for regime in regimes], axis=0)
        slowdown = np.exp(log_time - log_time.min())
        level = log_time - log_analytic(features)
        near = slowdown**-FOCUS
        residual = level - np.average(level, weights=near)
        far = slowdown > FAR
        weight = (near + FLOOR) * np.where(far, THINNING, 1)
        kept = ~far | ((np.arange(len(far)) + index) % THINNING == 0)
        columns = (features, residual, level, weight, slowdown)
        parts.append([column[kept] for column in columns])
    columns = (np.concatenate(column) for column in zip(*parts, strict=True))
    return TrainingRows(*(np.asarray(column, np.float32) for column in columns))
