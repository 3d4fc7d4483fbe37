"""Which candidates are measured when a model guides the collection."""

from __future__ import annotations

from dataclasses import replace

from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.heuristic import rank
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates, stock_candidates
from tilecast.kernels.families import family_of
from tilecast.models.apply.guidance import KNOBS, Guided
from tilecast.models.evaluation.baselines import RandomChoice
from tilecast.models.runtime.learned import LearnedHeuristic, load_heuristic
from tilecast.models.runtime.unmeasured import AnalyticOrder

H200 = hardware("H200")
PROBLEM = GemmProblem(64, 4096, 4096)


def _knobs(config) -> tuple[object, ...]:
    geometry = family_of(config).geometry([config])
    return tuple(getattr(geometry, name).item() for name in KNOBS)


def test_the_first_of_the_ranking_their_neighbours_and_some_by_chance() -> None:
    every = candidates(PROBLEM, H200)
    guided = Guided(RandomChoice(), H200, first=50, best=4, neighbours=10, chance=20)
    chosen = guided(PROBLEM, every)
    stock = stock_candidates(LINEAR_BF16, H200, every)
    assert len(stock) == 6
    assert set(stock) <= set(chosen)
    others = set(chosen) - set(stock)
    assert len(chosen) == len(set(chosen))
    assert 80 - len(stock) <= len(others) <= 80
    ranking = list(rank(RandomChoice(), PROBLEM, every))
    assert set(ranking[:50]) <= set(chosen)
    best = [_knobs(config) for config in ranking[:4]]
    beside = [
        config
        for config in ranking[50:]
        if any(sum(a != b for a, b in zip(_knobs(config), one, strict=True)) <= 1 for one in best)
    ]
    assert len(beside) > 10
    assert set(beside[:10]) <= set(chosen)
    # In the order of the candidates, so that two runs measure alike.
    assert [every.index(config) for config in chosen] == sorted(map(every.index, chosen))


def test_chance_is_the_same_in_every_run_and_another_for_another_problem() -> None:
    every = candidates(PROBLEM, H200)
    only_chance = Guided(RandomChoice(), H200, first=1, best=0, neighbours=0, chance=30)
    assert list(only_chance(PROBLEM, every)) == list(only_chance(PROBLEM, every))
    other = GemmProblem(65, 4096, 4096)
    assert set(only_chance(PROBLEM, every)) != set(only_chance(other, candidates(other, H200)))


def test_the_likeliest_of_a_family_that_nobody_ranks_are_measured_too() -> None:
    """By the analytic time; nothing of it is drawn by chance, and with 0 nothing is measured."""
    problem = GemmProblem(196, 2064, 26464)
    every = candidates(problem, H200)
    shipped = load_heuristic(H200, LINEAR_BF16).artifact
    known = LearnedHeuristic(replace(shipped, families=frozenset({"quack_sm90"})))
    new = [config for config in every if config.family == "quack_sm90_memory"]
    order = list(AnalyticOrder(H200).rank(problem, every.select(new)))
    for count in (0, 5, 1000):
        chosen = Guided(known, H200, new=count)(problem, every)
        assert {config for config in chosen if config in set(new)} == set(order[:count])
        assert len(chosen) - min(count, len(new)) > 80
        assert [every.index(config) for config in chosen] == sorted(map(every.index, chosen))


def test_few_candidates_are_all_measured() -> None:
    tiny = GemmProblem(8, 16, 64)
    every = candidates(tiny, H200)
    assert list(Guided(RandomChoice(), H200)(tiny, every)) == list(every)
