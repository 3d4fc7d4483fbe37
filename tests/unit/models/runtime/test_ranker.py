"""The rankers: contract, determinism, the steps of a ranking, and reasons that add up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.heuristic import rank
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.models.features.features import featurize, log_analytic
from tilecast.models.learning.fit_ranker import fit_ranker
from tilecast.models.learning.fit_trees import fit_times
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.learning.targets import FAR, THINNING, training_rows
from tilecast.models.runtime import ranker as module
from tilecast.models.runtime.objectives import OBJECTIVES
from tilecast.models.runtime.ranker import ConfigRanker

H200 = hardware("H200")


@pytest.fixture(scope="module")
def fitted(synthetic_table: list[ProblemLabels]) -> ConfigRanker:
    return fit_ranker(synthetic_table, "sustained", hardware=H200, rounds=60, passes=40)


def _features(labels: ProblemLabels) -> np.ndarray:
    return featurize(labels.problem, labels.candidates, H200)


def test_ranking_keeps_the_contract(fitted, synthetic_table) -> None:
    for labels in synthetic_table[:6]:
        everything = list(rank(fitted, labels.problem, labels.candidates))
        assert sorted(everything) == sorted(labels.configs)
        assert list(rank(fitted, labels.problem, labels.candidates, limit=3)) == everything[:3]


def test_what_was_learned_is_known(fitted, synthetic_table) -> None:
    best = []
    for labels in synthetic_table:
        ranking = fitted.rank(labels.problem, labels.candidates, limit=3)
        picks = [labels.configs.index(config) for config in ranking]
        best.append(labels.slowdown("sustained", truth=True)[picks].min())
    assert np.log(best).mean() < np.log(1.05)


def test_robust_is_the_mean_of_both_regimes(fitted, synthetic_table) -> None:
    features = _features(synthetic_table[0])
    burst, sustained, robust = (
        replace(fitted, objective=objective).model_scores(features) for objective in OBJECTIVES
    )
    assert (burst.network != sustained.network).any()
    np.testing.assert_allclose(robust.network, (burst.network + sustained.network) / 2, rtol=1e-5)
    np.testing.assert_array_equal(robust.trees, burst.trees)


def test_dropping_candidates_early_only_drops(fitted, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = GemmProblem(3000, 4096, 2560)
    features = featurize(problem, candidates(problem, H200), H200)
    scores = fitted.scores(features)
    order = fitted.order(features)
    assert sorted(order) == list(range(len(features)))
    head = scores[order[: module.SURVIVORS]]
    assert (np.diff(head) >= 0).all()
    monkeypatch.setattr(module, "ENTRANTS", len(features))
    monkeypatch.setattr(module, "SURVIVORS", len(features))
    assert (np.diff(scores[fitted.order(features)]) >= 0).all()


def test_times_are_predicted(synthetic_table) -> None:
    forest = fit_times(synthetic_table, H200, "sustained")
    for labels in synthetic_table:
        best = int(labels.cost("sustained").argmin())
        features = _features(labels)[[best]]
        time = float(np.exp(forest.predict(features) + log_analytic(features))[0])
        assert time == pytest.approx(labels.cost("sustained")[best], rel=0.2)


def test_far_configs_are_thinned_and_weighed_up(synthetic_table) -> None:
    rows = training_rows(synthetic_table, H200, ("burst",))
    slowdown = np.concatenate([labels.slowdown("burst") for labels in synthetic_table])
    near = slowdown <= FAR
    assert (rows.slowdown <= FAR).sum() == near.sum()
    assert 0 < (rows.slowdown > FAR).sum() < (~near).sum() / (THINNING - 1)
    assert rows.weight[rows.slowdown == 1].max() == pytest.approx(1.02)


def test_effects_add_up_and_are_of_features_that_differ(fitted, synthetic_table) -> None:
    features = _features(synthetic_table[-1])[:9]
    effects, scores = fitted.effects(features[0], features[1:]), fitted.scores(features)
    assert effects.sum() == pytest.approx(scores[0] - scores[1:].mean(), abs=1e-5)
    assert (effects[(features == features[0]).all(0)] == 0).all()
    assert np.count_nonzero(effects) > 5
