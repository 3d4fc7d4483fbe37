"""What Inductor measured: it is told, and the model, or a margin, decides between near equals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any

from torch._inductor import config
from torch._inductor.select_algorithm import ExternKernelCaller, get_algorithm_selector_cache
from torch._logging._internal import getArtifactLogger

from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.describe.arguments import row
from tilecast.inductor_hook.fuse.node import NOTHING, Decided, in_turn
from tilecast.inductor_hook.fuse.unfused_baseline import alone, is_stand_in
from tilecast.inductor_hook.offer.template import FAILED_MS, TilecastCaller, without_failures
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.settings import active
from tilecast.inductor_hook.timing.choice_benchmark import Contest, contest_of
from tilecast.inductor_hook.timing.lowering_state import fusing, trying
from tilecast.inductor_hook.timing.power_limit import at_the_limit
from tilecast.inductor_hook.timing.record_times import learn

# Under the name of Inductor, whose handlers TORCH_LOGS sets up; our own would reach none.
log = getArtifactLogger("torch._inductor.tilecast", "autotuning")

TIE = 0.005
"""Choices of ours closer than this count as equal, and the model's order decides: times of one
kernel repeat within 0.9% at the median (benchmarks/results/inductor_timing.json). No other rule was
better throughout, nor a margin for or against the library (models/EXPERIMENTS.md)."""
MARGIN = 0.02
"""How much faster than what it replaces a kernel has to be that does an activation, too, or reads
an int8 weight: more than the benchmark's own spread."""
SCALING_MS = 3e-4
"""What whoever scales a product of int8 spares where a kernel of ours has done it, beside bytes to
read: at 64 rows a model is faster with kernels that take so much more than the product alone
(kernels/EXPERIMENTS.md)."""
SPARED_BYTES = 2
"""Of each element that another kernel scales: it reads 32 bits instead of 16."""


def time_as_it_runs(choice: Any) -> None:
    """Have ATen's product with a row be benchmarked with the row, as its generated call has it.

    Since 2.12 Inductor benchmarks it with the row expanded to a matrix, which ATen copies first:
    1.31x the time (kernels/EXPERIMENTS.md), so that slower kernels would win.
    """
    if not isinstance(choice, ExternKernelCaller) or choice.name != "addmm":
        return
    if [*choice.input_nodes[0].get_size()] == [choice.layout.size[-1]]:
        stock = choice.benchmark
        vars(choice)["benchmark"] = lambda bias, *rest, out: stock(row(bias), *rest, out=out)


def settle(timings: dict[Any, float], op: str, *rest: Any) -> None:
    """Tell what was measured of our choices, and let the model decide between equals.

    Those of ours that only seem faster are taken out of the timings, in milliseconds by caller.

    Raises:
        Decided: it was measured beside what a kernel of ours would replace.
    """
    contest = contest_of(timings)
    try:
        _settle(timings, op, contest)
    except Decided:
        raise
    # Inductor calls it bare, and takes the fastest without us.
    except Exception as error:
        telemetry.warn_once("weighing times", error, then="the fastest choice is taken")
    finally:
        if contest:
            contest.close()


def _settle(timings: dict[Any, float], op: str, contest: Contest | None) -> None:
    ours = [caller for caller in timings if isinstance(caller, TilecastCaller)]
    if not ours:
        return
    settings = active()
    if settings and settings.learn:
        for problem in dict.fromkeys(caller.choice.matmul.hint for caller in ours):
            learn(
                settings.learn,
                problem,
                [(c.choice, timings[c]) for c in ours if c.choice.matmul.hint == problem],
                _library_ms(timings, problem.operands.activated),
                ours[0].layout.device.index or 0,
                settings,
            )
    fastest = min(timings.values())
    for caller in ours:
        choice, taken = caller.choice, timings[caller]
        log.info(
            "tilecast: %s %s %s: predicted %.4f ms, benchmarked %.4f ms, %.3fx the fastest choice",
            *(op, choice.matmul.hint, caller.name),
            *(choice.microseconds / 1000, taken, taken / fastest),
        )
    if config.autotune_local_cache and max(timings[caller] for caller in ours) >= FAILED_MS:
        autotuner = get_algorithm_selector_cache()
        autotuner.update_local_cache(without_failures(autotuner.get_local_cache()))
    if fusing.get():
        raise Decided(worth_fusing(timings, ours))
    stand_ins = {one: taken for one, taken in timings.items() if is_stand_in(one)}
    if stand_ins:
        raise Decided(faster(timings, ours, _limit(stand_ins, _byte_ms(ours[0]))))
    if settings and contest:
        timings.update(_raised(timings, contest, ours[0], settings.power))
    preferred = _preferred(ours, timings)
    for caller in ours:
        if timings[caller] < timings[preferred]:
            del timings[caller]
    if not trying.get():
        telemetry.count("won" if timings[preferred] <= min(timings.values()) else "lost")


