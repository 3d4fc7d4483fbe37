"""Choices near the fastest race at the power limit: which, and what becomes of their times.

How long the card takes to get there, and what races then measure, tests/gpu/test_hook_gpu.py sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hook_graph import choices_of, linear, settled
from torch._inductor import config
from torch._inductor.kernel import mm
from torch._inductor.select_algorithm import get_algorithm_selector_cache

from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import graph_timing, install, power_limit
from tilecast.inductor_hook.graph_timing import Captured
from tilecast.inductor_hook.power_limit import at_the_limit
from tilecast.inductor_hook.timings import told_anew

COMPUTE, MEMORY = GemmProblem(4096, 4096, 4096), GemmProblem(16, 4096, 4096)

Limited = Callable[[dict[str, float]], None]


def _captured() -> Captured:
    return Captured((), 1, *([None] * 3))  # type: ignore[arg-type]


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many took part in each race; the last of them is the fastest, by 1% before each other."""
    found: list[int] = []

    def race(graphs: Sequence[Captured], device: int) -> list[float]:
        found.append(len(graphs))
        return [2 + 0.02 * (len(graphs) - 1 - place) for place in range(len(graphs))]

    monkeypatch.setattr(power_limit, "race", race)
    return found


def _told(power: str, problem: GemmProblem = COMPUTE, **timings: float) -> dict[str, float]:
    return at_the_limit(timings, dict.fromkeys(timings, _captured()), problem, power, 0)


def test_those_near_the_fastest_race_and_the_worse_of_both_counts(races: list[int]) -> None:
    found = _told("robust", a=1.0, b=1.015, c=1.04, far=1.06)
    assert found == pytest.approx({"a": 1.02, "b": 1.015, "c": 1.04})
    assert races == [3]


def test_for_sustained_the_limit_alone_counts(races: list[int]) -> None:
    assert _told("sustained", a=1.0, b=1.015, c=1.04) == pytest.approx(
        {"a": 1.02, "b": 1.01, "c": 1.0}
    )


@pytest.mark.parametrize(
    ("power", "problem", "timings"),
    [
        ("burst", COMPUTE, {"a": 1.0, "b": 1.01}),
        ("robust", MEMORY, {"a": 1.0, "b": 1.01}),
        ("robust", COMPUTE, {"a": 1.0, "b": 1.06}),
        ("robust", COMPUTE, {"a": 1.0, "b": float("inf")}),
    ],
)
def test_where_the_limit_does_not_matter_nobody_races(
    races: list[int], power: str, problem: GemmProblem, timings: dict[str, float]
) -> None:
    assert _told(power, problem, **timings) == {}
    assert races == []


def test_without_a_graph_of_each_nobody_races(races: list[int]) -> None:
    timings = {"a": 1.0, "b": 1.01}
    assert at_the_limit(timings, {"a": _captured()}, COMPUTE, "robust", 0) == {}
    assert races == []


def test_whoever_holds_out_at_the_limit_wins(graph: Any, races: list[int]) -> None:
    install(k=2)
    choices = choices_of(linear(4096, 4096, 4096), "mm", [mm.aten_mm])
    aten, _, second = choices
    for choice in choices:
        graph_timing._captured[choice] = _captured()
    assert settled(choices, 1.001, 1, 1.004)[0] is second
    assert races == [3]
    # What was captured is let go of.
    assert not [choice for choice in choices if choice in graph_timing._captured]
    assert settled(choices, 1.001, 1.01, 1.02)[0] is aten
    assert races == [3]


def test_inductors_cache_is_told(graph: Any, races: list[int]) -> None:
    install(k=3)
    choices = choices_of(linear(4096, 4096, 4096), "mm")
    autotuner = get_algorithm_selector_cache()
    cached = dict(zip([c.hash_key() for c in choices], (1, 1.002, 1.001), strict=True))
    other = {key: 2 * time for key, time in cached.items()}
    with config.patch(autotune_local_cache=True):
        autotuner.update_local_cache({"mm": {"these": {"high": cached}, "those": {"high": other}}})
        for choice in choices:
            graph_timing._captured[choice] = _captured()
        settled(choices, 1, 1.002, 1.001)
        told = autotuner.get_local_cache()["mm"]
    assert [*told["these"]["high"].values()] == pytest.approx([1.02, 1.01, 1.001])
    assert told["those"]["high"] == other


def test_times_are_told_anew_where_they_stand() -> None:
    before, after = {"a": 1.0, "b": 2.0}, {"a": 3.0}
    told: dict[str, Any] = {"mm": {"x": {"a": 1.0, "b": 2.0, "c": 4.0}, "y": {"a": 1.0, "b": 5.0}}}
    assert told_anew(told, before, after) == {
        "mm": {"x": {"a": 3.0, "b": 2.0, "c": 4.0}, "y": {"a": 1.0, "b": 5.0}}
    }
