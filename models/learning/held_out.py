"""What a ranker says of a problem that it was not fitted on: the first of its rankings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilecast.models.learning.folds import Splits
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.learning.targets import problem_features
from tilecast.models.runtime.ranker import SURVIVORS, ConfigRanker, ModelScores

FIRST = 20
"""Configs of a ranking that are learned from at most."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """The first `FIRST` configs of a problem, best first, for one objective."""

    first: np.ndarray
    """Their indices among the configs of the labels."""
    features: np.ndarray
    """float32 [configs, features]."""
    scores: ModelScores
    """What trees and network say of them."""


@dataclass(frozen=True, eq=False)
class Asked:
    """A problem that a ranker had not seen, and its rankings."""

    labels: ProblemLabels
    """The problem, and what was measured."""
    rankings: Mapping[str, Ranking]
    """One for each objective."""


def ask(ranker: ConfigRanker, labels: ProblemLabels) -> Asked:
    """Rank the configs of a problem for each objective, at once."""
    features = problem_features(labels, ranker.hardware)
    survivors = ranker.pruned(features)[:SURVIVORS]
    rankings = {}
    for objective, scores in ranker.all_scores(features[survivors]).items():
        order = np.argsort(scores.blended, kind="stable")[:FIRST]
        first = survivors[order]
        chosen = ModelScores(scores.trees[order], scores.network[order])
        rankings[objective] = Ranking(first, features[first], chosen)
    return Asked(labels, rankings)


def ask_about_unseen(
    rankers: Sequence[ConfigRanker], table: Sequence[ProblemLabels], splits: Splits
) -> list[list[Asked]]:
    """Ask the ranker of each split about all problems, other GPUs' too, that it has not seen."""
    return [
        [ask(ranker, table[i]) for i in np.setdiff1d(np.arange(len(table)), seen)]
        for ranker, (seen, _) in zip(rankers, splits, strict=True)
    ]
