"""The readable ranker: one small decision tree, and a linear regression in each of its leaves.

This is the model that pytorch#119685 proposes: some hundred numbers, scored beside the boosted
trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilecast.heuristics.config_table import Candidates
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.features.features import featurize
from tilecast.models.learning.labels import ProblemLabels, check_power
from tilecast.models.learning.targets import log_analytic, training_rows
from tilecast.models.runtime.fitted import check_fitted

LEAVES = 16
"""Most leaves of the tree."""
LEAF_ROWS = 200
"""Fewest rows that a leaf is fitted to."""
ALPHA = 1.0
"""Ridge penalty on the regressions, in standardised features."""


@dataclass(eq=False)
class TreeLinearRanker:
    """Ranks configs with a decision tree whose leaves hold linear regressions.

    Attributes:
        tree_: scikit-learn's decision tree; set by `fit`, as all of these.
        intercept_: float64 [nodes], of the regression in a leaf.
        coefficients_: float64 [nodes, features], of the regression in a leaf.
    """

    name = "tree+linear"

    hardware: Hardware
    """The GPU that labels were measured on and rankings are for."""
    power: str = "robust"
    """Whose cost to learn."""

    def fit(self, table: Sequence[ProblemLabels]) -> Self:
        """Learn from the labels of each problem, `tilecast.models.learning.labels.label_table`.

        Raises:
            TilecastError: ``power`` is not known.
        """
        from sklearn.linear_model import Ridge
        from sklearn.tree import DecisionTreeRegressor

        rows = training_rows(table, self.hardware, check_power(self.power))
        leaf_rows = min(LEAF_ROWS, len(rows.residual))
        self.tree_ = DecisionTreeRegressor(
            max_leaf_nodes=LEAVES, min_samples_leaf=leaf_rows, random_state=0
        ).fit(rows.features, rows.residual, rows.weight)
        mean = rows.features.mean(0, np.float64)
        scale = np.maximum(rows.features.std(0, np.float64), 1e-6)
        nodes = self.tree_.tree_.node_count
        self.intercept_ = np.zeros(nodes)
        self.coefficients_ = np.zeros((nodes, rows.features.shape[1]))
        at = self.tree_.apply(rows.features)
        for leaf in np.unique(at):
            here = at == leaf
            standard = (rows.features[here] - mean) / scale
            line = Ridge(ALPHA).fit(standard, rows.residual[here], rows.weight[here])
            self.coefficients_[leaf] = line.coef_ / scale
            self.intercept_[leaf] = line.intercept_ - self.coefficients_[leaf] @ mean
        return self

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Expected log(cost) up to a constant of the problem, lower is better; float64 [configs].

        Raises:
            NotFittedError: `fit` has not been called.
        """
        check_fitted(self, "tree_")
        leaf = self.tree_.apply(features)
        line = np.einsum("ij,ij->i", features, self.coefficients_[leaf]) + self.intercept_[leaf]
        return line + log_analytic(features)

    def rank(
        self, problem: GemmProblem, candidates: Candidates, *, limit: int | None = None
    ) -> Candidates:
        """Order candidates by expected cost; see `tilecast.heuristics.heuristic.Heuristic`."""
        scores = self.scores(featurize(problem, candidates, self.hardware))
        return candidates.take(np.argsort(scores, kind="stable")[:limit])
