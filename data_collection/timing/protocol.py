"""The measurement protocol: which kernels are timed when, and how often; without any CUDA.

Screen: every candidate, in a few rounds, with the card busy and its level taken out. Check: the
results of those near the best, on the tensors that were timed. Race: these, in interleaved rounds,
first all of them, then those still near until the leader is stable, in each power regime that
matters. Verify: the best again, later, for scoring only.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Protocol

from tilecast.data_collection.dataset.measurement import Measurement
from tilecast.data_collection.timing.drift import median_noise, own_noise, without_drift
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.spec import KernelSpec

Entrant = KernelConfig | None
"""What is timed: the config of a tilecast kernel, or None for PyTorch's kernel."""

# Factors are relative to the fastest tilecast kernel.
SCREEN_ROUNDS = 8
"""Most rounds of the screen: what ran just before a kernel sets the clock that it finds, so that
one time of it is 2% from the next (models/EXPERIMENTS.md)."""
STILL_SCREENED = (1.5, 1.2)
"""Kernels within this after the first round of the screen, and after every later one, go on."""
FINALIST = {1: 1.05, 2: 1.1}
"""Kernels within this after the screen are raced, by the number of races: the winner of one power
regime loses up to a tenth in the other."""
NOISES = 4.0
"""By how many standard deviations of the screen's times that is more."""
MAX_FINALISTS = 48
"""Most kernels in a race."""
HEAT_ROUNDS = {"burst": 4, "sustained": 6}
"""Rounds in which all finalists take part."""
STILL_RACING = 1.05
"""Kernels within this after the heat go on; `VERIFY_WITHIN` is no more. Nine times in ten the times
of the others were within 0.8% of their verification, and of these within 0.5%."""
BATCH_ROUNDS = {"burst": 8, "sustained": 12}
"""Rounds between two looks at a race's order. A look costs an idle gap in the burst regime, and
some warming up in the sustained one."""
MAX_BATCHES = 3
"""Batches after which a race ends, stable or not."""
TIE = 0.002
"""Two leaders closer than this count as one."""
VERIFY_WITHIN = 1.05
"""Kernels within this after the race are verified."""
MAX_VERIFIED = 8
"""Most kernels verified per regime."""
VERIFY_ROUNDS, VERIFY_BATCHES = {"burst": 6, "sustained": 10}, 3
"""Rounds of a batch, and batches, each with operands of its own: where these lie moves a kernel's
time by 0.2% at the median and by more than 0.8% one time in ten."""
COMPUTE_BOUND = 64.0
"""FLOP per byte of DRAM above which the power limit can matter and both regimes are raced."""


class KernelFailure(Exception):
    """A kernel hung, crashed or was wrong; the GPU context is given up with it."""

    def __init__(self, culprit: KernelSpec | None, reason: str):
        """Name the culprit, None for PyTorch's kernel, and say in one line what it did."""
        super().__init__(reason)
        self.culprit = culprit
        self.reason = reason


class CardFailure(Exception):
    """The last times are worthless, and the card is to blame: it throttles, say."""


class Bench(Protocol):
    """Times kernels of one problem."""

    def screen(
        self, entrants: Sequence[Entrant], rounds: int, give_up: Sequence[float]
    ) -> list[list[float]]:
        """Time many entrants with the card busy, all in a random order in each round.

        What the card's clock and power do meanwhile is told by one kernel every few milliseconds,
        and taken out (`tilecast.data_collection.timing.drift.levelled`).

        Args:
            entrants: what to time.
            rounds: most times that each is timed.
            give_up: an entrant this many times slower than the best tilecast kernel is not timed
                again; one number for each round, and the last one for all later rounds.

        Returns:
            For each entrant its microseconds per launch, one number a round that it took part in.

        Raises:
            KernelFailure: a kernel hung or crashed.
            CardFailure: the card was not what it should be meanwhile.
        """
        ...

    def time(self, entrants: Sequence[Entrant], regime: str, rounds: int) -> list[list[float]]:
        """Time every entrant once a round, rounds interleaved.

        Args:
            entrants: what to time.
            regime: ``burst`` or ``sustained``.
            rounds: how often each is timed.

        Returns:
            For each entrant its microseconds per launch, one number a round.

        Raises:
            KernelFailure: a kernel hung or crashed.
            CardFailure: the card was not what it should be meanwhile.
        """
        ...

    def check(self, configs: Sequence[KernelConfig]) -> None:
        """Compare the results of tilecast kernels on tensors that were timed with a reference.

        Also with padded rows, and in chains of launches that overlap.

        Raises:
            KernelFailure: a kernel is wrong, hung or crashed.
        """
        ...


def regimes(problem: GemmProblem) -> tuple[str, ...]:
    """The power regimes of a problem's races: burst alone where the power limit is out of reach."""
    compute_bound = problem.flops / problem.min_bytes > COMPUTE_BOUND
    return ("sustained", "burst") if compute_bound else ("burst",)


