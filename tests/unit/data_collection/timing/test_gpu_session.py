"""The protocol's hands on a GPU that is none, whose time passes as it is waited for."""

from __future__ import annotations

import contextlib
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any

import pytest
import torch

from tilecast.data_collection.timing import gpu_session
from tilecast.data_collection.timing.gpu_session import GpuBench, GpuSession
from tilecast.data_collection.timing.protocol import (
    SCREEN_ROUNDS,
    STILL_SCREENED,
    CardFailure,
    Entrant,
    KernelFailure,
    settled,
)
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

H200 = hardware("H200")
LARGE = GemmProblem(8192, 128256, 8192)
CONFIGS = [QuackConfig(64, 64, 64, stages=2 + i) for i in range(30)]
SILENCE = 60.0


class Card:
    """Does one thing after another; the host's clock moves while it waits."""

    def __init__(self) -> None:
        self.now = self.free = 0.0
        self.capturing: list[Any] | None = None
        self.replays = 0
        self.slept: list[float] = []
        self.milliseconds = 1.0  # that any replay takes, by its events
        self.tick = 0.05  # seconds that asking an event takes

    def elapsed(self, start: float, end: float) -> float:
        return self.milliseconds

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)

    def run(self, work: Any) -> None:
        if self.capturing is None:
            self.free = max(self.free, self.now) + self.seconds(work)
        else:
            self.capturing.append(work)

    def seconds(self, work: Any) -> float:
        return work


@dataclass(frozen=True)
class Work:
    """A kernel of the card whose power is limited."""

    seconds: float  # at full clock
    demand: float  # of power, at full clock, over the limit
    core: float  # share of its time that follows the clock


