"""The learned heuristic: an artifact behind the contract, its predictions and their reasons."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tilecast.heuristics.config import Candidates, KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates as every_candidate
from tilecast.kernels.candidates import config_table, families_in
from tilecast.models.features.features import FEATURE_NAMES, FEATURES, featurize, log_analytic
from tilecast.models.runtime.artifact import Artifact, load
from tilecast.models.runtime.deferral import deferral_features
from tilecast.models.runtime.known_operands import check_ranks_for
from tilecast.models.runtime.nearest_gpu import shipped_for
from tilecast.models.runtime.objectives import ROBUST, check_objective
from tilecast.models.runtime.stopping import MAX_TAKEN, stop_features

SHORT_K = 64
"""With a shorter k most of what a stage loads is padding, also in cuBLAS. Triton, where it may
compete, is up to 3.6 times as fast (kernels/EXPERIMENTS.md)."""
USUAL_MEAN = 4
"""Candidates per problem, on average, of a short list whose length the model chooses."""
BORROWED_LEAST = 3
"""Candidates of the shortest short list of a borrowed model: it may doubt too little on another
GPU, and loses 0.62% at three where one alone loses 1.8% (robust,
benchmarks/results/new_gpu.json)."""
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
class FirstChoice:
    """What to run without a benchmark, a tilecast kernel or cuBLAS."""

    prediction: Prediction
    """The first of the ranking, and what is expected of it."""
    library_over: float | None
    """A low estimate of cuBLAS's run time over the first's, which nine cases in ten exceed; for
    ``robust`` in the regime where it is less. None where the model knows no times of cuBLAS, or
    PyTorch multiplies no such operands."""
    deferred: bool
    """Whether the problem is better left to cuBLAS."""


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
    """Ranks candidates with a trained model, without those that failed where it was measured.

    Nor does it rank configs of families that the model has no times of.

    Problems of groups are ranked by the model's part for these, `Artifact.of`. All that it is
    asked raises a TilecastError where the model does not rank for the problem's operands, and all
    but `rank` where there is no candidate.
    """

    name = "tilecast"

    def __init__(self, artifact: Artifact, objective: str = ROBUST):
        """Take a model.

        Args:
            artifact: `tilecast.models.runtime.artifact.load`; `load_heuristic` does both.
            objective: ``burst``, ``sustained``, or ``robust`` for the smallest worst case of both.

        Raises:
            TilecastError: ``objective`` is not known.
        """
        self.artifact = artifact
        self.objective = check_objective(objective)
        self._ranker = replace(artifact.ranker, objective=objective)
        self._groups = {
            kind: LearnedHeuristic(one, objective) for kind, one in artifact.groups.items()
        }

    def _of(self, problem: GemmProblem) -> LearnedHeuristic:
        """What ranks a problem: this, or the same with the model of its groups."""
        return self._groups.get(problem.operands.groups, self)

    def rank(
        self, problem: GemmProblem, candidates: Candidates, *, limit: int | None = None
    ) -> Candidates:
        """Order candidates by expected cost; see `tilecast.heuristics.heuristic.Heuristic`."""
        check_ranks_for(self.artifact.operands, problem.operands)
        one = self._of(problem)
        known = one._known(problem, candidates)
        ranking, _ = one._leaders(problem, known, limit)
        return ranking if known is candidates else candidates.select(ranking)

    def candidates(self, problem: GemmProblem, *, invariant: bool = False) -> Candidates:
        """The `tilecast.kernels.candidates.candidates` of a problem that it may rank.

        Raises:
            TilecastError: no family that the model knows multiplies the problem's operands.
        """
        one = self._of(problem).artifact
        return every_candidate(problem, one.hardware, invariant=invariant, families=one.families)

    def _known(self, problem: GemmProblem, candidates: Candidates) -> Candidates:
        """Those of some configs that are of families that the model knows; mostly all."""
        families = self.artifact.families
        if families_in(candidates.table) <= families:
            return candidates
        known = (config for config in candidates if config.family in families)
        return config_table(known, problem.operands).all()

    def predict(
        self, problem: GemmProblem, candidates: Candidates, *, limit: int | None = None
    ) -> list[Prediction]:
        """Rank candidates, and say what is expected of each."""
        one = self._of(problem)
        ranking, features = one._ranked(problem, candidates, limit)
        return one._predictions(ranking, features, one._ranker.scores(features))

    def first(self, problem: GemmProblem, candidates: Candidates) -> FirstChoice:
        """The first of `predict`, and whether to leave the problem to cuBLAS instead.

        A borrowed model never compares with cuBLAS.
        """
        one = self._of(problem)
        ranking, features = one._ranked(problem, candidates, 1)
        scores = one._ranker.model_scores(features)
        (prediction,) = one._predictions(ranking, features, scores.blended)
        deferral = one.artifact.deferral
        # PyTorch's grouped products are no batches, nor are scaled ones like others: their times
        # tell nothing of each other.
        timed = {_grouping(kind) for kind in one.artifact.measured}
        known = _grouping(problem.operands) in timed
        if deferral is None or not (problem.in_library and known):
            return FirstChoice(prediction, None, False)
        (lead,) = deferral.least_lead(deferral_features(features, scores), self.objective)
        deferred = problem.depth < SHORT_K or deferral.defers(float(lead), self.objective)
        return FirstChoice(prediction, float(np.exp(lead)), deferred)

    def shortlist(self, problem: GemmProblem, candidates: Candidates) -> list[Prediction]:
        """The candidates that are worth compiling: many where the model doubts, one where not.

        They are the first 1 to 8 of `predict`; over many problems `USUAL_MEAN` on average. Of a
        borrowed model they are `BORROWED_LEAST` or more.
        """
        one = self._of(problem)
        ranking, features = one._ranked(problem, candidates, MAX_TAKEN)
        scores = one._ranker.model_scores(features)
        size = one.artifact.rule.size(stop_features(scores), USUAL_MEAN)
        size = max(size, BORROWED_LEAST if one.artifact.trained_for else 1)
        return one._predictions(ranking[:size], features[:size], scores.blended[:size])

    def _ranked(
        self, problem: GemmProblem, candidates: Candidates, limit: int | None
    ) -> tuple[Candidates, np.ndarray]:
        """The first candidates, of which there is one, and their features in that order."""
        candidates = self._known(problem, candidates)
        self._check(problem, candidates)
        ranking, features = self._leaders(problem, candidates, limit)
        if not len(ranking):
            raise TilecastError(
                f"all {len(candidates)} configs that suit {problem} failed when they were measured "
                f"on {self.artifact.hardware.name}; allowed: a model that knows one that works; "
                "collect more configs and train it again"
            )
        return ranking, features

    def _leaders(
        self, problem: GemmProblem, candidates: Candidates, limit: int | None
    ) -> tuple[Candidates, np.ndarray]:
        """The first candidates that did not fail where the model was measured; their features."""
        failing = self.artifact.failed(problem.operands)
        # Features compare all candidates, so those that failed are ranked and then left out.
        wanted = limit and limit + len(failing)
        order, features = self._ranker.leaders(problem, candidates, wanted)
        ranking = candidates.take(order)
        if failing:
            sound = [i for i, config in enumerate(ranking) if config not in failing][:limit]
            ranking, features = ranking.take(sound), features[sound]
        return ranking, features

    def _check(self, problem: GemmProblem, candidates: Candidates) -> None:
        """Raise a TilecastError where nothing can be ranked."""
        check_ranks_for(self.artifact.operands, problem.operands)
        check_candidates(problem, candidates, self.artifact.hardware)

    def _predictions(
        self, configs: Iterable[KernelConfig], features: np.ndarray, scores: np.ndarray
    ) -> list[Prediction]:
        """What is expected of the first configs of a ranking, from their features and scores."""
        scores = scores.astype(np.float64)
        intercept, slope = self.artifact.calibration[self.objective]
        # The first steps of the ranking may have put a config last that the whole model prefers: no
        # time falls below the one before it.
        gaps = slope * np.maximum.accumulate(scores - scores[0])
        times = self.artifact.times["sustained" if self.objective == ROBUST else self.objective]
        best = float(np.exp(times.predict(features[:1]) + log_analytic(features[:1]))[0])
        return [
            Prediction(config, best * float(np.exp(gap)), float(np.exp(intercept + gap)))
            for config, gap in zip(configs, gaps, strict=True)
        ]

    def explain(
        self,
        problem: GemmProblem,
        candidates: Candidates,
        config: KernelConfig,
        *,
        limit: int = 5,
    ) -> list[Reason]:
        """The features that decided for or against a candidate, by the size of their effect.

        It is compared with the average of the first `RIVALS` of the ranking.

        Raises:
            TilecastError: ``config`` is no candidate.
        """
        candidates = self._of(problem)._known(problem, candidates)
        self._check(problem, candidates)
        if config not in candidates:
            raise TilecastError(
                f"config {config} is no candidate for {problem}; allowed: one of its "
                f"{len(candidates)} candidates; `tilecast space` lists them"
            )
        ranker = self._of(problem)._ranker
        features = featurize(problem, candidates, ranker.hardware)
        here, rivals = candidates.index(config), ranker.order(features)[:RIVALS]
        effects = ranker.effects(features[here], features[rivals])
        order = np.argsort(-np.abs(effects), kind="stable")[:limit]
        return [
            Reason(
                FEATURE_NAMES[i],
                FEATURES[FEATURE_NAMES[i]],
                float(features[here, i]),
                float(np.expm1(effects[i])),
            )
            for i in order.tolist()
        ]


def _grouping(operands: GemmOperands) -> str:
    """The groups and their scales; "" for products that are not grouped."""
    return operands.groups and f"{operands.groups}+{operands.scales}"


def check_candidates(problem: GemmProblem, candidates: Candidates, gpu: Hardware) -> None:
    """See that a problem has any.

    Raises:
        TilecastError: it has none.
    """
    if not len(candidates):
        raise TilecastError(
            f"no config suits {problem} on {gpu.name}, as each breaks a rule; allowed: other "
            f"extents; `tilecast space {problem}` counts what each rule takes away"
        )


def load_heuristic(
    hardware: Hardware,
    operands: GemmOperands,
    objective: str = ROBUST,
    folder: Path | None = None,
) -> LearnedHeuristic:
    """The heuristic for problems of some operands on a GPU.

    Its model is that of `model_for`.

    Raises:
        TilecastError: as there, or the model does not rank for these operands.
    """
    artifact = model_for(hardware, folder).of(operands)
    check_ranks_for(artifact.operands, operands)
    return LearnedHeuristic(artifact, objective)


def model_for(hardware: Hardware, folder: Path | None) -> Artifact:
    """The model of a GPU: one's own in a folder, or the shipped one, `shipped_for`.

    Raises:
        TilecastError: there is none, it is damaged, or for another GPU.
    """
    if folder is None:
        return shipped_for(hardware)
    artifact = load(folder)
    if artifact.hardware != hardware:
        raise TilecastError(
            f"model {folder} is for {artifact.hardware.name}; allowed: one for {hardware.name}; "
            "train it with `tilecast train`"
        )
    return artifact
