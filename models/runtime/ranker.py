"""The learned ranker: a network and trees that say how far a config lies from its analytic time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.heuristics.config import Candidates
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.features.features import featurize, leading, log_analytic
from tilecast.models.runtime.forest import Forest
from tilecast.models.runtime.network import Network
from tilecast.models.runtime.objectives import OBJECTIVES, ROBUST, regimes_of

ENTRANTS = 320
"""Candidates that the analytic time lets through to the first trees."""
COARSE = 5
"""All entrants pass through the first of the trees, one in so many."""
SURVIVORS = 64
"""Candidates that pass through all trees and the network."""
NETWORK_SHARE = np.float32(0.8)
"""The network's share of a score; the trees have the rest."""


@dataclass(frozen=True, eq=False)
class ModelScores:
    """Expected log(cost) of configs up to a constant of the problem; float32 arrays [configs]."""

    trees: np.ndarray
    """By the forest."""
    network: np.ndarray
    """By the network."""

    @property
    def blended(self) -> np.ndarray:
        """By both, each with its share."""
        return (1 - NETWORK_SHARE) * self.trees + NETWORK_SHARE * self.network


@dataclass(frozen=True, eq=False)
class ConfigRanker:
    """Ranks configs with a neural network and boosted trees, whose errors differ.

    Both predict log(cost / analytic time) up to a constant of the problem: trees find where a
    kernel changes its behaviour, the network what changes evenly in between. The network does so
    for each regime; the trees for the mean of both regimes, whatever the objective. ``features``
    are rows of `featurize` of one problem, [configs, features].
    """

    name = "tilecast"

    hardware: Hardware
    """The GPU that rankings are for."""
    forest: Forest
    """Predicts the mean over both regimes."""
    network: Network
    """Has an output for each of `REGIMES`."""
    objective: str = ROBUST
    """One of `OBJECTIVES`; robust is the mean of the expectations for both regimes."""

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Expected log(cost) up to a constant of the problem; float32 [configs]."""
        return self.model_scores(features).blended

    def model_scores(self, features: np.ndarray) -> ModelScores:
        """What trees and network say of configs, and the `scores` that the two make."""
        return self.all_scores(features, (self.objective,))[self.objective]

    def all_scores(
        self, features: np.ndarray, objectives: Sequence[str] = OBJECTIVES
    ) -> dict[str, ModelScores]:
        """The `model_scores` for several objectives, which share most of the work."""
        analytic = log_analytic(features)
        trees = self.forest.predict(features) + analytic
        network = self.network.predict(features) + analytic[:, None]
        outputs = {one: [REGIMES.index(name) for name in regimes_of(one)] for one in objectives}
        return {one: ModelScores(trees, network[:, at].mean(1)) for one, at in outputs.items()}

    def order(self, features: np.ndarray) -> np.ndarray:
        """Indices of configs, best first.

        Three steps, each on what the one before let through: the analytic time, a few trees, all
        trees with the network. What a step drops follows the others in that step's order.
        """
        pruned = self.pruned(features)
        return np.append(self._ranked(pruned[:SURVIVORS], features), pruned[SURVIVORS:])

    def pruned(self, features: np.ndarray) -> np.ndarray:
        """The indices after the first two steps: the first `SURVIVORS` are ranked, for any aim."""
        by_analytic = _ascending(log_analytic(features))
        entrants = by_analytic[:ENTRANTS]
        by_coarse = self._by_coarse(features[entrants])
        return np.append(entrants[by_coarse], by_analytic[ENTRANTS:])

    def _by_coarse(self, features: np.ndarray) -> np.ndarray:
        """Indices of the entrants by the first trees."""
        coarse = self.forest.predict(features, -(-self.forest.trees // COARSE))
        return _ascending(coarse + log_analytic(features))

    def _ranked(self, survivors: np.ndarray, features: np.ndarray) -> np.ndarray:
        """The survivors by all trees and the network."""
        return survivors[_ascending(self.scores(features[survivors]))]

    def leaders(
        self, problem: GemmProblem, candidates: Candidates, limit: int | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the first ``limit`` candidates, or of all, best first; and their features.

        They are those of `order`, and up to `ENTRANTS` no others get features.
        """
        if limit is None or limit > ENTRANTS:
            features = featurize(problem, candidates, self.hardware)
            order = self.order(features)[:limit]
            return order, features[order]
        by_analytic, features = leading(problem, candidates, self.hardware, ENTRANTS)
        by_coarse = self._by_coarse(features)
        order = np.append(self._ranked(by_coarse[:SURVIVORS], features), by_coarse[SURVIVORS:])
        return by_analytic[order[:limit]], features[order[:limit]]

    def effects(self, config: np.ndarray, rivals: np.ndarray) -> np.ndarray:
        """What each feature adds to the score of a config above the mean score of its rivals.

        What a feature adds depends on those that were taken over from the config before it, so an
        order is drawn for each rival and gone both ways: sampled Shapley values (Strumbelj and
        Kononenko, Explaining prediction models, 2014).

        ``config`` is [features], ``rivals`` [rivals, features], at least one. The effects, float64
        [features], add up to the difference.
        """
        count, drawn = len(config), np.random.default_rng(0)
        taken = np.tri(count + 1, count, -1, bool)
        total = np.zeros(count)
        for rival in rivals:
            order = drawn.permutation(count)
            for way in (order, order[::-1]):
                steps = np.where(taken[:, np.argsort(way)], config, rival)
                total[way] += np.diff(self.scores(steps).astype(np.float64))
        return total / (2 * len(rivals))

    def rank(
        self, problem: GemmProblem, candidates: Candidates, *, limit: int | None = None
    ) -> Candidates:
        """Order candidates by expected cost; see `tilecast.heuristics.heuristic.Heuristic`."""
        order, _ = self.leaders(problem, candidates, limit)
        return candidates.take(order)


def _ascending(values: np.ndarray) -> np.ndarray:
    """Indices from the smallest on; of equal ones the earlier comes first."""
    return np.argsort(values, kind="stable")