class LimitedCard(Card):
    """Its clock falls with the power that was asked for in the last 50 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.tick, self.demand = 1e-5, 0.0
        self.source = random.Random(1)

    def elapsed(self, start: float, end: float) -> float:
        return 1e3 * (end - start) * math.exp(self.source.gauss(0, 0.003))

    def seconds(self, work: Work) -> float:
        self._mix(0.0, self.now - self.free)  # since it became idle
        clock = min(1.0, max(self.demand, 1e-9) ** -0.5)
        seconds = work.seconds * (work.core / clock + 1 - work.core)
        self._mix(work.demand, seconds)
        return seconds

    def _mix(self, demand: float, seconds: float) -> None:
        kept = math.exp(-max(seconds, 0.0) / 0.05)
        self.demand = kept * self.demand + (1 - kept) * demand


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    return _installed(Card(), monkeypatch)


def _installed(card: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A card in the place of CUDA's."""

    class Event:
        def __init__(self, **flags: bool) -> None:
            self.at = math.inf

        def record(self, stream: object = None) -> None:
            if card.capturing is None:
                self.at = card.free
            else:
                card.capturing.append(self)

        def query(self) -> bool:
            card.now += card.tick
            return card.now >= self.at

        def elapsed_time(self, end: Event) -> float:
            return card.elapsed(self.at, end.at)

    class Graph:
        def capture_begin(self) -> None:
            card.capturing = []

        def capture_end(self) -> None:
            self.done, card.capturing = card.capturing or [], None

        def replay(self) -> None:
            card.replays += 1
            for one in self.done:
                if isinstance(one, Event):
                    one.record()
                else:
                    card.run(one)

    for name, stand_in in {
        "Event": Event,
        "CUDAGraph": Graph,
        "Stream": object,
        "stream": lambda stream: contextlib.nullcontext(),
        "empty_cache": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(gpu_session, "time", card)
    monkeypatch.setattr(gpu_session, "launch_tensors", lambda problem: ())
    return card


class Session(GpuSession):
    """One whose kernels take so many seconds each."""

    def __init__(self, card: Card, seconds: Mapping[Any, float]):
        self.told: list[tuple[float, KernelSpec | None]] = []
        self.announce = lambda spec: self.told.append((card.now, spec))
        self.hot: tuple[float, float] = (math.inf, math.inf)
        self.check_card = lambda: self._check(card.now)
        self._signed = self._asked = self.busy_until = -math.inf
        self.clean_l2 = lambda: None
        self.launcher = lambda entrant, problem: partial(card.run, seconds[entrant])

    def _check(self, now: float) -> None:
        start, end = self.hot
        if start <= now < end:
            raise CardFailure("the GPU throttles: hardware thermal")


def _time(
    session: Session, entrants: Sequence[Entrant], careful: bool = False, regime: str = "sustained"
) -> None:
    GpuBench(session, LARGE, H200, careful).time(entrants, regime, 3)


def test_large_kernels_are_no_hang_and_no_silence(card: Card) -> None:
    """900 of 0.1 s each: the first launches take 90 s together, and so does each round."""
    session = Session(card, dict.fromkeys(CONFIGS, 0.1))
    _time(session, CONFIGS * 30)
    assert card.now > 4 * 90
    moments = [0.0, *(moment for moment, _ in session.told), card.now]
    assert max(after - before for before, after in pairwise(moments)) < SILENCE / 4


@pytest.mark.parametrize("careful", [False, True])
def test_a_first_launch_that_hangs_has_its_name(card: Card, careful: bool) -> None:
    session = Session(card, dict.fromkeys(CONFIGS, 0.1) | {CONFIGS[7]: math.inf})
    with pytest.raises(KernelFailure, match="hung: not done after 5 s") as failure:
        _time(session, CONFIGS, careful)
    assert failure.value.culprit == KernelSpec(CONFIGS[7], LINEAR_BF16)


def test_a_timing_during_which_the_card_throttles_is_worth_nothing(card: Card) -> None:
    works = dict.fromkeys(CONFIGS, 0.1)
    _time(Session(card, works), CONFIGS)
    middle, end = card.now / 2, card.now
    for hot in ((0.0, middle), (middle, math.inf), (middle, middle + 1), (2 * end, math.inf)):
        card.now = card.free = 0.0
        session = Session(card, works)
        session.hot = hot
        sound = hot[0] > end
        with contextlib.nullcontext() if sound else pytest.raises(CardFailure, match="throttles"):
            _time(session, CONFIGS)


@pytest.mark.parametrize(("milliseconds", "later"), [(0.2, 0.0005), (0.02, 0.00005), (2.0, 0.001)])
def test_the_card_idles_in_burst_for_as_long_as_its_kernel_wants(
    card: Card, milliseconds: float, later: float
) -> None:
    card.milliseconds = milliseconds
    _time(Session(card, dict.fromkeys(CONFIGS, milliseconds / 1e3)), CONFIGS[:2], regime="burst")
    first = [0.001] * 2  # as nothing is known of them
    assert card.slept == pytest.approx([*first, *[later] * 4])


def test_a_card_that_was_busy_a_moment_ago_warms_up_for_less(card: Card) -> None:
    session = Session(card, dict.fromkeys(CONFIGS, 0.001))
    card.tick = 0.0005

    def replays() -> int:
        before = card.replays
        _time(session, CONFIGS[:4])
        return card.replays - before

    cold = replays()
    assert cold > 3 * 4 + 90  # 0.1 s, and three rounds
    # Four kernels were launched for the first time, which took some 5 ms.
    assert replays() < 3 * 4 + 20
    card.now += 10
    assert replays() == pytest.approx(cold, abs=2)


def _limited(monkeypatch: pytest.MonkeyPatch) -> tuple[GpuBench, dict[Any, Work]]:
    """A bench of a card whose power is limited, and kernels, alike where they stand side by side.

    What multiplies faster draws more power, as on an H200; of some a tenth waits for the memory.
    """
    card, source, works = _installed(LimitedCard(), monkeypatch), random.Random(0), {}
    for family in range(20):
        speed = source.uniform(0.35, 0.95)
        for _ in range(30):
            # Some of an otherwise slow kind are fast.
            own = source.choice((speed, speed, 0.92)) * source.uniform(0.9, 1.05)
            config = QuackConfig(64, 64, 64, stages=2 + len(works))
            works[config] = Work(1.6e-3 / own, 0.3 + 1.2 * own, 1 - 0.1 * (family % 2))
    works[None] = Work(1.6e-3 / 0.95, 0.3 + 1.2 * 0.95, 1.0)
    return GpuBench(Session(card, works), GemmProblem(8192, 8192, 8192), H200, False), works


def _error(times: Sequence[list[float]], works: Mapping[Any, Work]) -> tuple[float, float]:
    """Standard deviation and range of log(time / time at full clock), of kernels near the best."""
    best = min(work.seconds for work in works.values())
    logs = [
        math.log(statistics.median(row) / work.seconds)
        for row, work in zip(times, works.values(), strict=True)
        if work.seconds < 1.2 * best
    ]
    assert len(logs) > 40
    return statistics.stdev(logs), max(logs) - min(logs)


def test_a_screen_is_level_on_a_card_whose_power_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, works = _limited(monkeypatch)
    spread, range_ = _error(bench.time([*works], "sustained", 3), works)
    assert spread > 0.02  # in the order of the space, as screens used to be
    assert range_ > 0.08
    level, level_range = _error(bench.screen([*works], 3, (1.5,)), works)
    assert level < spread / 3
    assert level < 0.01
    assert level_range < range_ / 2


def test_a_screen_that_narrows_down_says_what_a_race_says(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, works = _limited(monkeypatch)
    wide = bench.screen([*works], 3, (1.5,))
    narrow = [settled(row) for row in bench.screen([*works], SCREEN_ROUNDS, STILL_SCREENED)]
    best = min(work.seconds for work in works.values())
    near = [at for at, work in enumerate(works.values()) if work.seconds < 1.1 * best]
    raced = bench.time([[*works][at] for at in near], "sustained", 12)

    def apart(screened: Sequence[list[float]]) -> float:
        pairs = zip(near, raced, strict=True)
        return statistics.stdev(
            math.log(statistics.median(screened[at]) / statistics.median(row)) for at, row in pairs
        )

    assert apart(narrow) < 0.6 * apart(wide) < 0.01


def test_a_screen_gives_up_what_is_slow_and_never_idles(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, works = _limited(monkeypatch)
    times = bench.screen([*works], 3, (1.3,))
    best = min(work.seconds for work in works.values())
    rounds = {config: len(row) for config, row in zip(works, times, strict=True)}
    assert rounds[None] == 3
    for config, work in works.items():
        if not 1.15 < work.seconds / best < 1.45:
            # The times of the last of a round are not read yet when the next begins.
            assert rounds[config] in ((3,) if work.seconds < 1.3 * best else (1, 2))
    assert sum(rounds.values()) < 2.2 * len(works)


def test_nobody_is_announced_while_references_are_made(card: Card) -> None:
    session = Session(card, {})
    kernel = KernelSpec(CONFIGS[0], LINEAR_BF16)
    session.announce(kernel)  # of an earlier check

    @cache
    def short(problem: GemmProblem) -> tuple[tuple, torch.Tensor]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    session._reference = short
    with pytest.raises(torch.OutOfMemoryError):
        session.check(kernel)
    assert session.told[-1][1] is None


@pytest.mark.parametrize(("name", "launches"), [("H200", 4), ("H20", 1), ("B200", 9)])
def test_a_replay_has_as_many_launches_as_the_gpu_is_fast(
    card: Card, name: str, launches: int
) -> None:
    """Of 34 GFLOP in bf16 and 200 us."""
    bench = GpuBench(Session(card, {}), GemmProblem(1024, 4096, 4096), hardware(name), False)
    assert bench._launches == launches
