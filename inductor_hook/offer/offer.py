"""What is offered for a multiplication: Inductor's own choices, and ours added to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch._inductor import config
from torch._inductor.kernel_template_choice import KernelTemplateChoice
from torch._inductor.select_algorithm import ExternKernelChoice

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.describe.from_ir import read
from tilecast.inductor_hook.describe.matmul import Deferred, Matmul, NotCovered
from tilecast.inductor_hook.describe.product import OPERATORS
from tilecast.inductor_hook.fuse.node import NOTHING, Decided, in_turn
from tilecast.inductor_hook.fuse.unfused_baseline import is_stand_in
from tilecast.inductor_hook.names import names
from tilecast.inductor_hook.offer.template import Choice, TilecastCaller, template
from tilecast.inductor_hook.patch.torch_versions import (
    benchmarks_calls_here,
    fast_accumulation,
    is_last_call,
    template_params,
)
from tilecast.inductor_hook.recording import record
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.select.selection import decided, portfolio, runnable, shortlist
from tilecast.inductor_hook.settings import Settings, asked
from tilecast.inductor_hook.timing.choice_benchmark import Contest
from tilecast.inductor_hook.timing.decide import log, time_as_it_runs
from tilecast.inductor_hook.timing.lowering_state import fusing, trying
from tilecast.inductor_hook.timing.power_limit import near
from tilecast.kernels.build.builder import object_builder


def offered(
    stock: Callable[[Any], list[KernelTemplateChoice]],
    template_choices: Any,
    kernel_inputs: Any,
    templates: Any,
    op: str,
    overrides: Any,
) -> list[KernelTemplateChoice]:
    """What a handler offers for a multiplication.

    Without us it offers ``stock`` of the choices that its templates have, generators by uid; what
    Inductor tells each of them beside that, ``overrides``, says more about the multiplication.
    """
    settings = asked()
    if not (settings and is_last_call(op, templates)):
        return stock(template_choices)
    activation = fusing.get()
    fused = _fused(settings, kernel_inputs, op, overrides, activation) if activation else []
    try:
        ours = _ours(settings, kernel_inputs, op, overrides)
    except Deferred as reason:
        _count(f"left to the library: {op}")
        log.info("tilecast: no choice for %s: %s", op, reason)
        aten = {one.uid for one in templates if isinstance(one, ExternKernelChoice)}
        return stock({uid: some for uid, some in template_choices.items() if uid in aten})
    if settings.k == 1 and ours:
        # The others are generators: those that are not asked for cost nothing.
        return [*ours]
    return [*stock(template_choices), *ours, *fused]


def own(settings: Settings, kernel_inputs: Any, op: str) -> list[TilecastCaller]:
    """Our choices for a multiplication that Inductor knows no operator for, best first.

    None where there are none, or ATen shall do it.
    """
    try:
        return [ours.choice for ours in _ours(settings, kernel_inputs, op, None) if ours.choice]
    except Deferred as reason:
        log.info("tilecast: no choice for %s: %s", op, reason)
        return []


def _fused(
    settings: Settings, kernel_inputs: Any, op: str, overrides: Any, activation: str
) -> list[KernelTemplateChoice]:
    """Our choices for a multiplication and the activation behind it, and two timings of ATen's.

    Raises:
        Decided: there is nothing to benchmark.
    """
    try:
        ours = _ours(settings, kernel_inputs, op, overrides, activation)
    except Deferred as reason:
        log.info("tilecast: %s and %s are not fused: %s", op, activation, reason)
        ours = []
    if settings.k == 1 or not ours:
        raise Decided(ours[0].choice if ours else None)
    layout = kernel_inputs.output_layout(flexible=False)
    timed = [
        KernelTemplateChoice(in_turn(name), template_params(), {}, layout, kernel_inputs)
        for name in (activation, NOTHING)
    ]
    return [*ours, *timed]


def _count(event: str) -> None:
    """Count an event, unless the multiplication is lowered on trial."""
    if not (fusing.get() or trying.get()):
        telemetry.count(event)


def benchmarked(choices: list[Any]) -> list[Any]:
    """Those of all choices for a multiplication that stay; called before they are benchmarked."""
    settings = asked()
    try:
        return _benchmarked(choices, settings) if settings else choices
    # Inductor calls it bare, and compiles on without us.
    except Exception as error:
        telemetry.warn_once("looking through choices", error)
        return choices


def _benchmarked(choices: list[Any], settings: Settings) -> list[Any]:
    for choice in choices:
        time_as_it_runs(choice)
    ours = [choice for choice in choices if isinstance(choice, TilecastCaller)]
    if ours and benchmarks_calls_here(choices):
        # What does less, or more, beside a fused kernel does not race against it.
        alike = not fusing.get() and not any(map(is_stand_in, choices))
        share = near(ours[0].choice.matmul.hint, settings.power) if alike else None
        contest = Contest(share)
        for choice in choices:
            if choice.layout.device.type == "cuda":
                contest.enter(choice)
    if fusing.get():
        return choices
    aten_named = names(config.max_autotune_gemm_backends, "ATEN")
    stay = kept([_kind(choice) for choice in choices], aten_named)
    return [choice for choice, stays in zip(choices, stay, strict=True) if stays]


def kept(kinds: Sequence[str], aten_named: bool) -> list[bool]:
    """Which of the choices for a multiplication stay.

    ======================================  ==========
    there are                               stay
    ======================================  ==========
    forced ones                             the forced
    ATen's, which nobody named, and others  the others
    anything else                           all
    ======================================  ==========

    Args:
        kinds: of each choice: ``forced`` (ours, k is 1), ``ours``, ``aten``, or ``other``.
        aten_named: whether the list of backends names ATEN; where it does not, ATen was asked for
            the sake of multiplications that nobody else covers.
    """
    if "forced" in kinds:
        return [kind == "forced" for kind in kinds]
    if not aten_named and set(kinds) - {"aten"}:
        return [kind != "aten" for kind in kinds]
    return [True] * len(kinds)


def _kind(choice: Any) -> str:
    """What `kept` calls a choice."""
    if isinstance(choice, TilecastCaller):
        return "forced" if choice.choice.settings.k == 1 else "ours"
    asked = choice.annotations.get("ktc")
    return "aten" if asked and isinstance(asked.template, ExternKernelChoice) else "other"


class _OurTemplateChoice(KernelTemplateChoice):
    """A choice that is generated once; Inductor would do it anew with the layout that it has."""

    @cached_property
    def choice(self) -> TilecastCaller | None:  # type: ignore[override]
        """The generated choice; None where that failed."""
        return super().choice  # type: ignore[return-value]


def _ours(
    settings: Settings, kernel_inputs: Any, op: str, overrides: Any, activation: str = ""
) -> list[_OurTemplateChoice]:
    """Our choices for a multiplication, with an activation behind it; none where there are none.

    Raises:
        Deferred: ATen shall do it.
    """
    try:
        matmul = read(kernel_inputs, op, fast_accumulation(overrides))
        if activation:
            matmul = matmul.then(activation)
        if settings.record:
            record(settings.record, matmul.hint)
        gpu = selection.hardware_of(kernel_inputs.device().index or 0, settings)
        choices = plan(settings, matmul, op, gpu)
        layout = kernel_inputs.output_layout(flexible=False)
        found = [
            _OurTemplateChoice(
                template(), template_params(choice=choice), {}, layout, kernel_inputs
            )
            for choice in choices
        ]
        # Generated here and now: where none can be, others have to be there.
        return [ours for ours in found if ours.choice is not None]
    except (NotCovered, TilecastError) as reason:
        _count(f"not covered: {op}")
        log.info("tilecast: no choice for %s: %s", op, reason)
        if isinstance(reason, TilecastError):
            telemetry.say_once("no model", f"some multiplications get no choice of ours: {reason}")
    except Deferred:
        raise
    # Whatever goes wrong in here, the graph compiles without us.
    except Exception as error:
        telemetry.warn_once("choosing kernels", error)
    return []


def plan(settings: Settings, matmul: Matmul, op: str, gpu: Hardware) -> list[Choice]:
    """The choices for a multiplication, best first; their kernels start to compile.

    Raises:
        TilecastError: there is no model for the GPU, dtypes and majors.
        NotCovered: what would be added behind the kernel cannot be.
        Deferred: none is benchmarked, ATen is expected to win throughout, and is named.
    """
    start = time.perf_counter()
    choices = chosen(settings, matmul, gpu)
    if choices[0].matmul.added and not OPERATORS[op].adds:
        raise NotCovered("no kernel, or no model, is for what is added")
    begin(choices)
    _log_plan(op, matmul, choices, time.perf_counter() - start)
    return choices


def chosen(settings: Settings, matmul: Matmul, gpu: Hardware) -> list[Choice]:
    """The choices for a multiplication, best first; raises what `plan` does."""
    operands = runnable(settings, matmul.hint.operands, gpu)
    matmul = replace(matmul, hint=replace(matmul.hint, operands=operands))
    predictions = shortlist(settings, matmul.hint, gpu)
    if settings.k == 1 and names(config.max_autotune_gemm_backends, "ATEN"):
        _check_library(settings, matmul, gpu)
    if matmul.dynamic:
        configs = _portfolio(settings, matmul, gpu) or (predictions[0].config,)
        shortlists = [(configs, predictions[0])]
    else:
        shortlists = [((prediction.config,), prediction) for prediction in predictions]
    return [
        Choice(matmul, configs, settings, prediction.microseconds)
        for configs, prediction in shortlists
    ]


def begin(choices: Sequence[Choice]) -> None:
    """Start to compile the kernels of some choices; returns at once."""
    builder = object_builder()
    for choice in choices:
        for spec in choice.specs:
            builder.start(spec)


def _portfolio(settings: Settings, matmul: Matmul, gpu: Hardware) -> tuple[KernelConfig, ...]:
    return portfolio(settings, tuple(matmul.sweep()), gpu, matmul.any_rows)


def _check_library(settings: Settings, matmul: Matmul, gpu: Hardware) -> None:
    """Leave a multiplication to the library where it is expected to win, whatever is symbolic.

    It is where a second kernel of ours would add something, which ATen's own does at once; but not
    where TMA does not store the rows, which ATen is slow at.

    Raises:
        Deferred: that is so.
    """
    if matmul.added and not matmul.any_rows:
        raise Deferred(f"our kernel does not add the {matmul.added} of {matmul.hint}")
    choice = decided(settings, matmul.hint, gpu, matmul.any_rows)
    if choice.deferred and not (matmul.dynamic and _portfolio(settings, matmul, gpu)):
        raise Deferred(
            f"ATen may take no more than {choice.library_over:.2f}x the time of "
            f"{choice.prediction.config.name} for {matmul.hint}"
        )


def _log_plan(op: str, matmul: Matmul, choices: Sequence[Choice], seconds: float) -> None:
    _count("problems")
    shown = ", ".join(
        f"{position}. {' or '.join(config.name for config in choice.configs)} "
        f"(predicted {choice.microseconds / 1000:.4f} ms)"
        for position, choice in enumerate(choices, 1)
    )
    what = f"{op} {matmul.hint} {matmul.hint.operands}"
    log.info("tilecast: %s, ranked in %.1f ms: %s", what, seconds * 1000, shown)
