"""The learned ranker: boosted trees that say how far a config lies from its analytic time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Self

import numpy as np

from tilecast.heuristics.candidates import Candidates
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.comparisons import Comparison
from tilecast.models.features import FEATURE_NAMES, featurize
from tilecast.models.fitted import check_fitted
from tilecast.models.forest import Forest
from tilecast.models.labels import ProblemLabels, check_power
from tilecast.models.shapley import contributions
from tilecast.models.targets import ANALYTIC, log_analytic, order_rows, training_rows

DISTINCT = 10
"""Configs at the head of a ranking that differ in more than their schedule."""

_SHAPE_BITS = {
    "tile_m": 9,
    "tile_n": 9,
    "tile_k": 8,
    "cluster_m": 3,
    "cluster_n": 3,
    "warp_groups": 2,
    "ctas_per_sm": 2,
    "swap_ab": 1,
    "split_k": 4,
    "ping_pong": 1,
}
"""What remains of a config without its schedule, and how many bits each number takes."""
_SHAPE = np.array([FEATURE_NAMES.index(name) for name in _SHAPE_BITS])
_SHAPE_DIGITS = 2.0 ** np.cumsum([0, *_SHAPE_BITS.values()])[:-1]
"""Turns these columns into one number for each combination."""


@dataclass(eq=False)
class ConfigRanker:
    """Ranks configs with two sets of boosted trees whose errors differ.

    The first is fitted to the distance of a config's cost from its analytic time, the second
    (LambdaMART) to the order of the configs of a problem. The analytic time and
    then a few of the first one's trees prune; all trees of both rank what is left. ``features`` are
    rows of `featurize` of one problem, [configs, features].

    Attributes:
        distance_: predicts log(cost / analytic time) up to a constant of the problem; set by `fit`.
        relevance_: predicts a number that is higher for a config that is nearer the best; set by
            `fit`.
        level_: predicts log(time / analytic time) of good configs; set by `fit`, None where times
            are not asked for and for ``robust``, whose cost is no time.
    """

    name = "tilecast"
    level_ = None

    hardware: Hardware
    """The GPU that labels were measured on and rankings are for."""
    power: str = "robust"
    """Whose cost to learn."""
    _: KW_ONLY
    rounds: int = 200
    """Trees of each set."""
    entrants: int = 512
    """Candidates that the analytic time lets through to the trees."""
    coarse_rounds: int = 40
    """Trees that all entrants pass through."""
    survivors: int = 48
    """Candidates that pass through all trees."""
    max_depth: int = 8
    """Depth of a tree."""
    focus: float = 6.0
    """How strongly training looks at the best configs (`training_rows`)."""
    blend: float = 0.04
    """Log cost that one unit of ``relevance_`` stands for."""
    times: bool = True
    """Learn run times, too; a ranking needs none."""
    seed: int = 0
    """Of the row and column sampling."""

    def fit(self, table: Sequence[ProblemLabels], compared: Sequence[Comparison] = ()) -> Self:
        """Learn from the labels of each problem, `tilecast.models.labels.label_table`.

        Args:
            table: the labels, of one problem at least.
            compared: what else is known of the order of configs, of problems that the table lacks.

        Raises:
            TilecastError: ``power`` is not known.
        """
        rows = training_rows(table, self.hardware, check_power(self.power), self.focus)
        self.distance_ = self._trained(
            rows.features, _REGRESSION, label=rows.residual, weight=rows.weight
        )
        # Whole numbers from 31, which is the most that XGBoost takes, for the best, down to 0.
        order = order_rows(rows, compared, self.hardware)
        relevance = np.floor(31 * np.exp(-(order.slowdown - 1) / _NEAR))
        self.relevance_ = self._trained(order.features, _ORDER, label=relevance, qid=order.group)
        if self.times and self.power != "robust":
            good = rows.slowdown < _GOOD
            targets = {"label": rows.level[good], "weight": rows.weight[good]}
            self.level_ = self._trained(rows.features[good], _LEVEL, rounds=100, **targets)
        return self

    def _trained(
        self,
        features: np.ndarray,
        objective: dict[str, object],
        rounds: int | None = None,
        **targets: np.ndarray,
    ) -> Forest:
        import xgboost

        parameters = {
            "tree_method": "hist",
            "max_bin": 64,
            "max_depth": self.max_depth,
            "learning_rate": 0.1,
            "subsample": 0.7,
            "colsample_bytree": 0.5,
            "seed": self.seed,
            # The result may differ in the last digits from one number of threads to another.
            "nthread": 1,
        } | objective
        matrix = xgboost.DMatrix(features, nthread=1, **targets)
        booster = xgboost.train(parameters, matrix, num_boost_round=rounds or self.rounds)
        return Forest.of(json.loads(booster.save_raw("json")))

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Expected log(cost) up to a constant of the problem, lower is better; float32 [configs].

        Raises:
            NotFittedError: `fit` has not been called.
        """
        return self.blended(*self.model_scores(features))

    def model_scores(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What each set of trees says of configs, before the two are blended.

        Returns:
            Two float32 arrays [configs]: expected log(cost) up to a constant of the problem, from
            ``distance_``; a number that is higher for a better config, from ``relevance_``.

        Raises:
            NotFittedError: `fit` has not been called.
        """
        check_fitted(self, "distance_")
        distance = self.distance_.predict(features) + log_analytic(features)
        return distance, self.relevance_.predict(features)

    def blended(self, distance: np.ndarray, relevance: np.ndarray) -> np.ndarray:
        """The `scores` of configs of which `model_scores` are known."""
        return distance - np.float32(self.blend) * relevance

    def order(self, features: np.ndarray) -> np.ndarray:
        """Indices of configs, best first.

        Three steps, each on what the one before let through: the analytic time, a few trees, all
        trees. What a step drops follows the others in that step's order. The first `DISTINCT`
        differ in more than their schedule (stages, raster, swizzle): two schedules of one shape are
        right or wrong together, so the second adds little to what a short list finds.

        Raises:
            NotFittedError: `fit` has not been called.
        """
        check_fitted(self, "distance_")
        analytic = log_analytic(features)
        by_analytic = _ascending(analytic)
        entrants, dropped = by_analytic[: self.entrants], by_analytic[self.entrants :]

        coarse = self.distance_.predict(features[entrants], self.coarse_rounds)
        by_coarse = entrants[_ascending(coarse + analytic[entrants])]
        survivors, late = by_coarse[: self.survivors], by_coarse[self.survivors :]

        kept = features[survivors]
        by_score = _ascending(self.scores(kept))
        shapes = kept[by_score[:, None], _SHAPE] @ _SHAPE_DIGITS
        leading = np.zeros(len(by_score), bool)
        leading[np.sort(np.unique(shapes, return_index=True)[1])[:DISTINCT]] = True
        ranked = survivors[by_score]
        return np.concatenate([ranked[leading], ranked[~leading], late, dropped])

    def contributions(self, features: np.ndarray) -> np.ndarray:
        """What each feature adds to each score, the analytic time's own part included.

        Returns:
            float64 array [configs, features]; differences between configs add up to those of
            `scores`.

        Raises:
            NotFittedError: `fit` has not been called.
        """
        check_fitted(self, "distance_")
        parts = contributions(self.distance_, features)
        parts -= self.blend * contributions(self.relevance_, features)
        parts[:, ANALYTIC] += log_analytic(features)
        return parts

    def rank(
        self, problem: GemmProblem, candidates: Candidates, *, limit: int | None = None
    ) -> Candidates:
        """Order candidates by expected cost; see `tilecast.heuristics.heuristic.Heuristic`."""
        return candidates.take(self.order(featurize(problem, candidates, self.hardware))[:limit])

    def best_microseconds(self, features: np.ndarray) -> float:
        """Expected time of a config that is among the best; features are [1, features].

        Raises:
            NotFittedError: `fit` has not been called.
            TilecastError: the ranker has learned no times: it is for ``robust``, whose cost is
                none, or was told not to.
        """
        check_fitted(self, "distance_")
        if self.level_ is None:
            raise TilecastError(
                f"this ranker for {self.power} has learned no times; allowed: burst, sustained; "
                "ask the ranker of one"
            )
        return float(np.exp(self.level_.predict(features) + log_analytic(features))[0])


def _ascending(values: np.ndarray) -> np.ndarray:
    """Indices from the smallest on; of equal ones the earlier comes first."""
    return np.argsort(values, kind="stable")


_GOOD = 1.05
"""Slowdown up to which a config tells the level of a problem's times."""
_NEAR = 0.02
"""Slowdown, less 1, over which a config's relevance falls to 1/e."""
_REGRESSION: dict[str, object] = {"objective": "reg:squarederror"}
_LEVEL = _REGRESSION | {"max_depth": 5}
_ORDER: dict[str, object] = {
    "objective": "rank:ndcg",
    "lambdarank_pair_method": "topk",
    "lambdarank_num_pair_per_sample": 8,
    "ndcg_exp_gain": False,
}
"""LambdaMART on pairs with one of the first 8 of a problem: the order matters at the top."""
