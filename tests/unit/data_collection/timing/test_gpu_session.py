"""The protocol's hands on a GPU that is none, whose time passes as it is waited for."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

import pytest
import torch

from tilecast.data_collection.timing import gpu_session
from tilecast.data_collection.timing.gpu_session import GpuBench, GpuSession
from tilecast.data_collection.timing.protocol import CardFailure, Entrant, KernelFailure
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

LARGE = GemmProblem(8192, 128256, 8192)
CONFIGS = [QuackConfig(64, 64, 64, stages=2 + i) for i in range(30)]
SILENCE = 60.0


class Card:
    """Does one thing after another; the host's clock moves while it waits."""

    def __init__(self) -> None:
        self.now = self.free = 0.0
        self.capturing: list[float] | None = None
        self.replays = 0
        self.slept: list[float] = []
        self.milliseconds = 1.0  # that any replay takes, by its events
        self.tick = 0.05  # seconds that asking an event takes

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)

    def run(self, seconds: float) -> None:
        if self.capturing is None:
            self.free = max(self.free, self.now) + seconds
        else:
            self.capturing.append(seconds)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card()

    class Event:
        def __init__(self, **flags: bool) -> None:
            self.at = math.inf

        def record(self, stream: object = None) -> None:
            self.at = card.free

        def query(self) -> bool:
            card.now += card.tick
            return card.now >= self.at

        def elapsed_time(self, end: Event) -> float:
            return card.milliseconds

    class Graph:
        def capture_begin(self) -> None:
            card.capturing = []

        def capture_end(self) -> None:
            self.seconds, card.capturing = sum(card.capturing or ()), None

        def replay(self) -> None:
            card.replays += 1
            card.run(self.seconds)

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
        self._signed = self.busy_until = -math.inf
        self.clean_l2 = lambda: None
        self.launcher = lambda entrant, problem: partial(card.run, seconds[entrant])

    def _check(self, now: float) -> None:
        start, end = self.hot
        if start <= now < end:
            raise CardFailure("the GPU throttles: hardware thermal")


def _time(
    session: Session, entrants: Sequence[Entrant], careful: bool = False, regime: str = "sustained"
) -> None:
    bench = GpuBench(session, LARGE, 60_000_000, careful)
    bench.time(entrants, regime, 3, 1.5)


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


def test_a_timing_that_the_card_begins_or_ends_throttled_is_worth_nothing(card: Card) -> None:
    session = Session(card, dict.fromkeys(CONFIGS, 0.1))
    _time(session, CONFIGS)
    middle, end = card.now / 2, card.now
    for hot in ((0.0, middle), (middle, math.inf)):
        card.now = card.free = 0.0
        session.hot = hot
        with pytest.raises(CardFailure, match="throttles"):
            _time(session, CONFIGS)
    card.now = card.free = 0.0
    session.hot = (2 * end, math.inf)
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
