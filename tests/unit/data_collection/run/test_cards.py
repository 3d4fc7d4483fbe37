"""Cards that time the same problems, set beside each other."""

from __future__ import annotations

import pytest

from tilecast.data_collection.dataset.measurement import REFERENCE, Measurement
from tilecast.data_collection.run.cards import CardTimes, card_times, comparison, spread
from tilecast.data_collection.timing.card_health import throttles, watch
from tilecast.data_collection.timing.protocol import CardFailure
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.reporting.cards import card_differences, card_table, trouble_table

SMALL, LARGE = GemmProblem(16, 512, 512), GemmProblem(512, 4096, 4096)


def _times(card: str, problem: GemmProblem, *times: float, library: float = 5.0) -> CardTimes:
    named = {("burst", f"config {i}"): time for i, time in enumerate(times)}
    return CardTimes(card, problem, named | {("burst", REFERENCE): library})


def test_few_problems_are_spread_over_all_sizes() -> None:
    many = [GemmProblem(m, 512, 512) for m in range(1, 101)]
    assert [p.m for p in spread(many)] == [9, 26, 42, 59, 76, 92]
    assert spread(list(reversed(many))) == spread(many)
    assert spread(many[:2]) == (many[0], many[1])
    assert spread([]) == ()


def test_what_a_card_timed_comes_back_from_the_provenance() -> None:
    config = QuackConfig(64, 64, 64)
    rows = [
        Measurement(SMALL, config, "burst", "verify", 4.5, 0.01, 16),
        Measurement(SMALL, None, "burst", "verify", 5.5, 0.01, 16),
    ]
    run = {"compared": [comparison(SMALL, rows, "one")]}
    assert card_times([{}, run]) == [
        CardTimes("one", SMALL, {("burst", config.name): 4.5, ("burst", REFERENCE): 5.5})
    ]


def test_a_card_that_is_slower_is_told() -> None:
    found = [
        _times(card, problem, *(slow * time for time in (1.0, 1.1, 1.3)), library=slow)
        for card, slow in (("a", 1.0), ("b", 1.01), ("c", 1.08))
        for problem in (SMALL, LARGE)
    ]
    a, b, c = card_differences(found)
    assert (a.problems, a.kernels) == (2, 8)
    assert a.times == pytest.approx(1 / 1.045 - 1)
    assert b.times == pytest.approx(1.01 / 1.04 - 1)
    assert c.times == pytest.approx(1.08 / 1.005 - 1)
    assert [one.ranks for one in (a, b, c)] == pytest.approx([0, 0, 0])
    assert [one.differs for one in (a, b, c)] == [True, False, True]
    table = card_table([a, b, c])
    assert table is not None
    assert [row[-1] for row in table.rows] == ["yes", "", "yes"]


def test_a_card_alone_is_not_compared() -> None:
    assert card_table(card_differences([_times("a", SMALL, 1.0, 1.04)])) is None


def test_a_card_that_ranks_differently_is_told() -> None:
    right, wrong = (1.0, 1.04, 1.1), (1.02, 0.99, 1.1)
    found = [_times("a", SMALL, *right), _times("b", SMALL, *right), _times("c", SMALL, *wrong)]
    a, _, c = card_differences(found)
    assert c.ranks == pytest.approx(0.04)
    assert c.differs
    # Of the others' medians, (1.01, 1.015, 1.1), the first is the best, too.
    assert a.ranks == pytest.approx(0)
    assert not a.differs


def test_a_library_that_is_faster_is_no_choice() -> None:
    found = [_times("a", SMALL, 1.0, library=0.5), _times("b", SMALL, 1.0, library=0.5)]
    assert [one.ranks for one in card_differences(found)] == [0, 0]


def test_a_card_alone_differs_from_nobody() -> None:
    (alone,) = card_differences([_times("a", SMALL, 1.0)])
    assert (alone.problems, alone.kernels, alone.times, alone.ranks) == (0, 0, None, None)
    assert not alone.differs
    a, _ = card_differences([_times("a", SMALL, 1.0), _times("b", LARGE, 1.0)])
    assert (a.problems, a.times) == (0, None)


def test_troubles_are_counted_by_card() -> None:
    hot = {"card": "a", "reason": "the GPU throttles: hardware thermal"}
    killed = {"card": "b", "reason": "killed (out of memory?)"}
    table = trouble_table([{"troubles": [hot, killed]}, {}, {"troubles": [hot]}])
    assert table is not None
    assert table.rows == [(*hot.values(), 2), (*killed.values(), 1)]
    assert trouble_table([{}]) is None


def test_the_power_cap_is_no_throttle() -> None:
    assert throttles(0x1 | 0x4) == []
    assert throttles(0x4 | 0x20 | 0x80) == ["software thermal", "power brake"]


def test_a_card_that_does_not_say_if_it_throttles_is_to_blame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And no kernel, of which one may have been announced last."""
    from cuda.bindings import nvml  # pyright: ignore[reportAttributeAccessIssue]

    class Lost(nvml.NvmlError):
        def __init__(self) -> None:
            Exception.__init__(self, "GPU is lost")  # NVML's own asks the driver for its text

    def lost(card: object) -> int:
        raise Lost

    monkeypatch.setattr(nvml, "init_v2", lambda: None)
    monkeypatch.setattr(nvml, "device_get_handle_by_uuid", lambda uuid: uuid)
    monkeypatch.setattr(nvml, "device_get_current_clocks_event_reasons", lost)
    with pytest.raises(
        CardFailure, match="^the GPU does not say if it throttles: Lost: GPU is lost$"
    ):
        watch("GPU-1")()
