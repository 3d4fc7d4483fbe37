"""The learned ranker: trees and a network that say how far a config lies from its analytic time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Self

import numpy as np

from tilecast.heuristics.config_table import Candidates
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.features.features import FEATURE_NAMES, featurize
from tilecast.models.learning.autotune_pairs import Comparison
from tilecast.models.learning.fit_network import EPOCHS, fit_network
from tilecast.models.learning.fit_trees import fit_distance, fit_level
from tilecast.models.learning.labels import POWERS, ProblemLabels, check_power
from tilecast.models.learning.targets import ANALYTIC, log_analytic
from tilecast.models.runtime.fitted import check_fitted
from tilecast.models.runtime.shapley import contributions

DISTINCT = 10
"""Configs at the head of a ranking that differ in more than their schedule."""
OF_ONE_TILE = 4
"""Most of one tile at the head of a ranking: the fifth would be wrong where these are."""

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
_TILE = [FEATURE_NAMES.index(name) for name in ("tile_m", "tile_n")]


@dataclass(frozen=True, eq=False)
class ModelScores:
    """Expected log(cost) of configs up to a constant of the problem; float32 arrays [configs]."""

    distance: np.ndarray
    """By `ConfigRanker.distance_`."""
    network: np.ndarray
    """By `ConfigRanker.network_`."""
    blended: np.ndarray
    """By both, each with its share: `ConfigRanker.scores`."""


@dataclass(eq=False)
class ConfigRanker:
    """Ranks configs with boosted trees and a neural network, whose errors differ.

    Both are fitted to the distance of a config's cost from its analytic time: trees find where a
    kernel changes its behaviour, the network what changes evenly in between. The analytic time and
    then a few trees prune; all trees and the network rank what is left. ``features`` are
    rows of `featurize` of one problem, [configs, features].

    Attributes:
        distance_: trees that predict log(cost / analytic time) up to a constant of the problem; set
            by `fit`.
        network_: predicts the same for every power, in the order of `POWERS`; set by `fit`.
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
    """Trees of ``distance_``."""
    epochs: int = EPOCHS
    """How often the network sees each problem."""
    entrants: int = 320
    """Candidates that the analytic time lets through to the trees."""
    coarse_rounds: int = 40
    """Trees that all entrants pass through."""
    survivors: int = 48
    """Candidates that pass through all trees and the network."""
    max_depth: int = 8
    """Depth of a tree."""
    blend: float = 0.7
    """The network's share of a score; the trees have the rest."""
    times: bool = True
    """Learn run times, too; a ranking needs none."""
    seed: int = 0
    """Of all that is drawn."""

    def fit(self, table: Sequence[ProblemLabels], compared: Sequence[Comparison] = ()) -> Self:
        """Learn from the labels of each problem, `tilecast.models.learning.labels.label_table`.

        Args:
            table: the labels, of one problem at least.
            compared: what else is known of the order of configs, of problems that the table lacks.

        Raises:
            TilecastError: ``power`` is not known.
        """
        check_power(self.power)
        known = tuple(table)
        self.distance_ = fit_distance(
            known, self.hardware, self.power, self.rounds, self.max_depth, self.seed
        )
        self.network_ = fit_network(known, tuple(compared), self.hardware, self.epochs, self.seed)
        if self.times and self.power != "robust":
            self.level_ = fit_level(known, self.hardware, self.power, self.seed)
        return self

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Expected log(cost) up to a constant of the problem, lower is better; float32 [configs].

        Raises:
            NotFittedError: `fit` has not been called.
        """
        return self.model_scores(features).blended

    def model_scores(self, features: np.ndarray) -> ModelScores:
        """What trees and network say of configs, and the `scores` that the two make.

        Raises:
            NotFittedError: `fit` has not been called.
        """
        check_fitted(self, "distance_")
        analytic = log_analytic(features)
        distance = self.distance_.predict(features) + analytic
        network = self.network_.predict(features)[:, self._output] + analytic
        share = np.float32(self.blend)
        return ModelScores(distance, network, (1 - share) * distance + share * network)

    @property
    def _output(self) -> int:
        """Which of the network's outputs is for our power."""
        return POWERS.index(self.power)

    def order(self, features: np.ndarray) -> np.ndarray:
        """Indices of configs, best first.

        Three steps, each on what the one before let through: the analytic time, a few trees, all
        trees with the network. What a step drops follows the others in that step's order. The first
        `DISTINCT` differ in more than their schedule (stages, raster, swizzle): two schedules of
        one shape are right or wrong together, so the second adds little to what a short list finds.
        So are shapes of one tile: behind `OF_ONE_TILE` of these comes the best of another.

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
        leading = np.sort(np.unique(shapes, return_index=True)[1])[:DISTINCT]
        leading = _of_two_tiles(leading, kept[by_score[leading][:, None], _TILE])
        ranked = survivors[by_score]
        return np.concatenate([ranked[leading], np.delete(ranked, leading), late, dropped])

    def contributions(self, features: np.ndarray) -> np.ndarray:
        """What each feature adds to each score, the analytic time's own part included.

        Returns:
            float64 array [configs, features]; differences between configs add up to those of
            `scores`.

        Raises:
            NotFittedError: `fit` has not been called.
        """
        check_fitted(self, "distance_")
        parts = (1 - self.blend) * contributions(self.distance_, features)
        parts += self.blend * self.network_.contributions(features, self._output)
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


def _of_two_tiles(order: np.ndarray, tiles: np.ndarray) -> np.ndarray:
    """The order with its first of another tile behind `OF_ONE_TILE` of one, if it comes later.

    Args:
        order: some indices.
        tiles: rows and columns of each one's tile, which may lie on its side; [indices, 2].
    """
    tiles = np.sort(tiles, axis=1)
    other = int((tiles == tiles[0]).all(1).argmin())  # 0 where there is none
    if other <= OF_ONE_TILE:
        return order
    return np.insert(np.delete(order, other), OF_ONE_TILE, order[other])


def _ascending(values: np.ndarray) -> np.ndarray:
    """Indices from the smallest on; of equal ones the earlier comes first."""
    return np.argsort(values, kind="stable")
