"""Decides by measured times: logs and records them, and lets the model decide near equals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from math import isfinite
from typing import Any

from torch._inductor import config
from torch._inductor.select_algorithm import ExternKernelCaller, get_algorithm_selector_cache

from tilecast.data_collection.dataset.autotuned import Autotuned
from tilecast.data_collection.gpu.environment import versions
from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.offer.offer import count, log
from tilecast.inductor_hook.offer.template import FAILED_MS, TilecastCaller, without_failures
from tilecast.inductor_hook.recording import record_times
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.settings import Settings, active
from tilecast.inductor_hook.timing.choice_benchmark import Contest, contest_of
from tilecast.inductor_hook.timing.power_limit import at_the_limit
from tilecast.inductor_hook.timing.stand_in import StandIn
from tilecast.kernels.objects.keys import toolchain

TIE = 0.005
"""Tilecast choices closer than this count as equal, and the model's order decides: times of one
kernel repeat within 0.9% at the median (benchmarks/results/inductor_timing.json). No other rule was
better throughout, nor a margin for or against cuBLAS (models/EXPERIMENTS.md)."""


def settle(timings: dict[Any, float], op: str, *rest: Any) -> None:
    """Log and record times, and drop choices that Inductor, which takes the fastest, must not take.

    These are tilecast choices that only seem faster than one that the model prefers. Beside
    stand-ins all but the best fused kernel goes if that is surely faster, and else every fused
    kernel.

    Args:
        timings: milliseconds by caller, changed in place.
        op: Inductor's name of the operator.
        rest: not read.
    """
    contest = contest_of(timings)
    try:
        choices = [caller for caller in timings if isinstance(caller, TilecastCaller)]
        if choices:
            _report(timings, op, choices, active())
            if any(isinstance(caller, StandIn) for caller in timings):
                _keep_if_faster(timings, choices)
            else:
                _keep_preferred(timings, choices, active(), contest)
    # Inductor calls it bare, and takes the fastest.
    except Exception as error:
        telemetry.warn_once("comparing times", error, then="the fastest choice is taken")
    finally:
        if contest:
            contest.close()


def _report(
    timings: Mapping[Any, float],
    op: str,
    choices: Sequence[TilecastCaller],
    settings: Settings | None,
) -> None:
    """Log times, record them if that is asked for, and forget those of kernels that failed."""
    problem = choices[0].choice.matmul.hint
    if settings and settings.learn:
        _learn(settings.learn, timings, choices, settings)
    fastest = min(timings.values())
    for caller in choices:
        taken = timings[caller]
        log.info(
            "tilecast: %s %s %s: predicted %.4f ms, benchmarked %.4f ms, %.3fx the fastest choice",
            *(op, problem, caller.name),
            *(caller.choice.microseconds / 1000, taken, taken / fastest),
        )
    if config.autotune_local_cache and max(timings[caller] for caller in choices) >= FAILED_MS:
        autotuner = get_algorithm_selector_cache()
        autotuner.update_local_cache(without_failures(autotuner.get_local_cache()))


def _learn(
    path: str, timings: Mapping[Any, float], choices: Sequence[TilecastCaller], settings: Settings
) -> None:
    """Record the times of single kernels that ran, and the least of PyTorch's own operators."""
    ran = {
        caller.choice.configs[0]: float(timings[caller])
        for caller in choices
        if caller.choice.is_one_kernel and timings[caller] < FAILED_MS
    }
    if not ran:
        return
    library = (
        float(taken)
        for caller, taken in timings.items()
        if _is_library(caller) and taken < FAILED_MS
    )
    gpu = selection.hardware_of(choices[0].layout.device.index or 0, settings)
    found = Autotuned(
        choices[0].choice.matmul.hint,
        ran,
        min(library, default=None),
        gpu.name,
        toolchain(),
        _versions(),
        datetime.now(UTC).isoformat(timespec="seconds"),
    )
    record_times(path, found)


_versions = cache(versions)


def _is_library(caller: Any) -> bool:
    """Whether PyTorch's own operators do all that a tilecast choice beside them does."""
    if isinstance(caller, StandIn):
        return caller.library
    return isinstance(caller, ExternKernelCaller)


def _keep_preferred(
    timings: dict[Any, float],
    choices: Sequence[TilecastCaller],
    settings: Settings | None,
    contest: Contest | None,
) -> None:
    """Take out the tilecast choices that are no surer than the one that the model prefers."""
    if settings and contest:
        timings.update(_raised(timings, contest, choices[0], settings.power))
    best = preferred(choices, timings)
    for caller in choices:
        if timings[caller] < timings[best]:
            del timings[caller]
    count("won" if timings[best] <= min(timings.values()) else "lost")


def _keep_if_faster(timings: dict[Any, float], choices: Sequence[TilecastCaller]) -> None:
    """Keep the best fused kernel alone, if it is surely faster than what it replaces, or none."""
    limit, best = limit_ms(timings), preferred(choices, timings)
    problem, taken = best.choice.matmul.hint, timings[best]
    log.info(
        "tilecast: %s %s: %.4f ms in one kernel, taken below %.4f ms",
        *(problem, problem.operands, taken, limit),
    )
    stay = {best} if taken < limit else timings.keys() - set(choices)
    for caller in timings.keys() - stay:
        del timings[caller]


def limit_ms(timings: Mapping[Any, float]) -> float:
    """Milliseconds below which a fused kernel is taken; 0 if a stand-in failed (infinite time)."""
    limits = [one.limit(taken) for one, taken in timings.items() if isinstance(one, StandIn)]
    return min(limits) if all(map(isfinite, limits)) else 0.0


_races: dict[frozenset[tuple[str, float]], dict[str, float]] = {}
"""Milliseconds at the power limit of choices by key, by those of all choices on a cool card: the
next layer of the same shape finds these in Inductor's cache, and does not race again."""


def _raised(
    timings: Mapping[Any, float], contest: Contest, first: TilecastCaller, power: str
) -> dict[Any, float]:
    """Times of choices near the fastest by what they lose at the power limit; none without a race.

    Inductor's cache does not keep them: those of ATen would serve another ``power``.
    """
    keys = {caller: caller.hash_key() for caller in timings}
    cool = frozenset((key, timings[caller]) for caller, key in keys.items())
    if contest.graphs:
        try:
            device = first.layout.device.index or 0
            raised = at_the_limit(timings, contest.graphs, power, device)
        # Whatever it is, there are the times of a card that was cool.
        except Exception as error:
            telemetry.warn_once(
                "timing at the power limit", error, then="a cool card's times count"
            )
            return {}
        _races[cool] = {keys[caller]: time for caller, time in raised.items()}
    known = _races.get(cool, {})
    found = {caller: known[key] for caller, key in keys.items() if key in known}
    for caller, time in found.items():
        log.info(
            "tilecast: %s %s: %.4f ms, %.4f ms by what it loses at the power limit",
            *(first.choice.matmul.hint, caller.name, timings[caller], time),
        )
    return found


def preferred(callers: Sequence[TilecastCaller], timings: Mapping[Any, float]) -> TilecastCaller:
    """The first of some choices, as the model ranks them, that is as good as the best of them."""
    limit = min(timings[caller] for caller in callers) * (1 + TIE)
    return next(caller for caller in callers if timings[caller] <= limit)
