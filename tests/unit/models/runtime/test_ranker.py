"""The two rankers: contract, determinism, and agreement with the libraries that trained them."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.heuristic import rank
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.models.evaluation.tree_linear import TreeLinearRanker
from tilecast.models.features.features import featurize
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.learning.targets import FAR, THINNING, training_rows
from tilecast.models.runtime.fitted import NotFittedError
from tilecast.models.runtime.ranker import DISTINCT, OF_ONE_TILE, ConfigRanker

H200 = hardware("H200")
RANKERS = (ConfigRanker, TreeLinearRanker)


@pytest.fixture(scope="module")
def fitted(synthetic_table: list[ProblemLabels]) -> ConfigRanker:
    return ConfigRanker(H200, "sustained").fit(synthetic_table)


@pytest.fixture(scope="module")
def tree(synthetic_table: list[ProblemLabels]) -> TreeLinearRanker:
    return TreeLinearRanker(H200, "sustained").fit(synthetic_table)


def _features(labels: ProblemLabels) -> np.ndarray:
    return featurize(labels.problem, labels.candidates, H200)


@pytest.mark.parametrize("make", RANKERS)
def test_init_only_stores_and_fit_returns_self(make, synthetic_table) -> None:
    ranker = make(H200, "burst")
    assert (ranker.hardware, ranker.power) == (H200, "burst")
    assert not [name for name in vars(ranker) if name.endswith("_")]
    assert ranker.fit(synthetic_table[:4]) is ranker


@pytest.mark.parametrize("make", RANKERS)
def test_an_unfitted_ranker_says_so(make, synthetic_table) -> None:
    labels = synthetic_table[0]
    with pytest.raises(NotFittedError, match=r"is not fitted; allowed: .*call fit\(table\)"):
        make(H200).rank(labels.problem, labels.candidates)


@pytest.mark.parametrize("make", RANKERS)
def test_an_unknown_power_is_refused(make, synthetic_table) -> None:
    with pytest.raises(TilecastError, match="power 'cold' is not known; allowed: burst"):
        make(H200, "cold").fit(synthetic_table[:1])


@pytest.mark.parametrize("name", ["fitted", "tree"])
def test_ranking_keeps_the_contract(name, request, synthetic_table) -> None:
    ranker = request.getfixturevalue(name)
    for labels in synthetic_table[:6]:
        everything = list(rank(ranker, labels.problem, labels.candidates))
        assert sorted(everything) == sorted(labels.configs)
        assert list(rank(ranker, labels.problem, labels.candidates, limit=3)) == everything[:3]


@pytest.mark.parametrize("name", ["fitted", "tree"])
def test_what_was_learned_is_known(name, request, synthetic_table) -> None:
    ranker = request.getfixturevalue(name)
    best = []
    for labels in synthetic_table:
        ranking = ranker.rank(labels.problem, labels.candidates, limit=3)
        picks = [labels.configs.index(config) for config in ranking]
        best.append(labels.slowdown("sustained", truth=True)[picks].min())
    assert np.log(best).mean() < np.log(1.05)


def _shape(config) -> tuple:
    return replace(config, stages=0, raster="m", swizzle=1)


def test_dropping_candidates_early_only_drops(synthetic_table) -> None:
    whole, cascade = (
        ConfigRanker(
            H200, rounds=60, epochs=5, coarse_rounds=20, entrants=entrants, survivors=survivors
        ).fit(synthetic_table)
        for entrants, survivors in ((10_000, 10_000), (40, 8))
    )
    labels = max(synthetic_table, key=lambda labels: len(labels.configs))
    features = _features(labels)
    scores = whole.scores(features)
    everything = whole.order(features)
    assert sorted(everything) == list(range(len(labels.configs)))
    assert (np.diff(scores[everything[DISTINCT:]]) >= 0).all()
    order = cascade.order(features)
    assert sorted(order) == list(range(len(labels.configs)))
    kept = [i for i in everything if i in set(order[:8])]
    assert order[0] == kept[0] == order[:8][np.argmin(scores[order[:8]])]


def test_the_head_of_a_ranking_differs_in_more_than_schedule(fitted) -> None:
    problem = GemmProblem(3000, 4096, 2560)
    ranking = fitted.rank(problem, candidates(problem, H200))
    shapes = [_shape(config) for config in ranking]
    assert len(set(shapes[:DISTINCT])) == DISTINCT
    assert len(set(shapes[: 2 * DISTINCT])) < 2 * DISTINCT


def test_behind_four_of_one_tile_comes_the_best_of_another(fitted) -> None:
    problem = GemmProblem(2048, 2048, 4096)
    every = candidates(problem, H200)
    best, *_, worst = fitted.rank(problem, every)
    shapes = {_shape(config): config for config in every if _tile(config) == _tile(best)}
    alike = list(shapes.values())[: DISTINCT - 2]
    assert len(alike) > OF_ONE_TILE and _tile(worst) != _tile(best)

    head = fitted.rank(problem, every.take([every.index(config) for config in (worst, *alike)]))
    scores = fitted.scores(featurize(problem, head, H200))
    assert head[OF_ONE_TILE] == worst and scores.argmax() == OF_ONE_TILE
    others = np.delete(scores, OF_ONE_TILE)
    assert (others[1:] >= others[:-1]).all()

    head = fitted.rank(problem, every.take([every.index(config) for config in alike]))
    assert (np.diff(fitted.scores(featurize(problem, head, H200))) >= 0).all()


def _tile(config) -> frozenset[int]:
    return frozenset((config.tile_m, config.tile_n))


def test_the_same_seed_gives_the_same_bytes(synthetic_table) -> None:
    one, same, other = (
        ConfigRanker(H200, rounds=10, epochs=1, seed=seed).fit(synthetic_table)
        for seed in (0, 0, 1)
    )
    for part in ("distance_", "network_"):
        ours = getattr(one, part).pack()
        assert ours == getattr(same, part).pack() != getattr(other, part).pack()


def test_times_are_predicted_for_regimes_only(fitted, synthetic_table) -> None:
    for labels in synthetic_table:
        best = int(labels.cost("sustained").argmin())
        time = fitted.best_microseconds(_features(labels)[[best]])
        assert time == pytest.approx(labels.cost("sustained")[best], rel=0.2)
    robust = ConfigRanker(H200, rounds=2, epochs=1).fit(synthetic_table)
    untimed = ConfigRanker(H200, "burst", rounds=2, epochs=1, times=False).fit(synthetic_table)
    for ranker in (robust, untimed):
        with pytest.raises(TilecastError, match="has learned no times; allowed: burst, sustained"):
            ranker.best_microseconds(_features(synthetic_table[0])[:1])


def test_far_configs_are_thinned_and_weighed_up(synthetic_table) -> None:
    rows = training_rows(synthetic_table, H200, "burst")
    slowdown = np.concatenate([labels.slowdown("burst") for labels in synthetic_table])
    near = slowdown <= FAR
    assert (rows.slowdown <= FAR).sum() == near.sum()
    assert 0 < (rows.slowdown > FAR).sum() < (~near).sum() / (THINNING - 1)
    assert rows.weight[rows.slowdown == 1].max() == pytest.approx(1.02)


def test_contributions_add_up(fitted, synthetic_table) -> None:
    features = _features(synthetic_table[-1])[:40]
    effects, scores = fitted.contributions(features).sum(1), fitted.scores(features)
    np.testing.assert_allclose(effects - effects[0], scores - scores[0], atol=1e-5)


def test_a_ranker_survives_a_change_of_process(fitted, synthetic_table) -> None:
    features = _features(synthetic_table[0])
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.scores(features), fitted.scores(features))
