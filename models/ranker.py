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
from tilecast.models.features import featurize
from tilecast.models.labels import ProblemLabels, check_power
from tilecast.models.targets import ANALYTIC, log_analytic, training_rows


class NotFittedError(TilecastError):
    """A ranker was asked before it was fitted."""

    def __init__(self, ranker: object):
        """Name the ranker."""
        super().__init__(
            f"{type(ranker).__name__} is not fitted; allowed: one that has been; "
            "call fit(table) first or load an artifact"
        )


class ConfigRanker:
    """Ranks configs with XGBoost, in two steps: a few trees prune, all trees rank what is left.

    Attributes:
        booster_: predicts log(cost / analytic time) up to a constant of the problem; set by `fit`.
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
        coarse_rounds: int = 24,
        survivors: int = 96,
        max_depth: int = 6,
        learning_rate: float = 0.1,
        focus: float = 6.0,
        seed: int = 0,
        threads: int = 1,
    ):
        """Store the settings.

        Args:
            hardware: the GPU that labels were measured on and rankings are for.
            power: whose cost to learn.
            rounds: trees.
            coarse_rounds: trees that all candidates pass through.
            survivors: candidates that pass through the rest.
            max_depth: depth of a tree.
            learning_rate: shrinkage of each tree.
            focus: how strongly training looks at the best configs (`training_rows`).
            seed: of the row and column sampling.
            threads: that `fit` uses; the result may differ in the last digits from one number to
                another.
        """
        self.hardware = hardware
        self.power = power
        self.rounds = rounds
        self.coarse_rounds = coarse_rounds
        self.survivors = survivors
        self.max_depth = max_depth
        self.learning_rate = learning_rate
        self.focus = focus
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
        self.booster_ = self._train(
            rows.features, rows.residual, rows.weight, self.rounds, self.max_depth
        )
        self.level_ = None
        if self.power != "robust":
            good = rows.slowdown < _GOOD
            self.level_ = self._train(
                rows.features[good],
                rows.level[good],
                rows.weight[good],
                _LEVEL_ROUNDS,
                _LEVEL_DEPTH,
            )
        return self

    def _train(
        self, features: np.ndarray, target: np.ndarray, weight: np.ndarray, rounds: int, depth: int
    ) -> Booster:
        import xgboost

        parameters = {
            "objective": "reg:squarederror",
            "tree_method": "hist",
            "max_depth": depth,
            "learning_rate": self.learning_rate,
            "subsample": 0.7,
            "colsample_bytree": 0.6,
            "seed": self.seed,
            "nthread": self.threads,
        }
        matrix = xgboost.DMatrix(features, target, weight=weight, nthread=self.threads)
        booster = xgboost.train(parameters, matrix, num_boost_round=rounds)
        return Booster(bytes(booster.save_raw("ubj")))

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Expected log(cost) of configs, up to a constant of the problem; lower is better.

        Args:
            features: `featurize` of one problem.

        Returns:
            float32 array [configs].

        Raises:
            NotFittedError: `fit` has not been called.
        """
        if not hasattr(self, "booster_"):
            raise NotFittedError(self)
        return self.booster_.predict(features) + log_analytic(features)

    def order(self, features: np.ndarray) -> np.ndarray:
        """Indices of configs, best first.

        The candidates that the coarse step drops follow the others in its own order.

        Args:
            features: `featurize` of one problem.

        Raises:
            NotFittedError: `fit` has not been called.
        """
        if not hasattr(self, "booster_"):
            raise NotFittedError(self)
        coarse = self.booster_.predict(features, (0, self.coarse_rounds)) + log_analytic(features)
        order = np.argsort(coarse, kind="stable")
        survivors = order[: self.survivors]
        fine = np.argsort(self.scores(features[survivors]), kind="stable")
        return np.concatenate([survivors[fine], order[self.survivors :]])

    def contributions(self, features: np.ndarray) -> np.ndarray:
        """What each feature adds to each score, the analytic time's own part included.

        Args:
            features: `featurize` of one problem.

        Returns:
            float32 array [configs, features]; differences between configs add up to those of
            `scores`.

        Raises:
            NotFittedError: `fit` has not been called.
        """
        if not hasattr(self, "booster_"):
            raise NotFittedError(self)
        parts = self.booster_.contributions(features)[:, :-1]
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
_LEVEL_ROUNDS, _LEVEL_DEPTH = 60, 5
