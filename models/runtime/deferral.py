"""When to leave a problem to cuBLAS: where it is expected to win, and where that is in doubt.

Trees predict a low estimate of a kernel's lead over cuBLAS, which nine in ten exceed: of operands
that few problems were measured of, that is further below the median. A kernel is taken where this
estimate reaches a margin, which `tilecast.models.learning.fit_deferral` chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilecast.models.features.features import FEATURE_NAMES, log_analytic
from tilecast.models.runtime.forest import Forest
from tilecast.models.runtime.objectives import regimes_of
from tilecast.models.runtime.ranker import ModelScores

MOST_MARGIN = 10.0
"""Margin that no lead reaches: with it every problem is left to cuBLAS."""
DEFERRAL_FEATURES = len(FEATURE_NAMES) + 3
"""Columns of `deferral_features`."""


@dataclass(frozen=True, eq=False)
class Deferral:
    """Says whether a first choice is worth taking, with cuBLAS there to do the same."""

    forests: Mapping[str, Forest]
    """For each regime trees that predict the lead of a config from `deferral_features`."""
    margins: Mapping[str, float]
    """For each objective the least lead of a first choice that is taken."""

    def least_lead(self, features: np.ndarray, objective: str) -> np.ndarray:
        """Log of cuBLAS's time over a config's, which nine in ten exceed; float [configs].

        Args:
            features: `deferral_features`, [configs, DEFERRAL_FEATURES].
            objective: for ``robust``, the lead is that of the regime where it is less.
        """
        leads = [self.forests[regime].predict(features) for regime in regimes_of(objective)]
        return np.minimum.reduce(leads)

    def defers(self, lead: float, objective: str) -> bool:
        """Whether a problem is left to cuBLAS, given the `least_lead` of its first choice."""
        return lead < self.margins[objective]


def deferral_features(features: np.ndarray, scores: ModelScores) -> np.ndarray:
    """What the trees see of configs: geometry and arithmetic, and what the ranker expects of them.

    How far a config is behind the first one tells the trees which are first choices: only these
    are asked about later.

    Features are those of `tilecast.models.features.features.featurize`, the first choice first, and
    scores `ConfigRanker.model_scores`; the result is float32 [configs, DEFERRAL_FEATURES].
    """
    analytic = log_analytic(features)
    behind = scores.blended - scores.blended[0]
    return np.column_stack([features, scores.trees - analytic, scores.network - analytic, behind])
