"""How trees are fitted to rows, with xgboost."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from tilecast.models.runtime.forest import Forest

_SHARED: dict[str, object] = {
    "tree_method": "hist",
    "max_bin": 64,
    # The result may differ in the last digits from one number of threads to another.
    "nthread": 1,
}


def boosted(
    features: np.ndarray,
    label: np.ndarray,
    weight: np.ndarray,
    rounds: int,
    parameters: Mapping[str, object],
) -> Forest:
    """Fit trees.

    Args:
        features: float array [rows, features].
        label: float array [rows].
        weight: the same.
        rounds: trees.
        parameters: of xgboost; the objective, what trees look like and the seed among them.
    """
    import xgboost

    matrix = xgboost.DMatrix(features, label=label, weight=weight, nthread=1)
    booster = xgboost.train({**parameters, **_SHARED}, matrix, num_boost_round=rounds)
    return Forest.of(json.loads(booster.save_raw("json")))
