"""How the trees are fitted, with xgboost: to the rows of all problems."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.heuristics.hardware import Hardware
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.learning.targets import training_rows
from tilecast.models.runtime.forest import Forest

ROUNDS, DEPTH, RATE = 60, 9, 0.25
"""Trees that rank, their depth and the learning rate."""
TIME_ROUNDS, TIME_DEPTH, TIME_RATE = 100, 5, 0.1
"""Of those that predict times."""
GOOD = 1.05
"""Slowdown up to which a config tells the level of a problem's times."""

_SHARED: dict[str, object] = {
    "tree_method": "hist",
    "max_bin": 64,
    # The result may differ in the last digits from one number of threads to another.
    "nthread": 1,
}


def fit_distance(
    table: Sequence[ProblemLabels],
    hardware: Hardware,
    rounds: int = ROUNDS,
    depth: int = DEPTH,
    seed: int = 0,
) -> Forest:
    """Learn how far a config lies from its analytic time in the mean over both regimes.

    The trees predict log(time / analytic time) up to a constant of the problem.
    """
    rows = training_rows(table, hardware, REGIMES)
    parameters = _parameters(depth, RATE, seed)
    return boosted(rows.features, rows.residual, rows.weight, rounds, parameters)


def fit_times(
    table: Sequence[ProblemLabels], hardware: Hardware, regime: str, seed: int = 0
) -> Forest:
    """Learn log(time / analytic time) of good configs in a regime; see `fit_distance`."""
    rows = training_rows(table, hardware, (regime,))
    good = rows.slowdown < GOOD
    taught = (rows.features[good], rows.level[good], rows.weight[good])
    return boosted(*taught, TIME_ROUNDS, _parameters(TIME_DEPTH, TIME_RATE, seed))


def _parameters(depth: int, rate: float, seed: int) -> dict[str, object]:
    """Of trees that rank or predict times, for `boosted`."""
    return {
        "objective": "reg:squarederror",
        "subsample": 0.5,
        "colsample_bytree": 0.5,
        "max_depth": depth,
        "learning_rate": rate,
        "seed": seed,
    }


def boosted(
    features: np.ndarray,
    label: np.ndarray,
    weight: np.ndarray,
    rounds: int,
    parameters: Mapping[str, object],
) -> Forest:
    """Fit so many trees to features [rows, features], labels [rows] and weights [rows].

    ``parameters`` are xgboost's; the objective, the size of a tree and the seed are among them.
    """
    import xgboost

    matrix = xgboost.DMatrix(features, label=label, weight=weight, nthread=1)
    booster = xgboost.train({**parameters, **_SHARED}, matrix, num_boost_round=rounds)
    return Forest.of(json.loads(booster.save_raw("json")))
