"""The arithmetic of the hook's benchmarks: timings in, figures out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import call_overhead
import inductor_timing
import pandas as pd
import pytest

WAYS = ("inductor", "in graphs")
DATA = Path(__file__).parents[3] / "data_collection" / "data" / "h200.parquet"


def timed(careful: tuple[float, ...], *inductor: tuple[float, ...]) -> dict[str, Any]:
    library = {"careful": 20.0, "sustained": 20.0, "inductor": [20.0] * len(inductor)}
    row = {"configs": list("abc"[: len(careful)]), "careful": careful, "sustained": careful}
    return row | {"inductor": inductor, "library": library, "seconds_a_choice": {"inductor": 0.01}}


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
    figures = inductor_timing.overturned([right, wrong], "inductor")
    assert figures["right_first_choices"] == 1
    assert figures["overturned_share"] == 0.5
    assert figures["mean_loss_when_overturned"] == pytest.approx(0.1)


def test_an_endless_band_is_the_model_alone() -> None:
    found = inductor_timing.figures([timed((11.0, 10.0), (6.0, 5.0))])
    figures = found["inductor"]["regret_by_tie_band"]
    assert figures["0"]["geomean"] == pytest.approx(0.0)
    assert figures["inf"]["geomean"] == pytest.approx(0.1)


def test_contestants_take_turns_and_the_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_overhead, "CALLS", 2)
    now = [0.0]
    cost = {"a": iter([1.0, 1.0, 1.0, 1.0, 9.0, 9.0]), "b": iter([2.0] * 6)}
    order: list[str] = []

    def call(name: str) -> None:
        order.append(name)
        now[0] += next(cost[name])

    times = call_overhead.take_turns(
        {name: lambda name=name: call(name) for name in cost}, lambda: None, 3, lambda: now[0]
    )
    assert times == {"a": 1e6, "b": 2e6}
    assert "".join(order) == "aabb" * 3


def test_every_way_is_scored_with_the_library() -> None:
    """Inductor's takes the library, which is slower by 10%; a graph's the second of ours.

    That is the best of them, and at the power limit slower than the library.
    """
    row = timed((11.0, 10.0), (6.0, 5.5)) | {
        "sustained": (11.0, 12.5),
        "in graphs": [(5.0, 4.5)],
        "library": {"careful": 11.0, "sustained": 12.0, "inductor": [5.0], "in graphs": [5.0]},
        "seconds_a_choice": {"inductor": 0.02, "in graphs": 0.01},
    }
    by_inductor, in_graphs = (inductor_timing.figures([row])[way] for way in WAYS)
    assert (by_inductor["seconds_a_choice"], in_graphs["seconds_a_choice"]) == (0.02, 0.01)
    for found, burst, sustained, slower in (
        (by_inductor, 1.1, 12 / 11, 0.0),
        (in_graphs, 1.0, 12.5 / 11, 1.0),
    ):
        assert found["burst, library"]["geomean"] == pytest.approx(burst - 1)
        assert found["sustained, library"]["most"] == pytest.approx(sustained - 1)
        assert found["sustained, library"]["slower_than_library"] == slower
        assert found["burst, library"]["slower_than_library"] == 0.0
