"""What simulations on the shipped data share: parts of its families, and regret."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from runner import SHOWN_K, Row
from selection_regret import DIGITS, Table

from tilecast.heuristics.heuristic import rank
from tilecast.models.evaluation.regret import HeldOut, error_of_mean, regrets
from tilecast.models.learning.folds import folds
from tilecast.models.learning.labels import MAX_K, ProblemLabels, spread
from tilecast.models.runtime.ranker import ConfigRanker


class Part(NamedTuple):
    """What a fifth of the families is for, in one of the rounds."""

    known: Table
    production: Table
    unseen: Table


def parts(table: Table) -> list[Part]:
    """Each fifth in turn is production, and the one behind it unseen."""
    held = [unseen for _, unseen in folds(table)]
    found = []
    for i, production in enumerate(held):
        unseen = held[(i + 1) % len(held)]
        known = np.setdiff1d(np.arange(len(table)), [*production, *unseen])
        found.append(Part(*([table[j] for j in part] for part in (known, production, unseen))))
    return found


def first(ranker: ConfigRanker, labels: ProblemLabels, count: int) -> list[int]:
    """The places of the configs that a ranker prefers, best first."""
    found = rank(ranker, labels.problem, labels.candidates, limit=count)
    return [labels.candidates.index(config) for config in found]


def regret(ranker: ConfigRanker, table: Table) -> np.ndarray:
    """Of some problems at every k; float64 [problems, MAX_K]."""
    picks = tuple(tuple(first(ranker, labels, MAX_K)) for labels in table)
    return regrets(HeldOut(ranker.name, ranker.objective, picks), table)


def figures(rows: np.ndarray, table: Table) -> Row:
    """What some problems lose at each of `SHOWN_K`, given their regret at every k."""
    families = [labels.problem.family for labels in table]
    return of_shown(rows[:, [k - 1 for k in SHOWN_K]], families)


def of_shown(rows: np.ndarray, families: Sequence[Hashable]) -> Row:
    """What problems of some families lose at each of `SHOWN_K`, which are the columns."""
    errors = error_of_mean(rows, families)
    return {
        str(k): {
            name: round(float(value), DIGITS)
            for name, value in {**spread(rows[:, i]), "error": errors[i]}.items()
        }
        for i, k in enumerate(SHOWN_K)
    }
