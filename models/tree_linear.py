"""The readable ranker: one small decision tree, and a linear regression in each of its leaves.

This is the model that pytorch#119685 proposes. It holds some hundred numbers, needs nothing but
numpy to predict, and is scored beside the boosted trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.features import FEATURE_NAMES, featurize
from tilecast.models.labels import ProblemLabels, check_power
from tilecast.models.ranker import NotFittedError
from tilecast.models.targets import log_analytic, training_rows

_ARRAYS = {
    "feature": np.int64,
    "threshold": np.float64,
    "left": np.int64,
    "right": np.int64,
    "intercept": np.float64,
    "coefficients": np.float64,
}
"""What a fitted model consists of, and in which dtype."""


class TreeLinearRanker:
    """Ranks configs with a decision tree whose leaves hold linear regressions.

    Attributes:
        feature_: int64 [nodes], the feature that a node asks about, -1 in a leaf.
        threshold_: float64 [nodes], up to which its answer is left.
        left_: int64 [nodes], the next node when it is.
        right_: int64 [nodes], the next node when it is not.
        intercept_: float64 [nodes], of the regression in a leaf.
        coefficients_: float64 [nodes, features], of the regression in a leaf.
    """

    name = "tree+linear"

    def __init__(
        self,
        hardware: Hardware,
        power: str = "robust",
        *,
        leaves: int = 16,
        leaf_rows: int = 200,
        alpha: float = 1.0,
        focus: float = 6.0,
    ):
        """Store the settings.

        Args:
            hardware: the GPU that labels were measured on and rankings are for.
            power: whose cost to learn.
            leaves: most leaves of the tree.
            leaf_rows: fewest rows that a leaf is fitted to.
            alpha: ridge penalty on the regressions, in standardised features.
            focus: how strongly training looks at the best configs (`training_rows`).
        """
        self.hardware = hardware
        self.power = power
        self.leaves = leaves
        self.leaf_rows = leaf_rows
        self.alpha = alpha
        self.focus = focus

    def fit(self, table: Sequence[ProblemLabels]) -> Self:
        """Learn from labels.

        Args:
            table: one entry per problem, `tilecast.models.labels.label_table`.

        Raises:
            TilecastError: ``power`` is not known.
        """
        from sklearn.linear_model import Ridge
        from sklearn.tree import DecisionTreeRegressor

        rows = training_rows(table, self.hardware, check_power(self.power), self.focus)
        leaf_rows = min(self.leaf_rows, len(rows.residual))
        model = DecisionTreeRegressor(
            max_leaf_nodes=self.leaves, min_samples_leaf=leaf_rows, random_state=0
        ).fit(rows.features, rows.residual, rows.weight)
        tree = model.tree_
        leaf = tree.children_left < 0
        self.feature_ = np.where(leaf, -1, tree.feature)
        self.threshold_ = np.asarray(tree.threshold)
        self.left_ = np.asarray(tree.children_left)
        self.right_ = np.asarray(tree.children_right)
        mean = rows.features.mean(0, np.float64)
        scale = np.maximum(rows.features.std(0, np.float64), 1e-6)
        self.intercept_ = np.zeros(tree.node_count)
        self.coefficients_ = np.zeros((tree.node_count, rows.features.shape[1]))
        at = model.apply(rows.features)
        for node in np.flatnonzero(leaf):
            here = at == node
            standard = (rows.features[here] - mean) / scale
            line = Ridge(self.alpha).fit(standard, rows.residual[here], rows.weight[here])
            self.coefficients_[node] = line.coef_ / scale
            self.intercept_[node] = line.intercept_ - self.coefficients_[node] @ mean
        return self

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Expected log(cost) of configs, up to a constant of the problem; lower is better.

        Args:
            features: `featurize` of one problem.

        Returns:
            float64 array [configs].

        Raises:
            NotFittedError: neither `fit` nor `restore` has been called.
        """
        if not hasattr(self, "feature_"):
            raise NotFittedError(self)
        node = np.zeros(len(features), np.int64)
        rows = np.arange(len(features))
        while (inner := self.feature_[node] >= 0).any():
            at = node[inner]
            goes_left = features[rows[inner], self.feature_[at]] <= self.threshold_[at]
            node[inner] = np.where(goes_left, self.left_[at], self.right_[at])
        line = np.einsum("ij,ij->i", features, self.coefficients_[node]) + self.intercept_[node]
        return line + log_analytic(features)

    def order(self, features: np.ndarray) -> np.ndarray:
        """Indices of configs, best first.

        Args:
            features: `featurize` of one problem.

        Raises:
            NotFittedError: neither `fit` nor `restore` has been called.
        """
        return np.argsort(self.scores(features), kind="stable")

    def rank(
        self, problem: GemmProblem, candidates: Sequence[KernelConfig], *, limit: int | None = None
    ) -> list[KernelConfig]:
        """Order candidates by expected cost; see `tilecast.heuristics.heuristic.Heuristic`."""
        order = self.order(featurize(problem, candidates, self.hardware))
        return [candidates[i] for i in order[:limit].tolist()]

    def state(self) -> dict[str, list]:
        """The fitted model as plain data, for `restore`.

        Raises:
            NotFittedError: the ranker is not fitted.
        """
        if not hasattr(self, "feature_"):
            raise NotFittedError(self)
        return {name: getattr(self, f"{name}_").tolist() for name in _ARRAYS}

    def restore(self, state: dict[str, list]) -> Self:
        """Take over what `state` returned.

        Raises:
            TilecastError: it does not describe a tree over these features.
        """
        try:
            arrays = {name: np.array(state[name], dtype) for name, dtype in _ARRAYS.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise _no_tree(repr(error)) from error
        nodes = len(arrays["feature"])
        shapes = {array.shape for array in arrays.values()}
        if shapes != {(nodes,), (nodes, len(FEATURE_NAMES))}:
            raise _no_tree(f"shapes {sorted(shapes)}")
        inner = np.flatnonzero(arrays["feature"] >= 0)
        # Children come after their parent, so a walk always ends.
        for side in ("left", "right"):
            if not ((arrays[side][inner] > inner) & (arrays[side][inner] < nodes)).all():
                raise _no_tree(f"{side} child out of order")
        if arrays["feature"].max() >= len(FEATURE_NAMES):
            raise _no_tree("unknown feature")
        for name, array in arrays.items():
            setattr(self, f"{name}_", array)
        return self


def _no_tree(reason: str) -> TilecastError:
    return TilecastError(
        f"the decision tree cannot be read ({reason}); allowed: what `tilecast train` wrote; "
        "train it again"
    )