def measure(bench: Bench, problem: GemmProblem, entrants: Sequence[Entrant]) -> list[Measurement]:
    """Screen all entrants, None for PyTorch's kernel among them, and race the finalists.

    Returns:
        A screen row for every entrant and a race row for every finalist and regime; no race rows
        where there is no tilecast kernel.

    Raises:
        KernelFailure, CardFailure: as `Bench`.
    """
    if not entrants:
        return []
    screened = bench.screen(entrants, SCREEN_ROUNDS, STILL_SCREENED)
    times = {entrant: settled(own) for entrant, own in zip(entrants, screened, strict=True)}
    rows = [_row(problem, entrant, "sustained", "screen", times[entrant]) for entrant in entrants]
    if all(entrant is None for entrant in entrants):
        return rows
    finalists = finalists_of(problem, times)
    bench.check([entrant for entrant in finalists if entrant is not None])
    for regime in regimes(problem):
        rows += _compared(problem, regime, "race", _race(bench, finalists, regime))
    return rows


def settled(rounds: list[float]) -> list[float]:
    """The times of an entrant in a screen that count.

    In the first round slow kernels took part, which draw less power: the clock was higher. It
    counts where there is hardly another.
    """
    return rounds[1:] if len(rounds) > 2 else rounds


def finalists_of(problem: GemmProblem, screened: Mapping[Entrant, list[float]]) -> list[Entrant]:
    """Which entrants are raced, by their times in the screen: as near as these can tell.

    PyTorch's kernel always is.
    """
    factor = FINALIST[len(regimes(problem))] * (1 + NOISES * median_noise(screened.values()))
    return _within(screened, factor, MAX_FINALISTS)


def verify(bench: Bench, problem: GemmProblem, raced: Sequence[Measurement]) -> list[Measurement]:
    """Time the best of each race again, given the race rows of the problem.

    Nothing is timed where no tilecast kernel has a race time.
    """
    rows = []
    for regime in regimes(problem):
        times = {
            row.config: [row.microseconds]
            for row in raced
            if row.regime == regime and row.microseconds is not None
        }
        if not times.keys() - {None}:
            continue
        best = _within(times, VERIFY_WITHIN, MAX_VERIFIED)
        batches = [bench.time(best, regime, VERIFY_ROUNDS[regime]) for _ in range(VERIFY_BATCHES)]
        verified = [list(itertools.chain(*batch)) for batch in zip(*batches, strict=True)]
        rows += _compared(problem, regime, "verify", dict(zip(best, verified, strict=True)))
    return rows


def _race(bench: Bench, finalists: Sequence[Entrant], regime: str) -> dict[Entrant, list[float]]:
    """Times of each finalist, drift included; those that dropped out have those of the heat.

    Rounds go on until the leader of all rounds so far also leads, or ties, in the latest batch.
    """
    heat = bench.time(finalists, regime, HEAT_ROUNDS[regime])
    times = dict(zip(finalists, heat, strict=True))
    racing = _within(times, STILL_RACING, len(finalists))
    for number in range(MAX_BATCHES):
        batch = dict(zip(racing, bench.time(racing, regime, BATCH_ROUNDS[regime]), strict=True))
        for entrant in racing:
            times[entrant] = times[entrant] + batch[entrant]
        leader, latest = _leader({entrant: times[entrant] for entrant in racing}), _leader(batch)
        lag = statistics.median(batch[leader]) / statistics.median(batch[latest]) - 1
        if number and lag <= TIE:
            break
    return times


def _leader(times: dict[Entrant, list[float]]) -> Entrant:
    configs = [entrant for entrant in times if entrant is not None]
    return min(configs, key=lambda config: statistics.median(times[config]))


def _within(times: Mapping[Entrant, list[float]], factor: float, most: int) -> list[Entrant]:
    """The fastest within ``factor`` of the best tilecast kernel, and PyTorch's if it is timed."""
    medians = {entrant: statistics.median(rounds) for entrant, rounds in times.items()}
    limit = factor * min(medians[entrant] for entrant in medians if entrant is not None)
    near = sorted((e for e in medians if medians[e] <= limit), key=medians.__getitem__)[:most]
    return near if None in near or None not in times else [*near, None]


def _compared(
    problem: GemmProblem, regime: str, pass_: str, times: Mapping[Entrant, Sequence[float]]
) -> list[Measurement]:
    """A row for each entrant, whose times were taken side by side."""
    rounds = list(times.values())
    parts = zip(times, without_drift(rounds), own_noise(rounds), strict=True)
    return [_row(problem, entrant, regime, pass_, row, noise) for entrant, row, noise in parts]


def _row(
    problem: GemmProblem,
    entrant: Entrant,
    regime: str,
    pass_: str,
    rounds: Sequence[float],
    noise: float = 1.0,
) -> Measurement:
    """The row of some rounds, given the factor of their noise."""
    median = statistics.median(rounds)
    spread = None
    if len(rounds) >= 4 and noise:
        low, _, high = statistics.quantiles(rounds, n=4, method="inclusive")
        spread = (high - low) / median / noise
    return Measurement(problem, entrant, regime, pass_, median, spread, len(rounds))
