"""Choices near the fastest race at the power limit: which, and what becomes of their times.

How long the card takes to get there, and what races measure, tests/gpu/hook/test_choices.py sees.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hook_graph import choices_of, linear, settled, warnings_told
from torch._inductor.kernel import mm

from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import install
from tilecast.inductor_hook.timing import power_limit
from tilecast.inductor_hook.timing.choice_benchmark import Contest
from tilecast.inductor_hook.timing.cuda_graph import Captured
from tilecast.inductor_hook.timing.power_limit import at_the_limit, near

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


def test_a_layer_of_the_same_shape_does_not_race_again(graph: Any, races: list[int]) -> None:
    """Inductor's cache has the times of a cool card, which nothing is learned from but these."""
    install(k=2)
    choices = choices_of(linear(4096, 4096, 4096), "mm", [mm.aten_mm])
    _timed(choices)
    assert settled(choices, 1.001, 1, 1.004)[0] is choices[2]
    choices = choices_of(linear(4096, 4096, 4096), "mm", [mm.aten_mm])
    _timed(choices).graphs.clear()
    assert settled(choices, 1.001, 1, 1.004)[0] is choices[2]
    assert races == [3]
    # Of other times nothing is known.
    assert settled(choices, 1.002, 1, 1.004)[0] is choices[1]


def test_what_is_learned_are_times_of_a_cool_card(
    graph: Any, races: list[int], tmp_path: Path
) -> None:
    file = tmp_path / "own.jsonl"
    install(k=2, learn=str(file))
    choices = choices_of(linear(4096, 4096, 4096), "mm", [mm.aten_mm])
    _timed(choices)
    assert settled(choices, 1.001, 1, 1.004)[0] is choices[2]
    _, line = file.read_text().splitlines()  # behind a heading
    assert sorted(json.loads(line)["milliseconds"].values()) == [1, 1.004]
