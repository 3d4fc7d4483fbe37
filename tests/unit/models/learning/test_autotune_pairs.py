"""What autotuning teaches, whom it teaches, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tilecast.data_collection.dataset.autotuned import Autotuned
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.heuristic import rank
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.models.learning import training
from tilecast.models.learning.autotune_pairs import Comparison, compared_features, comparisons
from tilecast.models.learning.fit_ranker import fit_ranker
from tilecast.models.learning.folds import folds
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.learning.training import fit_rankers

PROBLEM = GemmProblem(640, 5120, 5120)


def _autotuned(problem: GemmProblem, times: dict[KernelConfig, float]) -> Autotuned:
    return Autotuned(problem, times, None, "H200", "", {}, "")


@pytest.fixture
def configs(h200: Hardware) -> list[KernelConfig]:
    return list(candidates(PROBLEM, h200)[::100])


def test_runs_of_the_same_configs_count_once_by_their_medians(
    h200: Hardware, configs: list[KernelConfig]
) -> None:
    a, b, c, *_ = configs
    runs = [{a: 2.0, b: 3.0}, {b: 3.0, a: 1.0}, {a: 2.0, b: 7.0}, {a: 8.0, c: 4.0}]
    found = [
        _slowdowns(one)
        for one in comparisons([_autotuned(PROBLEM, run) for run in runs], set(), h200)
    ]
    assert len(found) == 2
    assert {a: 1.0, b: 1.5} in found
    assert {a: 2.0, c: 1.0} in found


def _slowdowns(one: Comparison) -> dict[KernelConfig, float]:
    return dict(zip(one.configs, one.slowdown.tolist(), strict=True))


def test_one_config_alone_teaches_nothing(h200: Hardware, configs: list[KernelConfig]) -> None:
    """Nor one beside another that is no candidate any more."""
    small = GemmProblem(16, 5120, 5120)
    gone = next(c for c in candidates(PROBLEM, h200) if c not in candidates(small, h200))
    here = candidates(small, h200)[0]
    found = [_autotuned(PROBLEM, {configs[0]: 1.0}), _autotuned(small, {here: 1.0, gone: 2.0})]
    assert comparisons(found, set(), h200) == []


def test_a_collector_knows_better(h200: Hardware, configs: list[KernelConfig]) -> None:
    found = [_autotuned(PROBLEM, dict.fromkeys(configs[:2], 1.0))]
    assert comparisons(found, {PROBLEM}, h200) == []
    (one,) = comparisons(found, {replace(PROBLEM, m=648)}, h200)
    assert one.problem == PROBLEM


def test_only_the_network_learns(synthetic_table: list[ProblemLabels], h200: Hardware) -> None:
    asked, known = synthetic_table[0], synthetic_table[4:]
    fit = partial(fit_ranker, hardware=h200, rounds=20, depth=5, passes=40)
    plain = fit(known)
    first = rank(plain, asked.problem, candidates(asked.problem, h200), limit=6)
    # Production says the contrary of what the model thinks.
    times = {config: float(6 - place) for place, config in enumerate(first)}
    (compared,) = comparisons([_autotuned(asked.problem, times)], set(), h200)
    taught = fit(known, compared=[compared])
    assert taught.forest.pack() == plain.forest.pack()
    features = compared_features(compared, h200)
    before, after = (
        np.corrcoef(one.model_scores(features).network, np.log(compared.slowdown))[0, 1]
        for one in (plain, taught)
    )
    assert before < 0 < after
    assert after - before > 0.5


def test_held_out_families_are_held_out_of_what_was_compared(
    synthetic_table: list[ProblemLabels], h200: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught: list[tuple[set, set]] = []

    def fit(table: Any, *, compared: Any, **_: object) -> None:
        known, others = ({one.problem.family for one in part} for part in (table, compared))
        taught.append((known, others))

    monkeypatch.setattr(training, "fit_ranker", fit)
    splits = folds(synthetic_table)
    problems = [replace(labels.problem, m=96) for labels in synthetic_table]
    compared = comparisons(
        [_autotuned(p, dict.fromkeys(candidates(p, h200)[:2], 1.0)) for p in problems], set(), h200
    )
    families = {labels.problem.family for labels in synthetic_table}
    fit_rankers(h200, synthetic_table, splits, compared)
    assert taught[0] == (families, families)
    assert len(taught) == 1 + len(splits)
    for known, others in taught[1:]:
        assert known == others < families
