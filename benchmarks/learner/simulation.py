"""What simulations on the shipped data share: parts of its families, and regret."""

from typing import NamedTuple

import numpy as np
from runner import SHOWN_K, Row
from selection_regret import DIGITS, Table

from tilecast.heuristics.heuristic import rank
from tilecast.models.evaluation.regret import MAX_K, HeldOut, regrets
from tilecast.models.learning.folds import folds
from tilecast.models.learning.labels import ProblemLabels, spread
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


def figures(rows: np.ndarray) -> Row:
    """What some problems lose at each k of `SHOWN_K`."""
    return {str(k): rounded_spread(rows[:, k - 1]) for k in SHOWN_K}


def rounded_spread(values: np.ndarray) -> Row:
    """How some losses spread, as a result keeps it."""
    return {name: round(value, DIGITS) for name, value in spread(values).items()}
