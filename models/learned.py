"""The learned heuristic: an artifact behind the contract, its predictions and their reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import DTYPE_BYTES, GemmOperands, GemmProblem

if TYPE_CHECKING:
    from tilecast.models.artifact import Artifact


USUAL_MEAN = 4
"""Candidates per problem, on average, of a short list whose length the model chooses."""
RIVALS = 8
"""Configs that an explained one is compared with; each costs some milliseconds."""


@dataclass(frozen=True)
class Prediction:
    """What is expected of one config."""

    config: KernelConfig
    """The config."""
    microseconds: float
    """Expected run time of one launch; in the sustained regime when asked for ``robust``."""
    slowdown: float
    """Expected cost over the best candidate's, 1 or more. The first of a ranking is not expected
    to be the very best: its slowdown is the regret that such first ones had, held out."""


@dataclass(frozen=True)
class Reason:
    """One feature's part in what is expected of a config."""

    feature: str
    """Its name."""
    meaning: str
    """What it is, in a line."""
    value: float
    """Its value for the config."""
    effect: float
    """What it does to the expected cost against the average candidate that was compared; -0.1 is
    10% less."""


class LearnedHeuristic:
    """Ranks candidates with a trained model."""

    name = "tilecast"

    def __init__(self, artifact: Artifact, power: str = "robust"):
        """Take a model.

        Args:
            artifact: `tilecast.models.artifact.load`, or `load_heuristic` for the whole heuristic.
            power: ``burst``, ``sustained``, or ``robust`` for the smallest worst case of both.

        Raises:
            TilecastError: ``power`` is not known.
        """
        from tilecast.models.labels import check_power

        self.artifact = artifact
        self.power = check_power(power)

    def rank(
        self, problem: GemmProblem, candidates: Sequence[KernelConfig], *, limit: int | None = None
    ) -> list[KernelConfig]:
        """Order candidates by expected cost; see `tilecast.heuristics.heuristic.Heuristic`.

        Raises:
            TilecastError: the model is for operands of other widths.
        """
        self._check(problem)
        return self.artifact.rankers[self.power].rank(problem, candidates, limit=limit)

    def predict(
        self, problem: GemmProblem, candidates: Sequence[KernelConfig], *, limit: int | None = None
    ) -> list[Prediction]:
        """Rank candidates and say what is expected of each.

        Args:
            problem: what is to be multiplied.
            candidates: configs that are valid for it, at least one.
            limit: how many the caller wants; all when left out.

        Returns:
            Predictions in the order of `rank`.

        Raises:
            TilecastError: the model is for operands of other widths.
        """
        order, features = self._ranked(problem, candidates, limit)
        scores = self.artifact.rankers[self.power].scores(features)
        return self._predictions([candidates[i] for i in order], features, scores)

    def shortlist(
        self,
        problem: GemmProblem,
        candidates: Sequence[KernelConfig],
        *,
        mean: int = USUAL_MEAN,
    ) -> list[Prediction]:
        """The candidates that are worth compiling: many where the model doubts, one where not.

        Args:
            problem: what is to be multiplied.
            candidates: configs that are valid for it, at least one.
            mean: how many on average over many problems, held to within 0.2 for each power.

        Returns:
            The first 1 to 8 of `predict`.

        Raises:
            TilecastError: the model is for operands of other widths, or it has no rule for
                ``mean``.
        """
        from tilecast.models.shortlist import MOST, doubts

        order, features = self._ranked(problem, candidates, MOST)
        ranker = self.artifact.rankers[self.power]
        distance, relevance = ranker.opinions(features)
        size = self.artifact.rule.size(doubts(distance, relevance), mean)
        scores = ranker.blended(distance, relevance)[:size]
        return self._predictions([candidates[i] for i in order[:size]], features[:size], scores)

    def _ranked(
        self, problem: GemmProblem, candidates: Sequence[KernelConfig], limit: int | None
    ) -> tuple[list[int], np.ndarray]:
        """Indices of the first candidates, and their features in that order."""
        from tilecast.models.features import featurize

        self._check(problem)
        ranker = self.artifact.rankers[self.power]
        features = featurize(problem, candidates, ranker.hardware)
        order = ranker.order(features)[:limit]
        return order.tolist(), features[order]

    def _predictions(
        self, configs: Sequence[KernelConfig], features: np.ndarray, scores: np.ndarray
    ) -> list[Prediction]:
        """What is expected of the first configs of a ranking, from their features and scores."""
        scores = scores.astype(np.float64)
        intercept, slope = self.artifact.calibration[self.power]
        # The coarse step may have put a config last that the whole model likes better: no time
        # falls below the one before it.
        gaps = slope * np.maximum.accumulate(scores - scores[0])
        timer = "sustained" if self.power == "robust" else self.power
        best = self.artifact.rankers[timer].best_microseconds(features[:1])
        return [
            Prediction(config, best * float(np.exp(gap)), float(np.exp(intercept + gap)))
            for config, gap in zip(configs, gaps, strict=True)
        ]

    def explain(
        self,
        problem: GemmProblem,
        candidates: Sequence[KernelConfig],
        config: KernelConfig,
        *,
        limit: int = 5,
    ) -> list[Reason]:
        """The features that decided for or against a config.

        It is compared with the average of the first `RIVALS` of the ranking.

        Args:
            problem: what is to be multiplied.
            candidates: configs that are valid for it.
            config: one of them.
            limit: how many reasons.

        Returns:
            Reasons by the size of their effect, largest first.

        Raises:
            TilecastError: ``config`` is no candidate, or the model is for operands of other widths.
        """
        from tilecast.models.features import FEATURE_NAMES, FEATURES, featurize

        self._check(problem)
        if config not in candidates:
            raise TilecastError(
                f"config {config} is no candidate for {problem}; allowed: one of its "
                f"{len(candidates)} candidates; `tilecast space` lists them"
            )
        ranker = self.artifact.rankers[self.power]
        features = featurize(problem, candidates, ranker.hardware)
        rivals = ranker.order(features)[:RIVALS]
        here = features[[candidates.index(config)]]
        effects = ranker.contributions(here)[0] - ranker.contributions(features[rivals]).mean(0)
        order = np.argsort(-np.abs(effects), kind="stable")[:limit]
        return [
            Reason(
                FEATURE_NAMES[i],
                FEATURES[FEATURE_NAMES[i]],
                float(here[0, i]),
                float(np.expm1(effects[i])),
            )
            for i in order.tolist()
        ]

    def _check(self, problem: GemmProblem) -> None:
        """Refuse operands that are not stored in as many bytes as those it was trained on."""
        asked, trained = problem.operands, self.artifact.operands
        if _widths(asked) != _widths(trained):
            raise TilecastError(
                f"no model is for {asked.dtype} {asked.layout} with {asked.out_dtype} out; "
                f"allowed: what is stored like {trained.dtype} with {trained.out_major}-major "
                f"{trained.out_dtype} out; train one with `tilecast train`"
            )


def _widths(operands: GemmOperands) -> tuple[int, int, str]:
    return DTYPE_BYTES[operands.dtype], DTYPE_BYTES[operands.out_dtype], operands.out_major


def load_heuristic(
    hardware: Hardware,
    operands: GemmOperands,
    power: str = "robust",
    folder: Path | None = None,
) -> LearnedHeuristic:
    """The heuristic for a GPU, dtype and layout.

    Args:
        hardware: the GPU that kernels will run on.
        operands: dtypes and majors of the problems.
        power: what to aim at.
        folder: a model of one's own; the shipped one when left out.

    Raises:
        TilecastError: there is no such model, it is damaged, or it is for another GPU or other
            operands.
    """
    from tilecast.models.artifact import artifact_name, load, load_shipped

    if folder is None:
        return LearnedHeuristic(load_shipped(hardware, operands), power)
    artifact = load(folder)
    if artifact.name != artifact_name(hardware, operands):
        raise TilecastError(
            f"model {folder} is for {artifact.name}; allowed: one for "
            f"{artifact_name(hardware, operands)}; train it with `tilecast train`"
        )
    return LearnedHeuristic(artifact, power)
