"""The learned ranker: boosted trees that say how far a config lies from its analytic time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.booster import Booster
from tilecast.models.features import FEATURE_NAMES, featurize
from tilecast.models.labels import ProblemLabels, check_power
from tilecast.models.targets import ANALYTIC, log_analytic, training_rows

DISTINCT = 10
"""Configs at the head of a ranking that differ in more than their schedule."""

_SHAPE = [
    FEATURE_NAMES.index(name)
    for name in (
        "tile_m",
        "tile_n",
        "tile_k",
        "cluster_m",
        "cluster_n",
        "warp_groups",
        "ctas_per_sm",
        "swap_ab",
    )
]
"""Columns of what remains of a config without its schedule."""
_SHAPE_DIGITS = 2.0 ** np.array([0, 9, 18, 26, 29, 32, 34, 36])
"""Turns these columns into one number for each combination: bits enough for every column."""


class NotFittedError(TilecastError):
    """A ranker was asked before it was fitted."""

    def __init__(self, ranker: object):
        """Name the ranker."""
        super().__init__(
            f"{type(ranker).__name__} is not fitted; allowed: one that has been; "
            "call fit(table) first or load an artifact"
        )


class ConfigRanker:
    """Ranks configs with two sets of boosted trees whose errors differ.

    The first is fitted to the distance of a config's cost from its analytic time, the second
    (LambdaMART) to the order of the configs of a problem. The analytic time and
    then a few of the first one's trees prune; all trees of both rank what is left.

    Attributes:
        distance_: predicts log(cost / analytic time) up to a constant of the problem; set by `fit`.
        order_: predicts a number that is higher for a config that is nearer the best; set by `fit`.
        level_: predicts log(time / analytic time) of good configs; set by `fit`, None for
            ``robust``, whose cost is no time.
    """

    name = "tilecast"

    def __init__(
        self,
        hardware: Hardware,
        power: str = "robust",
        *,
        rounds: int = 200,
        entrants: int = 512,
        coarse_rounds: int = 24,
        survivors: int = 64,
        max_depth: int = 8,
        learning_rate: float = 0.1,
        focus: float = 6.0,
        blend: float = 0.04,
        seed: int = 0,
        threads: int = 1,
    ):
        """Store the settings.

        Args:
            hardware: the GPU that labels were measured on and rankings are for.
            power: whose cost to learn.
            rounds: trees of each set.
            entrants: candidates that the analytic time lets through to the trees.
            coarse_rounds: trees that all entrants pass through.
            survivors: candidates that pass through all trees.
            max_depth: depth of a tree.
            learning_rate: shrinkage of each tree.
            focus: how strongly training looks at the best configs (`training_rows`).
            blend: log cost that one unit of ``order_`` stands for.
            seed: of the row and column sampling.
            threads: that `fit` uses; the result may differ in the last digits from one number to
                another.
        """
        self.hardware = hardware
        self.power = power
        self.rounds = rounds
        self.entrants = entrants
        self.coarse_rounds = coarse_rounds
        self.survivors = survivors
        self.max_depth = max_depth
        self.learning_rate = learning_rate
        self.focus = focus
        self.blend = blend
        self.seed = seed
        self.threads = threads

    def fit(self, table: Sequence[ProblemLabels]) -> Self:
        """Learn from labels.

        Args:
            table: one entry per problem, `tilecast.models.labels.label_table`.

        Raises:
            TilecastError: ``power`` is not known.
        """
        rows = training_rows(table, self.hardware, check_power(self.power), self.focus)
        self.distance_ = self._train(
            {"label": rows.residual, "weight": rows.weight}, rows.features, _REGRESSION
        )
        self.order_ = self._train(
            {"label": _relevance(rows.slowdown), "qid": rows.problem.astype(np.int32)},
            rows.features,
            _ORDER,
        )
        self.level_ = None
        if self.power != "robust":
            good = rows.slowdown < _GOOD
            self.level_ = self._train(
                {"label": rows.level[good], "weight": rows.weight[good]},
                rows.features[good],
                _REGRESSION | {"max_depth": 5},
                rounds=100,
            )
        return self

    def _train(
        self,
        targets: dict[str, np.ndarray],
        features: np.ndarray,
        objective: dict[str, object],
        rounds: int | None = None,
    ) -> Booster:
        import xgboost

        parameters = {
            "tree_method": "hist",
            "max_bin": 64,
            "max_depth": self.max_depth,
            "learning_rate": self.learning_rate,
            "subsample": 0.7,
            "colsample_bytree": 0.5,
            "seed": self.seed,
            "nthread": self.threads,
        } | objective
        matrix = xgboost.DMatrix(features, nthread=self.threads, **targets)
        booster = xgboost.train(parameters, matrix, num_boost_round=rounds or self.rounds)
        return Booster(bytes(booster.save_raw("ubj")))

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Expected log(cost) of configs, up to a constant of the problem; lower is better.

        Args:
            features: rows of `featurize` of one problem.

        Returns:
            float32 array [configs].

        Raises:
            NotFittedError: `fit` has not been called.
        """
        return self.blended(*self.opinions(features))

    def opinions(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What each set of trees says of configs, before the two are blended.

        Args:
            features: rows of `featurize` of one problem.

        Returns:
            Two float32 arrays [configs]: expected log(cost) up to a constant of the problem, from
            ``distance_``; a number that is higher for a better config, from ``order_``.

        Raises:
            NotFittedError: `fit` has not been called.
        """
        if not hasattr(self, "distance_"):
            raise NotFittedError(self)
        distance = self.distance_.predict(features) + log_analytic(features)
        return distance, self.order_.predict(features)

    def blended(self, distance: np.ndarray, order: np.ndarray) -> np.ndarray:
        """The `scores` of configs of which `opinions` are known."""
        return distance - np.float32(self.blend) * order

    def order(self, features: np.ndarray) -> np.ndarray:
        """Indices of configs, best first.

        The first `DISTINCT` differ in more than their schedule (stages, raster, swizzle): two
        schedules of one shape are right or wrong together, so the second adds little to what a
        short list finds. Candidates that a step drops follow the others in that step's
        order.

        Args:
            features: `featurize` of one problem.

        Raises:
            NotFittedError: `fit` has not been called.
        """
        if not hasattr(self, "distance_"):
            raise NotFittedError(self)
        analytic = log_analytic(features)
        order = np.argsort(analytic, kind="stable")
        entrants = order[: self.entrants]
        coarse = self.distance_.predict(features[entrants], (0, self.coarse_rounds))
        order[: self.entrants] = entrants[np.argsort(coarse + analytic[entrants], kind="stable")]
        survivors = order[: self.survivors]
        fine = survivors[np.argsort(self.scores(features[survivors]), kind="stable")]
        _, first = np.unique(features[fine][:, _SHAPE] @ _SHAPE_DIGITS, return_index=True)
        lead = np.sort(first)[:DISTINCT]
        return np.concatenate([fine[lead], np.delete(fine, lead), order[self.survivors :]])

    def contributions(self, features: np.ndarray) -> np.ndarray:
        """What each feature adds to each score, the analytic time's own part included.

        Args:
            features: rows of `featurize` of one problem.

        Returns:
            float32 array [configs, features]; differences between configs add up to those of
            `scores`.

        Raises:
            NotFittedError: `fit` has not been called.
        """
        if not hasattr(self, "distance_"):
            raise NotFittedError(self)
        parts = self.distance_.contributions(features)[:, :-1]
        parts -= np.float32(self.blend) * self.order_.contributions(features)[:, :-1]
        parts[:, ANALYTIC] += log_analytic(features)
        return parts

    def rank(
        self, problem: GemmProblem, candidates: Sequence[KernelConfig], *, limit: int | None = None
    ) -> list[KernelConfig]:
        """Order candidates by expected cost; see `tilecast.heuristics.heuristic.Heuristic`."""
        order = self.order(featurize(problem, candidates, self.hardware))
        return [candidates[i] for i in order[:limit].tolist()]

    def best_microseconds(self, features: np.ndarray) -> float:
        """Expected time of a config that is among the best.

        Args:
            features: one row of `featurize`, as array [1, features].

        Raises:
            NotFittedError: `fit` has not been called.
            TilecastError: the ranker is for ``robust``, whose cost is no time.
        """
        if not hasattr(self, "level_"):
            raise NotFittedError(self)
        if self.level_ is None:
            raise TilecastError(
                "power robust has no time of its own; allowed: burst, sustained; "
                "ask the ranker of one"
            )
        return float(np.exp(self.level_.predict(features) + log_analytic(features))[0])


_GOOD = 1.05
"""Slowdown up to which a config tells the level of a problem's times."""
_NEAR = 0.02
"""Slowdown, less 1, over which a config's relevance for the order falls to 1/e."""
_REGRESSION: dict[str, object] = {"objective": "reg:squarederror"}
_ORDER: dict[str, object] = {
    "objective": "rank:ndcg",
    "lambdarank_pair_method": "topk",
    "lambdarank_num_pair_per_sample": 8,
    "ndcg_exp_gain": False,
}
"""LambdaMART on pairs with one of the first 8 of a problem: the order matters at the top."""


def _relevance(slowdown: np.ndarray) -> np.ndarray:
    """Whole numbers from 31, which is the most that XGBoost takes, for the best, down to 0."""
    return np.floor(31 * np.exp(-(slowdown - 1) / _NEAR))
