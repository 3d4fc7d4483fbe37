"""How many candidates a problem gets: more where there is doubt, and better than a fixed k."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tilecast.data_collection.dataset.dataset import read_dataset, shipped_data
from tilecast.heuristics.hardware import hardware
from tilecast.models.learning.fit_stopping import FirstCandidates, fit_stopping
from tilecast.models.runtime.artifact import load_shipped
from tilecast.models.runtime.objectives import OBJECTIVES
from tilecast.models.runtime.ranker import ModelScores
from tilecast.models.runtime.stopping import (
    MAX_TAKEN,
    MEANS,
    MOST_WEIGHT,
    StoppingRule,
    stop_features,
)

RESULT = Path(__file__).parents[4] / "benchmarks" / "results" / "adaptive_k.json"
RULE = StoppingRule(-6.0, (-1.0, -10.0, 10.0, 20.0), {2: -6.5, 4: -8.0})


@pytest.fixture(scope="module")
def shipped() -> StoppingRule:
    return load_shipped(hardware("H200")).rule


def _rankings(count: int) -> list[np.ndarray]:
    """Pairs of scores such as rankings have: rising costs, and noise, less here and more there."""
    source = np.random.default_rng(0)
    rise = np.arange(MAX_TAKEN) * np.array([[0.01], [0.016]])
    noise = source.normal(0, [[0.02], [0.032]], (count, 2, MAX_TAKEN))
    return list(rise + noise * source.uniform(0.3, 1.7, (count, 1, 1)))


def _seen(trees: np.ndarray, network: np.ndarray) -> np.ndarray:
    return stop_features(ModelScores(trees, network))


def test_features_compare_with_the_best_before() -> None:
    found = _seen(np.array([1.0, 1.2, 0.9, 0.8]), np.array([3.0, 2.5, 4.0, 2.0]))
    differ = np.std([2.0, 1.3, 3.1, 1.2])
    expected = [[0, 0, 0, differ], [np.log(2), 1.5, 0.1, differ], [np.log(3), 0, 0.1, differ]]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_one_candidate_leaves_no_doubt() -> None:
    assert RULE.size(_seen(np.zeros(1), np.zeros(1)), 2) == 1


def test_candidates_are_taken_until_the_first_that_is_not_worth_it() -> None:
    # Expected log gains: -6, -6 - log 2 - 0.8 and -6 - log 3 + 4.
    rows = np.array([[0, 0, 0, 0], [np.log(2), 0.08, 0, 0], [np.log(3), 0, 0.4, 0]])
    assert RULE.size(rows, 2) == 2
    assert RULE.size(rows, 4) == 4


def test_a_problem_gets_one_to_eight(shipped: StoppingRule) -> None:
    for mean in MEANS:
        sizes = {
            shipped.size(stop_features(ModelScores(*ranking)), mean) for ranking in _rankings(400)
        }
        assert 1 <= min(sizes) < max(sizes) <= MAX_TAKEN
    certain = _seen(np.arange(MAX_TAKEN) / 4, np.arange(MAX_TAKEN) / 4)
    torn = _seen(-np.arange(MAX_TAKEN) / 10, -np.arange(MAX_TAKEN) / 100)
    for mean in MEANS:
        assert shipped.size(certain, mean) == 1
        assert shipped.size(torn, mean) == MAX_TAKEN


def _planted(count: int) -> list[FirstCandidates]:
    """Rankings whose first candidates gain, one time in three, three times what `RULE` expects."""
    source = np.random.default_rng(1)
    asked = []
    for ranking in _rankings(count):
        rows = stop_features(ModelScores(*ranking))
        gains = 3 * np.exp(RULE.gains(rows)) * (source.random(len(rows)) < 1 / 3)
        asked.append(FirstCandidates(rows, np.exp(-np.cumsum([0, *gains]))))
    return asked


def test_what_decides_is_learned_from_gains() -> None:
    rule = fit_stopping(_planted(8000))
    found, planted = (rule.constant, *rule.weights), (RULE.constant, *RULE.weights)
    np.testing.assert_allclose(found, planted, rtol=0.1)


def test_where_no_further_candidate_gains_anything_there_is_a_rule() -> None:
    none = [
        FirstCandidates(stop_features(ModelScores(*r)), np.ones(MAX_TAKEN)) for r in _rankings(20)
    ]
    rule = fit_stopping(none)
    figures = (rule.constant, *rule.weights, *rule.thresholds.values())
    assert np.isfinite(figures).all()
    assert np.abs(figures).max() <= MOST_WEIGHT


def test_the_mean_is_kept_over_what_was_learned_from() -> None:
    asked = _planted(1000)
    rule = fit_stopping(asked)
    for mean in MEANS:
        sizes = [rule.size(first.features, mean) for first in asked]
        assert np.mean(sizes) == pytest.approx(mean, abs=0.05)


def test_adaptive_k_beats_fixed_k_on_held_out_problems() -> None:
    result = json.loads(RESULT.read_text())
    figures = result["figures"]
    data = shipped_data(hardware("H200"))
    assert data is not None
    assert result["settings"]["dataset"]["sha256"] == read_dataset(data).digest
    assert figures["means"] == list(MEANS)
    ahead = {"geomean": 0, "p95": 0}
    for power in OBJECTIVES:
        cells = figures["powers"][power]
        for mean, cell in zip(MEANS, cells, strict=True):
            assert cell["mean"] == pytest.approx(mean, abs=0.2)
        for figure in ahead:
            adaptive, fixed = ([c[kind][figure] for c in cells] for kind in ("adaptive", "fixed"))
            assert sum(adaptive) < sum(fixed), (power, figure)
            ahead[figure] += sum(a <= f for a, f in zip(adaptive, fixed, strict=True))
    assert ahead == {"geomean": 15, "p95": 15}
    over = [each["difference"] for each in figures["over_powers"]]
    assert max(over) < 0
