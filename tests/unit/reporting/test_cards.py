"""The comparison of cards in a report."""

from __future__ import annotations

import pytest

from tilecast.data_collection.dataset.measurement import REFERENCE
from tilecast.data_collection.run.cards import CardTimes
from tilecast.heuristics.problem import GemmProblem
from tilecast.reporting.cards import card_differences, card_table, trouble_table

SMALL, LARGE = GemmProblem(16, 512, 512), GemmProblem(512, 4096, 4096)


def _times(card: str, problem: GemmProblem, *times: float, library: float = 5.0) -> CardTimes:
    named = {("burst", f"config {i}"): time for i, time in enumerate(times)}
    return CardTimes(card, problem, named | {("burst", REFERENCE): library})


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


def test_a_card_that_ranks_differently_is_told() -> None:
    right, wrong = (1.0, 1.04, 1.1), (1.02, 0.99, 1.1)
    found = [_times("a", SMALL, *right), _times("b", SMALL, *right), _times("c", SMALL, *wrong)]
    a, _, c = card_differences(found)
    assert c.ranks == pytest.approx(0.04)
    assert c.differs
    # Of the others' medians, (1.01, 1.015, 1.1), the first is the best, too.
    assert a.ranks == pytest.approx(0)
    assert not a.differs


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
