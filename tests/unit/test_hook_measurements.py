"""The arithmetic of the hook's benchmarks: timings in, figures out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import call_overhead
import inductor_timing
import pandas as pd
import pytest

DATA = Path(__file__).parents[2] / "data_collection" / "data" / "h200.parquet"


def timed(careful: tuple[float, ...], *inductor: tuple[float, ...]) -> dict[str, Any]:
    return {"configs": list("abc"[: len(careful)]), "careful": careful, "inductor": inductor}


def test_problems_of_the_timing_are_of_families_that_were_never_measured() -> None:
    rows = pd.read_parquet(DATA, columns=["n", "k"]).drop_duplicates()
    measured = set(zip(rows["n"], rows["k"], strict=True))
    assert not measured & set(inductor_timing.FAMILIES)


@pytest.mark.parametrize(
    ("times", "band", "picked"),
    [
        ((1.0, 0.9, 0.95), 0.0, 1),
        ((1.0, 0.9, 0.95), 0.06, 1),
        ((1.0, 0.9, 0.95), 0.2, 0),
        ((1.0, 0.996, 0.99), 0.007, 1),
    ],
)
def test_within_a_tie_band_the_models_order_decides(
    times: tuple[float, ...], band: float, picked: int
) -> None:
    assert inductor_timing.pick(times, band) == picked


def test_a_right_first_choice_that_loses_is_overturned() -> None:
    right = timed((10.0, 11.0), (5.0, 6.0), (6.0, 5.0))
    wrong = timed((11.0, 10.0), (6.0, 5.0), (6.0, 5.0))
    figures = inductor_timing.overturned([right, wrong])
    assert figures["right_first_choices"] == 1
    assert figures["overturned_share"] == 0.5
    assert figures["mean_loss_when_overturned"] == pytest.approx(0.1)


def test_an_endless_band_is_the_model_alone() -> None:
    found = inductor_timing.figures([timed((11.0, 10.0), (6.0, 5.0))])
    figures = found["regret_by_tie_band"]
    assert figures["0"]["geomean"] == pytest.approx(0.0)
    assert figures["inf"]["geomean"] == pytest.approx(0.1)


def test_contestants_take_turns_and_the_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_overhead, "ROUNDS", 3)
    monkeypatch.setattr(call_overhead, "CALLS", 2)
    now = [0.0]
    cost = {"a": iter([1.0, 1.0, 1.0, 1.0, 9.0, 9.0]), "b": iter([2.0] * 6)}
    order: list[str] = []

    def call(name: str) -> None:
        order.append(name)
        now[0] += next(cost[name])

    times = call_overhead.take_turns(
        {name: lambda name=name: call(name) for name in cost}, lambda: None, lambda: now[0]
    )
    assert times == {"a": 1e6, "b": 2e6}
    assert "".join(order) == "aabb" * 3


def test_every_way_is_scored_with_the_library() -> None:
    """Inductor's takes the library, which is 10% slower; a graph's the second of ours, the best."""
    row = timed((11.0, 10.0), (6.0, 5.5)) | {
        "in graphs": [(5.0, 4.5)],
        "library": {"careful": 11.0, "inductor": [5.0], "in graphs": [5.0]},
    }
    for way, best in (("inductor", 0.1), ("in graphs", 0.0)):
        found = inductor_timing.with_library([row], way)
        assert found["problems"] == 1
        assert found["geomean"] == pytest.approx(best)
        assert found["repeatability"] == {"p50": 0.0, "p95": 0.0}
