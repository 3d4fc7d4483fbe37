"""Choices near the fastest race at the power limit: which, and what becomes of their times.

How long the card takes to get there, and what races then measure, tests/gpu/test_hook_gpu.py sees.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hook_graph import choices_of, linear, settled, warnings_told
from torch._inductor import config
from torch._inductor.kernel import mm
from torch._inductor.select_algorithm import get_algorithm_selector_cache

from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import install, power_limit
from tilecast.inductor_hook.contest import Contest
from tilecast.inductor_hook.graph_timing import Captured
from tilecast.inductor_hook.power_limit import at_the_limit, near
from tilecast.inductor_hook.template import FAILED_MS
from tilecast.inductor_hook.timings import told_anew

COMPUTE, MEMORY = GemmProblem(4096, 4096, 4096), GemmProblem(16, 4096, 4096)


class _Graph:
    def reset(self) -> None:
        """Nothing to let go of."""


def _captured() -> Captured:
    return Captured((), 1, _Graph(), None, None)  # type: ignore[arg-type]


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many took part in each race; the last of them is the fastest, by 1% before each other."""
    found: list[int] = []

    def race(graphs: Sequence[Captured], device: int) -> list[float]:
        found.append(len(graphs))
        return [2 + 0.02 * (len(graphs) - 1 - place) for place in range(len(graphs))]

    monkeypatch.setattr(power_limit, "race", race)
    return found


def _told(power: str, **timings: float) -> dict[str, float]:
    return at_the_limit(timings, dict.fromkeys(timings, _captured()), power, 0)


def _timed(choices: Sequence[Any], power: str = "robust") -> Contest:
    """As when all of them have been timed in graphs."""
    contest = Contest(near(COMPUTE, power))
    contest.timed = True
    for choice in choices:
        contest.enter(choice)
        contest.graphs[choice], contest._unload[choice] = _captured(), lambda: None
    return contest


def test_those_near_the_fastest_race_and_the_worse_of_both_counts(races: list[int]) -> None:
    found = _told("robust", a=1.0, b=1.015, c=1.04, far=1.06)
    assert found == pytest.approx({"a": 1.02, "b": 1.015, "c": 1.04})
    assert races == [3]


def test_for_sustained_the_limit_alone_counts(races: list[int]) -> None:
    assert _told("sustained", a=1.0, b=1.015, c=1.04) == pytest.approx(
        {"a": 1.02, "b": 1.01, "c": 1.0}
    )


def test_the_limit_matters_where_products_can_reach_it() -> None:
    assert near(COMPUTE, "robust") == near(COMPUTE, "sustained") == power_limit.NEAR
    assert near(COMPUTE, "burst") is None
    assert near(MEMORY, "robust") is None


@pytest.mark.parametrize("timings", [{"a": 1.0, "b": 1.06}, {"a": 1.0, "b": float("inf")}])
def test_nobody_races_alone(races: list[int], timings: dict[str, float]) -> None:
    assert _told("robust", **timings) == {}
    assert races == []


def test_without_a_graph_of_each_nobody_races(races: list[int]) -> None:
    timings = {"a": 1.0, "b": 1.01}
    assert at_the_limit(timings, {"a": _captured()}, "robust", 0) == {}
    assert races == []


def test_whoever_holds_out_at_the_limit_wins(graph: Any, races: list[int]) -> None:
    install(k=2)
    choices = choices_of(linear(4096, 4096, 4096), "mm", [mm.aten_mm])
    aten, _, second = choices
    contest = _timed(choices)
    assert settled(choices, 1.001, 1, 1.004)[0] is second
    assert races == [3]
    # What was captured is let go of.
    assert contest.graphs == {}
    assert settled(choices, 1.001, 1.01, 1.02)[0] is aten
    assert races == [3]


def test_a_race_that_fails_is_one_warning(
    graph: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(power_limit, "race", lambda *_: 1 / 0)
    install(k=2)
    choices = choices_of(linear(4096, 4096, 4096), "mm", [mm.aten_mm])
    contest = _timed(choices)
    assert settled(choices, 1.01, 1, 1.02)[0] is choices[1]
    assert contest.graphs == {}
    (said,) = warnings_told(caplog)
    assert "timing at the power limit failed (ZeroDivisionError" in said
    assert said.endswith("a cool card's times count")


def test_inductors_cache_is_told(graph: Any, races: list[int]) -> None:
    """Of one that failed it has no time, and of another product nothing changes."""
    install(k=3)
    choices = choices_of(linear(4096, 4096, 4096), "mm", [mm.aten_mm])
    times = (1, 1.002, FAILED_MS, 1.001)
    autotuner = get_algorithm_selector_cache()
    cached = dict(zip([c.hash_key() for c in choices], times, strict=True))
    other = {key: 2 * time for key, time in cached.items()}
    with config.patch(autotune_local_cache=True):
        autotuner.update_local_cache({"mm": {"these": {"high": cached}, "those": {"high": other}}})
        _timed(choices)
        settled(choices, *times)
        told = autotuner.get_local_cache()["mm"]
    assert [*told["these"]["high"].values()] == pytest.approx([1.02, 1.01, 1.001])
    assert [*told["those"]["high"].values()] == pytest.approx([2, 2.004, 2.002])


def test_only_what_was_measured_is_learned(graph: Any, races: list[int], tmp_path: Path) -> None:
    """Out of Inductor's cache come times that were told before, or raised."""
    file = tmp_path / "own.jsonl"
    install(k=2, learn=str(file))
    choices = choices_of(linear(4096, 4096, 4096), "mm", [mm.aten_mm])
    _timed(choices)
    settled(choices, 1.001, 1, 1.004)
    _, line = file.read_text().splitlines()  # behind a heading
    assert sorted(json.loads(line)["milliseconds"].values()) == [1, 1.004]
    contest = Contest(near(COMPUTE, "robust"))
    for choice in choices:
        contest.enter(choice)
    settled(choices, 1.02, 1.01, 1.004)
    assert len(file.read_text().splitlines()) == 2


def test_times_are_told_anew_where_they_stand() -> None:
    before, after = {"a": 1.0, "b": 2.0}, {"a": 3.0}
    told: dict[str, Any] = {"mm": {"x": {"a": 1.0, "b": 2.0, "c": 4.0}, "y": {"a": 1.0, "b": 5.0}}}
    assert told_anew(told, before, after) == {
        "mm": {"x": {"a": 3.0, "b": 2.0, "c": 4.0}, "y": {"a": 1.0, "b": 5.0}}
    }
