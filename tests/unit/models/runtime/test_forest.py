"""Trees as arrays predict as XGBoost does, and what is no sound forest is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xgboost

from tilecast.models.runtime.forest import MAX_DEPTH, MAX_LEAVES, Forest

COLUMNS = 9
SIGNALING_NAN = np.array(0x7F800001, np.uint32).view(np.float32)
"""Arithmetic on it warns."""
ROWS = np.random.default_rng(0).normal(size=(600, COLUMNS)).astype(np.float32)
TARGET = ROWS[:, 0] * (ROWS[:, 1] > 0) + np.sin(ROWS[:, 2]) + 0.1 * ROWS[:, 3]


def _booster(objective: str, depth: int = 7) -> xgboost.Booster:
    targets = {"label": TARGET}
    if objective == "rank:ndcg":
        targets = {"label": np.floor(8 * (TARGET > 0)), "qid": np.arange(len(ROWS)) // 50}
    parameters = {"objective": objective, "max_depth": depth, "subsample": 0.7, "nthread": 1}
    return xgboost.train(parameters, xgboost.DMatrix(ROWS, **targets), num_boost_round=30)


def _forest(booster: xgboost.Booster) -> Forest:
    return Forest.of(json.loads(booster.save_raw("json")))


@pytest.mark.parametrize("objective", ["reg:squarederror", "rank:ndcg"])
@pytest.mark.parametrize("depth", [1, 2, 7])
def test_predictions_are_those_of_xgboost_bit_for_bit(objective: str, depth: int) -> None:
    booster = _booster(objective, depth)
    forest = _forest(booster)
    assert forest.trees == 30
    assert 1 <= forest.depth <= depth
    # One row and a few, a block of XGBoost's and more, and features that no row was trained on.
    others = np.random.default_rng(1).uniform(-9, 9, ROWS.shape).astype(np.float32)
    for features in (ROWS[:1], ROWS[:2], ROWS[:3], ROWS[:64], ROWS, others):
        for trees in (1, 11, 30):
            np.testing.assert_array_equal(
                forest.predict(features, trees),
                booster.inplace_predict(features, iteration_range=(0, trees)),
            )
    np.testing.assert_array_equal(forest.predict(ROWS), forest.predict(ROWS, 99))
    assert forest.predict(ROWS[:0]).shape == (0,)


def test_a_value_at_a_threshold_goes_right() -> None:
    booster = _booster("reg:squarederror")
    forest = _forest(booster)
    edges = forest.threshold[np.isfinite(forest.threshold)]
    features = np.random.default_rng(2).choice(edges, ROWS.shape).astype(np.float32)
    np.testing.assert_array_equal(forest.predict(features), booster.inplace_predict(features))


def test_trees_without_a_split_predict_a_constant() -> None:
    booster = xgboost.train({"nthread": 1}, xgboost.DMatrix(ROWS, label=np.ones(len(ROWS))), 3)
    forest = _forest(booster)
    np.testing.assert_array_equal(forest.predict(ROWS), booster.inplace_predict(ROWS))


def _unpacked(forest: Forest, content: bytes | None = None, **other: Any) -> Forest:
    shape: dict[str, Any] = {"trees": forest.trees, "depth": forest.depth, "base": forest.base}
    return Forest.unpack(
        forest.pack() if content is None else content, **({"features": COLUMNS} | shape | other)
    )


def test_packing_keeps_every_bit() -> None:
    forest = _forest(_booster("reg:squarederror"))
    again = _unpacked(forest)
    assert again.pack() == forest.pack()
    assert len(forest.pack()) == Forest.packed_bytes(forest.trees, forest.depth)
    np.testing.assert_array_equal(again.predict(ROWS), forest.predict(ROWS))


def _changed(name: str, value: object) -> Callable[[Forest], bytes]:
    """The packed arrays with one element changed."""

    def change(forest: Forest) -> bytes:
        arrays = {n: getattr(forest, n).copy() for n in ("feature", "threshold", "value", "cover")}
        arrays[name][3] = value
        return b"".join(array.tobytes() for array in arrays.values())

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_changed("feature", COLUMNS), "feature 9 of 9"),
        (_changed("threshold", np.nan), "a threshold that is no number"),
        (_changed("threshold", SIGNALING_NAN), "a threshold that is no number"),
        (_changed("threshold", -np.inf), "a threshold that is no number"),
        (_changed("value", np.nan), "a leaf that is no number"),
        (_changed("value", SIGNALING_NAN), "a leaf that is no number"),
        (_changed("value", -np.inf), "a leaf that is no number"),
        (_changed("value", 1e9), r"leaves that add up to 1e\+09"),
        (_changed("cover", -1), "a cover that is no weight"),
        (_changed("cover", np.inf), "a cover that is no weight"),
        (_changed("cover", SIGNALING_NAN), "a cover that is no weight"),
    ],
)
def test_an_unsound_forest_is_refused(change: Callable[[Forest], bytes], reason: str) -> None:
    forest = _forest(_booster("reg:squarederror"))
    with pytest.raises(ValueError, match=reason):
        _unpacked(forest, change(forest))


@pytest.mark.parametrize(
    "shape",
    [
        *((0, 7), (-1, 7), (True, 7), (10**4000, 7)),
        *((30, 0), (30, MAX_DEPTH + 1), (MAX_LEAVES, 1)),
    ],
)
def test_a_shape_beyond_bounds_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError):
        Forest.packed_bytes(*shape)


@pytest.mark.parametrize("base", [float("nan"), 1e9, 0, 10**400, "0"])
def test_a_base_that_is_no_logarithm_is_refused(base: Any) -> None:
    with pytest.raises(ValueError):
        _unpacked(_forest(_booster("reg:squarederror")), base=base)