_races: dict[frozenset[tuple[str, float]], dict[str, float]] = {}
"""Milliseconds at the power limit of choices by key, by those of all choices on a cool card: the
next layer of the same shape finds these in Inductor's cache, and does not race again."""


def _raised(
    timings: Mapping[Any, float], contest: Contest, ours: TilecastCaller, power: str
) -> dict[Any, float]:
    """Times of choices near the fastest by what they lose at the power limit; none without a race.

    Not kept in Inductor's cache, where the library's would meet those of another ``power``.
    """
    keys = {caller: caller.hash_key() for caller in timings}
    cool = frozenset((key, timings[caller]) for caller, key in keys.items())
    if contest.graphs:
        try:
            device = ours.layout.device.index or 0
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
            *(ours.choice.matmul.hint, caller.name, timings[caller], time),
        )
    return found


def _limit(stand_ins: Mapping[Any, float], byte: float) -> float:
    """Milliseconds that a kernel which does more may take; 0 where nothing is known.

    Args:
        stand_ins: what it would replace, by choice; infinite where that failed.
        byte: milliseconds that a byte of each element of the result takes to be read.
    """
    limits = [_allowed(one, taken, byte) for one, taken in stand_ins.items() if isfinite(taken)]
    return min(limits, default=0.0)


def _allowed(stand_in: Any, taken: float, byte: float) -> float:
    """Those beside one of what it would replace: more by what is spared behind a product alone."""
    if stand_in.choice is alone():
        return taken + SCALING_MS + SPARED_BYTES * byte
    return taken * (1 - MARGIN)


def _byte_ms(ours: TilecastCaller) -> float:
    """Milliseconds that a byte of each element of the result takes to be read."""
    problem, device = ours.choice.matmul.hint, ours.layout.device.index or 0
    gpu = selection.hardware_of(device, ours.choice.settings)
    return 1e3 * problem.m * problem.n / gpu.dram_bytes_per_second


def _library_ms(timings: Mapping[Any, float], activated: bool) -> list[float]:
    """Times of ATen's choices for a product, or of its product and then the activation."""
    both = in_turn(fusing.get()) if fusing.get() else None
    return [
        taken
        for one, taken in timings.items()
        if isinstance(one, ExternKernelCaller)
        and (one.choice is both) == activated
        and not is_stand_in(one)
    ]


def worth_fusing(
    timings: Mapping[Any, float], ours: Sequence[TilecastCaller]
) -> TilecastCaller | None:
    """The choice that does a product and the activation behind it, if that is surely faster.

    Args:
        timings: of all choices, in milliseconds: for both, for the product alone, and of `in_turn`.
        ours: those of ours, as the model ranks them.
    """
    fused = [caller for caller in ours if caller.choice.matmul.hint.operands.activated]
    if not fused:
        return None
    both, product = in_turn(fusing.get()), in_turn(NOTHING)
    timed, waiting, others = {both: inf, product: inf}, [], []
    for one, taken in timings.items():
        if isinstance(one, ExternKernelCaller) and one.choice in timed:
            timed[one.choice] = taken
        elif not isinstance(one, ExternKernelCaller | TilecastCaller):
            others.append(taken)
        elif one not in fused:
            waiting.append(taken)
    replaced = replaced_ms(timed[both], timed[product], waiting, others)
    return faster(timings, fused, replaced * (1 - MARGIN))


def faster(
    timings: Mapping[Any, float], fused: Sequence[TilecastCaller], limit: float
) -> TilecastCaller | None:
    """The best of some choices, if it takes less than what it replaces allows.

    Args:
        timings: of all of them, in milliseconds.
        fused: the choices, as the model ranks them.
        limit: milliseconds.
    """
    best = _preferred(fused, timings)
    problem = best.choice.matmul.hint
    log.info(
        "tilecast: %s %s: %.4f ms in one kernel, taken below %.4f ms",
        *(problem, problem.operands, timings[best], limit),
    )
    return best if timings[best] < limit else None


def replaced_ms(
    in_turn: float, product: float, waiting: Sequence[float], others: Sequence[float]
) -> float:
    """What Inductor takes for a product and an activation without us; 0 where it is not known.

    The activation is a kernel of its own behind a product of ATen's or ours. Others may come to do
    it along the way, at no cost for all that is known when they are timed.

    Args:
        in_turn: milliseconds of ATen's product and then the activation.
        product: those of the same product.
        waiting: those of ATen's choices and ours for the product.
        others: those of all others, such as Triton's.
    """
    if not isfinite(in_turn):
        return 0.0
    activation = max(in_turn - product, 0.0)
    return min([in_turn, *(taken + activation for taken in waiting), *others])


def _preferred(callers: Sequence[TilecastCaller], timings: Mapping[Any, float]) -> TilecastCaller:
    """The first of some choices that is as good as the best of them."""
    limit = min(timings[caller] for caller in callers) * (1 + TIE)
    return next(caller for caller in callers if timings[caller] <= limit)
