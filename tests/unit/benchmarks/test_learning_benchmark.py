"""The simulation of learning from autotuning: who sees what, and what the committed result says."""

from __future__ import annotations

import json
from dataclasses import replace

import learn_on_gpu
import numpy as np
import pytest
import runner
import simulation
from learn_from_autotuning import Revealed

from tilecast.data_collection.dataset.autotuned import read_autotuned
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.models.learning.labels import POWERS, ProblemLabels
from tilecast.models.runtime.ranker import ConfigRanker


def test_every_problem_is_production_once_and_unseen_once(
    synthetic_table: list[ProblemLabels],
) -> None:
    parts = simulation.parts(synthetic_table)
    assert len(parts) == 5
    for which in ("production", "unseen"):
        problems = [labels.problem for part in parts for labels in getattr(part, which)]
        assert len(problems) == len(set(problems)) == len(synthetic_table)
    for part in parts:
        families = [{labels.problem.family for labels in table} for table in part]
        assert sum(map(len, families)) == len(set.union(*families)) == 6
        assert sum(map(len, part)) == len(synthetic_table)


def test_errors_are_those_that_were_measured() -> None:
    document = json.loads((runner.RESULTS / "inductor_timing.json").read_text())
    errors = simulation.errors()
    assert sum(map(len, errors)) == 5 * 5 * len(document["rows"])
    for band in errors:
        assert abs(band.mean()) < 1e-12
        assert 0.002 < band.std() < 0.02


def test_what_is_revealed_are_the_first_five_and_their_times(
    synthetic_table: list[ProblemLabels], h200: Hardware
) -> None:
    labels = synthetic_table[5]
    ranker = ConfigRanker(h200, "burst", rounds=8, coarse_rounds=2).fit(synthetic_table[:4])
    seen = Revealed.of(ranker, labels, lambda time, count: np.log([1.0, 2.0, 1.0, 1.0, 1.0]))
    assert seen.places == simulation.first(ranker, labels, 5)
    expected = labels.truth["burst"][seen.places] * [1, 2, 1, 1, 1]
    found = seen.autotuned()
    assert [*found.milliseconds] == [labels.configs[i] for i in seen.places]
    assert [*found.milliseconds.values()] == pytest.approx(expected / 1000)
    mistaken = seen.as_labels()
    assert [*mistaken.candidates] == [*mistaken.configs] == [*found.milliseconds]
    assert mistaken.label["sustained"] == pytest.approx(expected)


def test_learning_helps_where_it_saw_something_and_harms_nobody_else() -> None:
    found = json.loads((runner.RESULTS / "learn_from_autotuning.json").read_text())["figures"]
    for power in POWERS:
        before, after = (found["regret"][power][name] for name in ("before", "after"))
        for k, gain in (("1", 0.7), ("3", 0.8), ("5", 1.0)):
            seen = [part["production"][k]["geomean"] for part in (before, after)]
            assert seen[1] < gain * seen[0]
            # Two seeds differ by as much.
            others = [part["unseen"][k]["geomean"] for part in (before, after)]
            assert others[1] < others[0] + 0.0015


def test_production_is_what_inductor_multiplies_by_a_gemm(
    synthetic_table: list[ProblemLabels],
) -> None:
    first = synthetic_table[0]
    others = [
        replace(first, problem=replace(first.problem, m=1)),
        replace(first, problem=replace(first.problem, batch=2)),
        replace(first, problem=replace(first.problem, operands=GemmOperands.parse("bf16:crr"))),
    ]
    found = learn_on_gpu.production([*others, *synthetic_table])
    asked = [labels.problem for labels in synthetic_table if labels.problem.m > 1]
    assert set(found) == set(asked)
    assert found != asked
    assert found == learn_on_gpu.production([*others, *synthetic_table])


def test_what_a_gpu_learned_helps_where_it_saw_something_and_harms_nobody_else() -> None:
    document = json.loads((runner.RESULTS / "learn_on_gpu.json").read_text())
    seen = read_autotuned([learn_on_gpu.OWN], hardware("H200")).found
    assert document["settings"]["problems"] == len(seen) > 150
    assert document["settings"]["seeds"] == len(learn_on_gpu.SEEDS) == 4
    for power, found in document["figures"]["regret"].items():
        before, after = found["before"], found["after"]
        assert after["production"]["1"]["geomean"] < 0.8 * before["production"]["1"]["geomean"]
        by_seed = document["figures"]["left by seed"][power]["production"]
        assert len(by_seed) == 4 and sorted(by_seed)[2] < 0.82 and max(by_seed) < 0.85
        for k in "135":
            assert after["unseen"][k]["geomean"] < before["unseen"][k]["geomean"] + 0.0005
