"""How a ranker is fitted: its trees and its network to the labels of the same problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from tilecast.heuristics.hardware import Hardware
from tilecast.models.learning.autotune_pairs import Comparison
from tilecast.models.learning.fit_network import PASSES, fit_network
from tilecast.models.learning.fit_trees import DEPTH, ROUNDS, fit_distance
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.runtime.objectives import ROBUST, check_objective
from tilecast.models.runtime.ranker import ConfigRanker


def fit_ranker(
    table: Sequence[ProblemLabels],
    objective: str = ROBUST,
    *,
    hardware: Hardware,
    compared: Sequence[Comparison] = (),
    rounds: int = ROUNDS,
    depth: int = DEPTH,
    passes: int = PASSES,
    seed: int = 0,
) -> ConfigRanker:
    """Learn from the labels of each problem, `tilecast.models.learning.labels.label_table`.

    Args:
        table: the labels, of one problem at least.
        objective: what the ranking aims at.
        hardware: the GPU that rankings are for, and that labels were measured on unless they name
            another.
        compared: what else is known of the order of configs, of problems that the table lacks.
        rounds: trees.
        depth: of a tree.
        passes: how often the network sees each problem, within `MOST_STEPS`.
        seed: of everything that is drawn.

    Raises:
        TilecastError: ``objective`` is not known.
    """
    check_objective(objective)
    fitted = _fitted(tuple(table), tuple(compared), hardware, rounds, depth, passes, seed)
    return replace(fitted, objective=objective)


@lru_cache(maxsize=8)
def _fitted(
    table: tuple[ProblemLabels, ...],
    compared: tuple[Comparison, ...],
    hardware: Hardware,
    rounds: int,
    depth: int,
    passes: int,
    seed: int,
) -> ConfigRanker:
    """Kept for the last tables: all objectives share it, and training shares it with scoring."""
    forest = fit_distance(table, hardware, rounds, depth, seed)
    return ConfigRanker(hardware, forest, fit_network(table, compared, hardware, passes, seed))
