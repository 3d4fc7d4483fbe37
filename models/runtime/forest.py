"""Boosted trees as plain arrays, evaluated with numpy.

Every tree is filled up to one depth, so that the children of a node are where its own place says:
there is nothing in the arrays that could lead out of them. What is read from disk is checked once
by `Forest.unpack` and handed to no library, so a forged model can be wrong but do no harm. The sums
are those of XGBoost, bit for bit; prediction needs neither it nor what it brings along.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

MAX_DEPTH = 12
"""Comparisons on the way to a leaf."""
MAX_TREES = 2**11
"""Trees of one forest: each takes some 10 KB to rank a problem."""
MAX_LEAVES = 2**18
"""Leaves of all trees together: some 3 MB, eight times those of a shipped forest."""
MAX_SUM = 50.0
"""What the trees may add up to: they predict logarithms, and e^50 fits into a float."""


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees whose leaves add up to a prediction.

    Level d of the trees holds ``trees * 2**d`` nodes, tree after tree; the children of node i are
    2 i (smaller than the threshold) and 2 i + 1 in the next level. Below a leaf that comes early
    all goes to 2 i, for no number reaches a threshold of infinity.
    """

    trees: int
    """How many there are, T."""
    depth: int
    """Levels of comparisons, D: 1 or more."""
    base: float
    """What is predicted before the first tree."""
    feature: np.ndarray
    """uint8 [T (2^D - 1)]: which feature each node compares, level after level."""
    threshold: np.ndarray
    """float32 [T (2^D - 1)]: with what."""
    value: np.ndarray
    """float32 [T 2^D]: what each leaf adds."""
    cover: np.ndarray
    """float32 [T 2^D]: weight of the training rows that ended in each leaf; nothing reads it."""

    @classmethod
    def of(cls, model: Mapping[str, Any]) -> Forest:
        """Take over what ``xgboost.Booster.save_raw("json")`` says of a model.

        It has scalar trees over at most 256 features, and no categories.
        """
        learner = model["learner"]
        trees = learner["gradient_booster"]["model"]["trees"]
        sizes = [len(tree["left_children"]) for tree in trees]
        root = np.cumsum([0, *sizes[:-1]])

        def column(name: str) -> np.ndarray:
            return np.concatenate([tree[name] for tree in trees])

        shift = np.repeat(root, sizes)
        left, right = column("left_children"), column("right_children")
        inner, left, right = left >= 0, left + shift, right + shift
        index, split = column("split_indices"), column("split_conditions").astype(np.float32)
        levels: list[tuple[np.ndarray, np.ndarray]] = []
        node, place = root, np.arange(len(trees))
        while not levels or inner[node].any():
            feature = np.zeros(len(trees) << len(levels), np.uint8)
            threshold = np.full(len(feature), np.inf, np.float32)
            goes_on = inner[node]
            at = node[goes_on]
            feature[place[goes_on]], threshold[place[goes_on]] = index[at], split[at]
            node = np.concatenate([np.where(goes_on, left[node], node), right[at]])
            place = np.concatenate([2 * place, 2 * place[goes_on] + 1])
            levels.append((feature, threshold))
        value, cover = np.zeros((2, len(trees) << len(levels)), np.float32)
        value[place], cover[place] = split[node], column("sum_hessian")[node]
        features, thresholds = (np.concatenate(arrays) for arrays in zip(*levels, strict=True))
        stated = json.loads(learner["learner_model_param"]["base_score"])
        base = float(np.ravel(stated).astype(np.float32)[0])
        return cls(len(trees), len(levels), base, features, thresholds, value, cover)

    def pack(self) -> bytes:
        """The arrays, one behind the other, little-endian."""
        arrays = (self.feature, self.threshold, self.value, self.cover)
        return b"".join(a.astype(a.dtype.newbyteorder("<")).tobytes() for a in arrays)

    @staticmethod
    def packed_bytes(trees: int, depth: int) -> int:
        """Length of what `pack` returns.

        Raises:
            ValueError: such a forest would be empty or too large.
        """
        if type(trees) is not int or type(depth) is not int:
            raise ValueError("trees and depth that are no integers")
        fits = 0 < trees <= MAX_TREES and 0 < depth <= MAX_DEPTH
        if not fits or trees << depth > MAX_LEAVES:
            raise ValueError(f"{trees} trees of depth {depth}")
        return 5 * trees * (2**depth - 1) + 8 * (trees << depth)

    @classmethod
    def unpack(
        cls, content: bytes, *, trees: int, depth: int, base: float, features: int
    ) -> Forest:
        """Read what `pack` returned, of `packed_bytes`, and check all that a prediction relies on.

        Raises:
            ValueError: it is no sound forest; says why.
        """
        if type(base) is not float:
            raise ValueError("a base that is no number")
        nodes, leaves = trees * (2**depth - 1), trees << depth
        feature = np.frombuffer(content, np.uint8, nodes)
        rest = np.frombuffer(content, "<f4", offset=nodes).astype(np.float32)
        threshold, value, cover = np.split(rest, [nodes, nodes + leaves])
        if feature.max() >= features:
            raise ValueError(f"feature {feature.max()} of {features}")
        if (np.isnan(threshold) | np.isneginf(threshold)).any():
            raise ValueError("a threshold that is no number")
        if not np.isfinite(cover).all() or cover.min() < 0:
            raise ValueError("a cover that is no weight")
        if not np.isfinite(value).all():
            raise ValueError("a leaf that is no number")
        most = abs(base) + np.abs(value.reshape(trees, -1)).max(1).sum(dtype=np.float64)
        if not most <= MAX_SUM:
            raise ValueError(f"leaves that add up to {most:g}")
        return cls(trees, depth, base, feature, threshold, value, cover)

    @cached_property
    def levels(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Features, as indices, and thresholds of each level's nodes."""
        ends = self.trees * (2 ** np.arange(1, self.depth) - 1)
        features = np.split(self.feature.astype(np.intp), ends)
        return list(zip(features, np.split(self.threshold, ends), strict=True))

    def predict(self, features: np.ndarray, trees: int | None = None) -> np.ndarray:
        """Evaluate the trees, or the first so many: float32 [rows].

        Features are float32 [rows, features], without NaN.
        """
        trees = self.trees if trees is None else min(trees, self.trees)
        values = _at(self.value, self._leaves(features, trees))
        values[0] += self.base
        if len(features) > 1:
            return np.add.reduce(values, axis=0)
        # Like the sum of several rows, and XGBoost: tree after tree, which a plain sum is not.
        return np.add.accumulate(values, axis=0)[-1]

    def _leaves(self, features: np.ndarray, trees: int) -> np.ndarray:
        """Where each row ends in each tree; integers [trees, rows], indices into ``value``."""
        rows, width = features.shape
        flat, start = features.ravel(), np.arange(0, rows * width, width)
        (feature, threshold), *below = self.levels
        right = _at(flat, feature[:trees, None] + start) >= threshold[:trees, None]
        node = np.arange(0, 2 * trees, 2)[:, None] + right
        for feature, threshold in below:
            at = _at(feature, node)
            at += start
            right = _at(flat, at) >= _at(threshold, node)
            node += node
            node += right
        return node


def _at(values: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Elements at indices that are in range by construction: to wrap is quicker than to look."""
    return values.take(indices, mode="wrap")
