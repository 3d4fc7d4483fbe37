"""What the benchmark of the protocol's pauses makes of its rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
from protocol_pace import BEFORE, ITEMS, NOW, TURNS, figures

NAMES = [f"128x{n}x64_c1x1x1_s4_coop_o1_rm8" for n in (64, 96, 128, 160)]


def _row(problem: str, turn: int, level: float, odd: float) -> dict[str, Any]:
    """A turn in which all take ``level`` times as long, and the first kernel ``odd`` times that.

    Verification of the last kernel finds it 1% slower than the race did.
    """
    times = [20.0 * level * (odd if not place else 1.0) for place in range(len(NAMES))]
    rows = [
        [name, "burst", stage, us * (1.01 if (stage, name) == ("verify", NAMES[-1]) else 1.0)]
        for stage in ("screen", "race", "verify")
        for name, us in zip(NAMES, times, strict=True)
    ]
    seconds = 0.5 if TURNS[turn] == NOW else 1.0
    return {"problem": problem, "way": TURNS[turn], "seconds": seconds, "rows": rows}


def test_ways_are_told_by_pace_noise_and_times() -> None:
    problems = list(ITEMS)[:2]
    changes = ((1.0, 1.0), (0.99, 1.02), (1.1, 1.0), (1.003, 1.0), (0.99, 1.02), (1.2, 1.0))
    rows = [_row(p, turn, *changes[turn]) for p in problems for turn in range(len(TURNS))]
    found = figures(rows)
    assert found[BEFORE]["rows_per_second"] == 12
    assert found[NOW]["rows_per_second"] == 24
    assert found[NOW]["seconds_per_problem"] == 0.5
    noise = found[NOW]["noise"]["burst"]["from_10_us"]["relative"]
    assert noise["pairs"] == 16
    assert noise["p99"] == pytest.approx(math.log(1.01), rel=1e-4)
    assert found["repeated against before"]["burst"]["level"] == pytest.approx(0.003)
    assert found["repeated against before"]["burst"]["p90"] == pytest.approx(0, abs=1e-12)
    assert found["short gaps against before"]["burst"]["level"] == pytest.approx(0.1)
    now = found["now against before"]["burst"]
    assert now["level"] == pytest.approx(-0.01)
    assert now["p50"] == pytest.approx(0, abs=1e-12)
    assert now["p90"] == pytest.approx(math.log(1.02))
