"""The protocol against a bench whose times are known: who is timed when, and for how long."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilecast.data_collection.dataset.measurement import Measurement
from tilecast.data_collection.timing import protocol
from tilecast.data_collection.timing.drift import without_drift
from tilecast.data_collection.timing.protocol import (
    Entrant,
    finalists_of,
    measure,
    regimes,
    verify,
)
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.quack_sm90.config import QuackConfig

MEMORY_BOUND = GemmProblem(16, 4096, 4096)
COMPUTE_BOUND = GemmProblem(4096, 4096, 4096)


def _configs(count: int) -> list[KernelConfig]:
    return [QuackConfig(64, 64, 64, stages=2 + i) for i in range(count)]


@dataclass(frozen=True)
class Call:
    """One call of the bench."""

    entrants: tuple[Entrant, ...]
    regime: str
    rounds: int
    give_up: Sequence[float]


class KnownBench:
    """Answers with times from a function of (entrant, call number, round)."""

    def __init__(self, microseconds: Callable[[Entrant, int, int], float]):
        self._microseconds = microseconds
        self.calls: list[Call] = []
        self.checked: list[tuple[int, set[KernelConfig]]] = []

    def screen(
        self, entrants: Sequence[Entrant], rounds: int, give_up: Sequence[float]
    ) -> list[list[float]]:
        return self._time(entrants, "sustained", rounds, give_up)

    def time(self, entrants: Sequence[Entrant], regime: str, rounds: int) -> list[list[float]]:
        return self._time(entrants, regime, rounds, ())

    def _time(
        self, entrants: Sequence[Entrant], regime: str, rounds: int, give_up: Sequence[float]
    ) -> list[list[float]]:
        number = len(self.calls)
        self.calls.append(Call(tuple(entrants), regime, rounds, give_up))
        table = [[self._microseconds(e, number, i) for i in range(rounds)] for e in entrants]
        ours = [t[0] for t, e in zip(table, entrants, strict=True) if e is not None]
        best = min(ours, default=math.inf)
        lasted = {
            entrant: next((i for i, most in enumerate(give_up, 1) if own[0] > most * best), rounds)
            for own, entrant in zip(table, entrants, strict=True)
        }
        lasted[None] = rounds
        return [own[: lasted[e]] for own, e in zip(table, entrants, strict=True)]

    def check(self, configs: Sequence[KernelConfig]) -> None:
        self.checked.append((len(self.calls), set(configs)))


def _steady(times: dict[Entrant, float]) -> KnownBench:
    return KnownBench(lambda entrant, call, turn: times[entrant])


def _rows(rows: list[Measurement], stage: str, regime: str) -> dict[Entrant, Measurement]:
    return {row.config: row for row in rows if (row.stage, row.regime) == (stage, regime)}


def test_every_entrant_is_screened_once_with_the_card_busy() -> None:
    configs = _configs(5)
    times: dict[Entrant, float] = {c: 10.0 + i for i, c in enumerate(configs)} | {None: 12.0}
    bench = _steady(times)
    rows = measure(bench, MEMORY_BOUND, (*configs, None))
    assert bench.calls[0] == Call((*configs, None), "sustained", 8, (1.5, 1.2))
    screened = _rows(rows, "screen", "sustained")
    assert {entrant: row.microseconds for entrant, row in screened.items()} == times
    assert {row.problem for row in rows} == {MEMORY_BOUND}
    assert {row.failure for row in rows} == {None}


def test_nothing_is_timed_where_no_kernel_is_left() -> None:
    bench = _steady({})
    assert measure(bench, MEMORY_BOUND, ()) == []
    assert bench.calls == []


def test_a_slow_kernel_keeps_its_first_looks() -> None:
    entrants = fast, near, slow, slowest = _configs(4)
    bench = _steady({fast: 10, near: 11.9, slow: 14.9, slowest: 15.1})
    screened = _rows(measure(bench, MEMORY_BOUND, entrants), "screen", "sustained")
    assert [screened[config].rounds for config in entrants] == [7, 7, 2, 1]
    assert screened[slowest].microseconds == 15.1


def test_the_first_round_of_a_screen_counts_where_there_is_hardly_another() -> None:
    entrants = fast, slow, slowest = _configs(3)
    times: dict[Entrant, float] = {fast: 10, slow: 14, slowest: 20}
    # All are a tenth faster while slow ones take part.
    bench = KnownBench(lambda entrant, call, turn: times[entrant] * (0.9 if turn == 0 else 1))
    screened = _rows(measure(bench, MEMORY_BOUND, entrants), "screen", "sustained")
    found = [screened[config].microseconds for config in entrants]
    assert found == pytest.approx([10, 0.95 * 14, 0.9 * 20])


@pytest.mark.parametrize(("problem", "factor"), [(MEMORY_BOUND, 1.05), (COMPUTE_BOUND, 1.1)])
def test_race_has_those_within_the_factor_and_the_library(
    problem: GemmProblem, factor: float
) -> None:
    best, tied, behind = _configs(3)
    times = {best: 100, tied: 100 * factor - 0.1, behind: 100 * factor + 0.1, None: 300}
    bench = _steady(times)
    rows = measure(bench, problem, (behind, tied, best, None))
    assert bench.checked == [(1, {best, tied})]  # behind the screen, before the race
    assert set(bench.calls[1].entrants) == {best, tied, None}
    assert set(_rows(rows, "race", "burst")) == {best, tied, None}


def test_a_noisy_screen_sends_more_kernels_to_the_race() -> None:
    """The typical noise counts, of the median of three times, and not that of one outlier."""
    configs = _configs(9)
    base = {config: 100.0 + place for place, config in enumerate(configs)}

    def raced(noise: float) -> int:
        screened: dict[Entrant, list[float]] = {
            config: [time, time * math.exp(noise), time * math.exp(-noise)]
            for config, time in base.items()
        }
        screened[configs[8]] = [108.0, 150.0, 70.0]
        return len(finalists_of(MEMORY_BOUND, screened))

    assert [raced(noise) for noise in (0.0, 0.002, 0.01)] == [6, 6, 8 + 1]


def test_who_is_far_behind_after_the_heat_falls_out_and_the_library_never() -> None:
    best, near, behind = _configs(3)
    bench = _steady({best: 100, near: 104.9, behind: 105.1, None: 300})
    rows = _rows(measure(bench, COMPUTE_BOUND, (behind, near, best, None)), "race", "burst")
    raced = [call for call in bench.calls if call.regime == "burst"]
    assert [set(call.entrants) for call in raced[1:]] == [{best, near, None}] * 2
    assert {c: row.rounds for c, row in rows.items()} == {best: 20, near: 20, None: 20, behind: 4}
    assert rows[behind].microseconds == pytest.approx(105.1)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (MEMORY_BOUND, ("burst",)),
        (COMPUTE_BOUND, ("sustained", "burst")),
        (GemmProblem(1, 8, 8), ("burst",)),
    ],
)
def test_both_regimes_where_the_power_limit_can_matter(
    problem: GemmProblem, expected: tuple[str, ...]
) -> None:
    assert regimes(problem) == expected
    best, near = _configs(2)
    bench = _steady({best: 100, near: 101, None: 102})
    rows = measure(bench, problem, (best, near, None))
    raced = tuple(dict.fromkeys(call.regime for call in bench.calls[1:]))
    assert raced == expected
    assert {row.regime for row in rows if row.stage == "race"} == set(expected)


def test_race_stops_once_the_leader_is_confirmed() -> None:
    best, near = _configs(2)
    bench = _steady({best: 100, near: 101, None: 102})
    rows = measure(bench, COMPUTE_BOUND, (best, near, None))
    raced = [(call.regime, call.rounds) for call in bench.calls[1:]]
    assert raced == [
        *(("sustained", rounds) for rounds in (6, 12, 12)),
        *(("burst", rounds) for rounds in (4, 8, 8)),
    ]
    assert {row.rounds for row in rows if row.stage == "race" and row.regime == "burst"} == {20}


@pytest.mark.parametrize(
    ("max_batches", "outsiders", "expected"), [(3, 9, 3), (5, 9, 5), (5, 3, 4)]
)
def test_race_goes_on_while_another_leads_each_batch(
    monkeypatch: pytest.MonkeyPatch, max_batches: int, outsiders: int, expected: int
) -> None:
    configs = _configs(11)

    def each_batch_another(entrant: Entrant, call: int, turn: int) -> float:
        if entrant == configs[0]:
            return 100.0
        return 98.0 if 2 <= call <= outsiders + 1 and entrant == configs[call] else 101.0

    bench = KnownBench(each_batch_another)
    monkeypatch.setattr(protocol, "MAX_BATCHES", max_batches)
    rows = measure(bench, MEMORY_BOUND, configs)
    assert len(bench.calls) - 2 == expected
    assert {row.rounds for row in rows if row.stage == "race"} == {4 + 8 * expected}


def _time(row: Measurement) -> float:
    assert row.microseconds is not None
    return row.microseconds


@given(
    st.lists(st.floats(1, 1000), min_size=1, max_size=6),
    st.lists(st.floats(0.8, 1.25), min_size=1, max_size=9),
)
def test_drift_that_all_share_is_removed_exactly(base: list[float], drift: list[float]) -> None:
    clean = without_drift([[time * factor for factor in drift] for time in base])
    for row, time in zip(clean, base, strict=True):
        assert row == pytest.approx([time * statistics.median(drift)] * len(drift), rel=1e-9)


@pytest.mark.parametrize(
    ("rounds", "spread"),
    [(1, None), (3, None), (4, 1.5 / 102.5), (5, 2 / 103)],
)
def test_spread_is_the_quartiles_distance_and_needs_four_rounds(
    monkeypatch: pytest.MonkeyPatch, rounds: int, spread: float | None
) -> None:
    (config,) = _configs(1)
    bench = KnownBench(lambda entrant, call, turn: 100.0 + turn)
    first = 1 if rounds > 2 else 0  # which does not count
    monkeypatch.setattr(protocol, "SCREEN_ROUNDS", rounds + first)
    rows = measure(bench, MEMORY_BOUND, (config,))
    row = _rows(rows, "screen", "sustained")[config]
    assert row.spread == pytest.approx(spread)
    assert row.rounds == rounds


def _raced(problem: GemmProblem, regime: str, times: dict[Entrant, float]) -> list[Measurement]:
    return [Measurement(problem, c, regime, "race", t, 0.0, 16) for c, t in times.items()]


def test_verify_times_the_best_of_each_regime_three_times_over() -> None:
    """Each time on operands of its own, which the median of all rounds looks through."""
    first, second, third = _configs(3)
    raced = _raced(COMPUTE_BOUND, "burst", {first: 100, second: 104.9, third: 105.1, None: 200})
    raced += _raced(COMPUTE_BOUND, "sustained", {first: 130, second: 120, third: 121, None: 119})
    bench = _steady({first: 100, second: 101, third: 102, None: 103})
    rows = verify(bench, COMPUTE_BOUND, raced)
    assert bench.calls == [
        *[Call((None, second, third), "sustained", 10, ())] * 3,
        *[Call((first, second, None), "burst", 6, ())] * 3,
    ]
    assert {row.rounds for row in rows if row.regime == "burst"} == {18}
    assert {row.stage for row in rows} == {"verify"}
    assert set(_rows(rows, "verify", "burst")) == {first, second, None}
    assert _time(_rows(rows, "verify", "sustained")[third]) == pytest.approx(102)


def test_verify_takes_no_more_than_the_most_and_takes_drift_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs = _configs(6)
    raced = _raced(MEMORY_BOUND, "burst", {c: 100 + i / 10 for i, c in enumerate(configs)})
    bench = KnownBench(lambda entrant, call, turn: 100.0 * (1 + turn))
    monkeypatch.setattr(protocol, "MAX_VERIFIED", 2)
    rows = verify(bench, MEMORY_BOUND, raced)
    assert [row.config for row in rows] == configs[:2]
    assert [row.spread for row in rows] == pytest.approx([0, 0], abs=1e-12)


@pytest.mark.parametrize("entrants", [2, 3, 8])
def test_the_spread_is_of_the_noise_that_each_entrant_has(entrants: int) -> None:
    """Taking drift out takes sqrt(1 - 1/n) of it: 29% of two entrants' noise."""
    source = random.Random(0)

    def noisy(entrant: Entrant = None, call: int = 0, turn: int = 0) -> float:
        return 100.0 * math.exp(source.gauss(0, 0.01))

    def spread(rounds: list[float]) -> float:
        low, _, high = statistics.quantiles(rounds, n=4, method="inclusive")
        return (high - low) / 100

    configs = _configs(entrants)
    raced = _raced(MEMORY_BOUND, "burst", dict.fromkeys(configs, 100.0))
    found = [
        row.spread or 0.0
        for _ in range(800 // entrants)
        for row in verify(KnownBench(noisy), MEMORY_BOUND, raced)
    ]
    own = statistics.fmean(spread([noisy() for _ in range(18)]) for _ in range(2000))
    assert statistics.fmean(found) == pytest.approx(own, rel=0.03)
