"""The readable ranker: one small decision tree, and a linear regression in each of its leaves.

This is the model that pytorch#119685 proposes: some hundred numbers, scored beside the boosted
trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilecast.heuristics.config import Candidates
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.features.features import featurize, log_analytic
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.learning.targets import training_rows
from tilecast.models.runtime.objectives import ROBUST, regimes_of

LEAVES = 16
"""Most leaves of the tree."""
LEAF_ROWS = 200
"""Fewest rows that a leaf is fitted to."""
ALPHA = 1.0
"""Ridge penalty on the regressions, in standardised features."""


@dataclass(frozen=True, eq=False)
class TreeLinearRanker:
    """Ranks configs with a decision tree whose leaves hold linear regressions."""

    name = "tree+linear"

    hardware: Hardware
    """The GPU that rankings are for."""
    tree: Any
    """scikit-learn's decision tree."""
    intercept: np.ndarray
    """float64 [nodes]: of the regression in a leaf."""
    coefficients: np.ndarray
    """float64 [nodes, features]: the same."""

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Expected log(time) up to a constant of the problem; float64 [configs]."""
        leaf = self.tree.apply(features)
        line = np.einsum("ij,ij->i", features, self.coefficients[leaf]) + self.intercept[leaf]
        return line + log_analytic(features)

    def rank(
        self, problem: GemmProblem, candidates: Candidates, *, limit: int | None = None
    ) -> Candidates:
        """Order candidates by expected cost; see `tilecast.heuristics.heuristic.Heuristic`."""
        scores = self.scores(featurize(problem, candidates, self.hardware))
        return candidates.take(np.argsort(scores, kind="stable")[:limit])


def fit_tree_linear(
    table: Sequence[ProblemLabels], objective: str = ROBUST, *, hardware: Hardware
) -> TreeLinearRanker:
    """Learn from the labels of each problem, `tilecast.models.learning.labels.label_table`."""
    from sklearn.linear_model import Ridge
    from sklearn.tree import DecisionTreeRegressor

    rows = training_rows(table, hardware, regimes_of(objective))
    leaf_rows = min(LEAF_ROWS, len(rows.residual))
    tree: Any = DecisionTreeRegressor(
        max_leaf_nodes=LEAVES, min_samples_leaf=leaf_rows, random_state=0
    ).fit(rows.features, rows.residual, rows.weight)
    mean = rows.features.mean(0, np.float64)
    scale = np.maximum(rows.features.std(0, np.float64), 1e-6)
    intercept = np.zeros(tree.tree_.node_count)
    coefficients = np.zeros((len(intercept), rows.features.shape[1]))
    at = tree.apply(rows.features)
    for leaf in np.unique(at):
        here = at == leaf
        standard = (rows.features[here] - mean) / scale
        line = Ridge(ALPHA).fit(standard, rows.residual[here], rows.weight[here])
        coefficients[leaf] = line.coef_ / scale
        intercept[leaf] = line.intercept_ - coefficients[leaf] @ mean
    return TreeLinearRanker(hardware, tree, intercept, coefficients)
