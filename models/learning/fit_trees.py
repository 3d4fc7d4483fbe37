"""How the trees are fitted: to the rows of all problems, for one power."""

from __future__ import annotations

from functools import lru_cache

from tilecast.heuristics.hardware import Hardware
from tilecast.models.learning.boosting import boosted
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.learning.targets import training_rows
from tilecast.models.runtime.forest import Forest

LEVEL_ROUNDS, LEVEL_DEPTH = 100, 5
"""Trees that learn the level of times, and their depth."""
GOOD = 1.05
"""Slowdown up to which a config tells the level of a problem's times."""

_LOOKS: dict[str, object] = {
    "objective": "reg:squarederror",
    "learning_rate": 0.1,
    "subsample": 0.5,
    "colsample_bytree": 0.5,
}


@lru_cache(maxsize=32)
def fit_distance(
    table: tuple[ProblemLabels, ...],
    hardware: Hardware,
    power: str,
    rounds: int,
    max_depth: int,
    seed: int = 0,
) -> Forest:
    """Learn how far a config's cost lies from its analytic time, up to a constant of the problem.

    The trees of the last tables are kept: who trains and who scores share them.

    Args:
        table: labels of the problems to learn from, one at least.
        hardware: the GPU that they were measured on, unless they name another.
        power: whose cost to learn.
        rounds: trees.
        max_depth: of a tree.
        seed: of the rows and columns that are drawn for each tree.
    """
    rows = training_rows(table, hardware, power)
    parameters = _LOOKS | {"max_depth": max_depth, "seed": seed}
    return boosted(rows.features, rows.residual, rows.weight, rounds, parameters)


def fit_level(
    table: tuple[ProblemLabels, ...], hardware: Hardware, power: str, seed: int = 0
) -> Forest:
    """Learn log(time / analytic time) of good configs; arguments as `fit_distance`."""
    rows = training_rows(table, hardware, power)
    good = rows.slowdown < GOOD
    taught = (rows.features[good], rows.level[good], rows.weight[good])
    return boosted(*taught, LEVEL_ROUNDS, _LOOKS | {"max_depth": LEVEL_DEPTH, "seed": seed})
