"""The evaluator scores by the truth, holds families out and checks the contract."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from tilecast.data_collection.dataset.dataset import Dataset
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.kernels.candidates import config_table
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.models.evaluation.baselines import RandomChoice, fit_fixed_subset
from tilecast.models.evaluation.evaluation import evaluate, held_out
from tilecast.models.evaluation.regret import BUCKETS, HeldOut, error_of_mean, regrets, summarise
from tilecast.models.learning.fit_ranker import fit_ranker
from tilecast.models.learning.folds import folds, side_by_side
from tilecast.models.learning.labels import MAX_K, ProblemLabels, label_table, noise_floor
from tilecast.models.runtime.ranker import ConfigRanker


def fit_random(table, objective: str) -> RandomChoice:
    return RandomChoice()


class Oracle:
    """Knows the truth."""

    name = "oracle"

    def __init__(self, power: str, table: list[ProblemLabels]):
        self.orders = {
            labels.problem: np.argsort(labels.cost(power, truth=True)) for labels in table
        }

    def rank(self, problem, candidates, *, limit=None):
        return candidates.take(self.orders[problem][:limit])


class Recorder:
    """Writes down what it was fitted on and asked about."""

    name = "recorder"

    def __init__(self, log: list, table: Sequence[ProblemLabels]):
        self.log = log
        self.families = {labels.problem.family for labels in table}

    def rank(self, problem, candidates, *, limit=None):
        self.log.append((self.families, problem.family))
        return candidates[:limit]


class Silent:
    """Proposes nothing."""

    name = "silent"

    def rank(self, problem, candidates, *, limit=None):
        return candidates[:0]


class Inventor(Silent):
    """Proposes what it was not given."""

    def rank(self, problem, candidates, *, limit=None):
        stranger = QuackConfig(64, 16, 64, 4, 4)
        return config_table([stranger], problem.operands).all()


def test_families_are_held_out_and_every_problem_is_asked_once(synthetic_table) -> None:
    splits = folds(synthetic_table)
    asked = np.concatenate([part for _, part in splits])
    assert sorted(asked) == list(range(len(synthetic_table)))
    log: list = []
    held_out(lambda table, _: Recorder(log, table), synthetic_table, "burst", splits)
    assert len(log) == len(synthetic_table)
    assert all(family not in fitted for fitted, family in log)


def test_what_was_measured_elsewhere_is_learned_from_and_not_asked_about(
    synthetic_table, few_dataset: Dataset
) -> None:
    other = label_table(few_dataset, hardware("H100"))
    table, own = [*other, *synthetic_table], len(other)
    alone, splits = folds(synthetic_table), folds(table)
    for (fitted, asked), (taught, also) in zip(alone, splits, strict=True):
        assert (also - own).tolist() == asked.tolist()
        assert (taught[taught >= own] - own).tolist() == fitted.tolist()
        held_out = {table[i].problem.family for i in also}
        known = {i for i in range(own) if table[i].problem.family not in held_out}
        assert set(taught[taught < own]) == known
    scored = [evaluate([fit_random], one, ["burst"])["regret"] for one in (synthetic_table, table)]
    assert scored[0] == scored[1]


@pytest.mark.parametrize("power", ["burst", "sustained", "robust"])
def test_the_oracle_has_no_regret(power: str, synthetic_table) -> None:
    splits = folds(synthetic_table)
    result = held_out(lambda _, p: Oracle(p, synthetic_table), synthetic_table, power, splits)
    rows = summarise(result, synthetic_table)
    assert {row["max"] for row in rows} == {0}
    assert {row["within_2_percent"] for row in rows} == {1}
    everything = [row for row in rows if row["problems"] == "all"]
    assert [row["k"] for row in everything] == list(range(1, MAX_K + 1))
    assert {row["count"] for row in everything} == {len(synthetic_table)}
    buckets = {row["problems"]: row["count"] for row in rows if row["problems"] in BUCKETS}
    assert sum(buckets.values()) == len(synthetic_table)


def test_how_far_a_mean_is_known_is_a_matter_of_families() -> None:
    regret = np.expm1(np.random.default_rng(1).exponential(0.01, (400, 2)))
    alone = error_of_mean(regret, range(400))
    # Of many the error is normal: 1.96 standard deviations of the mean.
    expected = 1.96 * np.log1p(regret).std(0) / 20
    np.testing.assert_allclose(alone, expected, rtol=0.1)
    # Four times the same problem is no more knowledge than once.
    again = error_of_mean(np.repeat(regret, 4, 0), np.repeat(range(400), 4).tolist())
    np.testing.assert_allclose(again, alone)
    assert error_of_mean(regret[:1], [0]).tolist() == [0, 0]


def test_regret_is_by_the_truth_and_falls_with_k(synthetic_table) -> None:
    labels = synthetic_table[0]
    slowdown = labels.slowdown("burst", truth=True)
    slowest, fastest = int(slowdown.argmax()), int(slowdown.argmin())
    result = HeldOut("x", "burst", ((slowest, fastest),))
    expected = [slowdown.max() - 1] + [0] * (MAX_K - 1)
    np.testing.assert_allclose(regrets(result, [labels])[0], expected)
    one, two = [row for row in summarise(result, [labels]) if row["problems"] == "all"][:2]
    assert (one["proposed"], two["proposed"]) == (1, 2)
    assert one["p95"] == one["max"] == pytest.approx(slowdown.max() - 1)
    assert one["geomean"] == pytest.approx(one["max"])
    assert (one["within_2_percent"], two["within_2_percent"]) == (0, 1)


def test_a_problem_without_proposals_counts_in_no_row(synthetic_table) -> None:
    result = held_out(lambda *_: Silent(), synthetic_table, "burst", folds(synthetic_table))
    assert np.isnan(regrets(result, synthetic_table)).all()
    assert summarise(result, synthetic_table) == []


def test_inventing_is_caught(synthetic_table) -> None:
    with pytest.raises(TilecastError, match="proposed .*, which is no candidate"):
        held_out(lambda *_: Inventor(), synthetic_table, "burst", folds(synthetic_table))


def test_heuristics_are_scored_side_by_side_as_plain_data(synthetic_table) -> None:
    fits = (fit_random, fit_fixed_subset)
    result: dict[str, Any] = evaluate(fits, synthetic_table, ("burst", "robust"), jobs=2)
    assert json.loads(json.dumps(result)) == result
    assert (result["problems"], result["families"]) == (24, 6)
    at_most = {
        (row["heuristic"], row["power"]): row["geomean"]
        for row in result["regret"]
        if row["problems"] == "all" and row["k"] == MAX_K
    }
    assert len(at_most) == 4
    assert at_most["best fixed subset", "burst"] < at_most["random", "burst"]
    assert result == evaluate(fits, synthetic_table, ("burst", "robust"))


@pytest.mark.parametrize("power", ["burst", "robust"])
def test_some_problems_are_scored_as_they_are_among_all(power: str, synthetic_table) -> None:
    """The others are learned from all the same, and the family of a scored one is held out."""
    chosen = [0, 5, 6]
    among = {synthetic_table[i].problem for i in chosen}
    result: Any = evaluate([fit_fixed_subset], synthetic_table, (power,), among=among)
    whole = held_out(fit_fixed_subset, synthetic_table, power, folds(synthetic_table))
    expected = regrets(whole, synthetic_table)[chosen]
    assert (result["problems"], result["families"]) == (3, len({p.family for p in among}))
    rows = [row for row in result["regret"] if row["problems"] == "all"]
    assert [row["count"] for row in rows] == [3] * MAX_K
    assert [row["max"] for row in rows] == expected.max(axis=0).tolist()
    geomeans = np.expm1(np.log1p(expected).mean(axis=0))
    assert [row["geomean"] for row in rows] == pytest.approx(geomeans.tolist())
    floor = noise_floor([synthetic_table[i] for i in chosen], power)
    assert result["noise_floor"] == {power: floor}


def test_only_scored_problems_are_asked_about(synthetic_table) -> None:
    log: list = []
    problem = synthetic_table[0].problem
    evaluate([lambda table, _: Recorder(log, table)], synthetic_table, ("burst",), among={problem})
    ((fitted, family),) = log
    assert family == problem.family
    assert fitted and family not in fitted


def test_calls_side_by_side_have_a_thread_each_and_torch_its_own_again() -> None:
    def elsewhere() -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(torch.get_num_threads).result()

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert side_by_side(2, [torch.get_num_threads] * 4) == [1] * 4
        assert (torch.get_num_threads(), elsewhere()) == (2, 2)
    finally:
        torch.set_num_threads(before)


def test_first_choices_are_set_beside_the_library(synthetic_table) -> None:
    def fit(table, objective: str) -> ConfigRanker:
        return fit_ranker(table, objective, hardware=hardware("H200"), rounds=20, passes=4)

    result: dict[str, Any] = evaluate([fit, fit_random], synthetic_table, ("sustained",), jobs=2)
    assert json.loads(json.dumps(result)) == result
    alone, beside = result["beside_library"][:2]
    assert (alone["problems"], alone["deferral"], alone["count"]) == ("all", False, 24)
    assert (alone["left"], beside["deferral"]) == (0, True)
    asked = held_out(fit, synthetic_table, "sustained", folds(synthetic_table))
    over = [
        one.reference["sustained"] / one.truth["sustained"][picks[0]]
        for one, picks in zip(synthetic_table, asked.picks, strict=True)
    ]
    assert alone["geomean"] == pytest.approx(np.exp(np.log(over).mean()))
    assert alone["worst"] == pytest.approx(min(over))
    assert {row["problems"] for row in result["beside_library"]} >= {
        "all",
        "layers of language models",
    }


def test_only_our_rankers_are_set_beside_the_library(synthetic_table) -> None:
    some = [labels.problem for labels in synthetic_table][:3]
    only: dict[str, Any] = evaluate([fit_random], synthetic_table, ("burst",), among=some)
    assert only["beside_library"] == []
