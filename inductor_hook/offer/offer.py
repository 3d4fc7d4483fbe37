"""The choices for a product: Inductor's own, and tilecast kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import distributed
from torch._inductor import config
from torch._inductor.kernel_template_choice import KernelTemplateChoice
from torch._inductor.select_algorithm import ExternKernelCaller, ExternKernelChoice
from torch._inductor.virtualized import V
from torch._logging._internal import getArtifactLogger
from torch.fx import Node

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.describe.from_ir import read
from tilecast.inductor_hook.describe.matmul import Deferred, Matmul, NotCovered
from tilecast.inductor_hook.names import names
from tilecast.inductor_hook.offer.template import Choice, TilecastCaller, template
from tilecast.inductor_hook.patch.torch_versions import (
    fast_accumulation,
    is_last_call,
    template_params,
)
from tilecast.inductor_hook.recording import record
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.select.selection import decided, portfolio, shortlist
from tilecast.inductor_hook.settings import Settings, asked
from tilecast.kernels.build.builder import object_builder

# Under the name of Inductor, whose handlers TORCH_LOGS sets up; one of tilecast would reach none.
log = getArtifactLogger("torch._inductor.tilecast", "autotuning")

FUSED = "fused_mm"
"""The name of a fused product; PyTorch has no such operator."""
ON_TRIAL = "tilecast_product_on_trial"
"""Name of the graphs that are compiled to be timed and never run."""


def count(event: str) -> None:
    """Count an event, unless the graph is one that is only compiled to be timed."""
    if not _on_trial():
        telemetry.count(event)


def _on_trial() -> bool:
    return getattr(V.graph, "name", None) == ON_TRIAL


def offered(
    stock: Callable[[Any], list[KernelTemplateChoice]],
    template_choices: Any,
    kernel_inputs: Any,
    templates: Any,
    op: str,
    overrides: Any,
) -> list[KernelTemplateChoice]:
    """The choices of a handler for a product.

    Args:
        stock: makes Inductor's choices from ``template_choices``.
        template_choices: generators by the template's uid.
        kernel_inputs: the operands.
        templates: those that Inductor asks.
        op: Inductor's name of the operator.
        overrides: what Inductor passes to each template, such as ``use_fast_accum``.
    """
    settings = asked()
    if not (settings and is_last_call(op, templates)):
        return stock(template_choices)
    found = _found(settings, kernel_inputs, op, fast_accumulation(overrides))
    if found is None:
        return stock(_of_aten(templates, template_choices))
    if found and (settings.k == 1 or settings.invariant):
        # The others are generators: those that are not asked for cost nothing.
        unsure = any(one.choice and one.choice.choice.unsure for one in found)
        # What nobody benchmarks is waited for here, or a kernel that does not compile would be in
        # the graph and in Inductor's cache for good.
        (first, *more), rivals = found, _of_aten(templates, template_choices)
        if not (unsure or more or (first.choice and first.choice.await_kernels())):
            return stock(rivals)
        return [*stock(rivals if unsure else {}), *found]
    return [*stock(template_choices), *found]


def beside(choices: list[Any], kernel_inputs: Any, op: str) -> list[Any]:
    """Inductor's choices for a product for which it asks no handler, and tilecast's behind them.

    ATen's choice alone says how fp8 is added up.
    """
    settings = asked()
    if not settings:
        return choices
    of_aten = [one for one in choices if isinstance(one, ExternKernelCaller)]
    fast = fast_accumulation({one.name: one.kwargs for one in of_aten})
    found = _found(settings, kernel_inputs, op, fast)
    if found is None:
        return of_aten or choices
    unbenchmarked = settings.k == 1 or settings.invariant
    # As above, what nobody benchmarks is waited for.
    callers = [one.choice for one in found if one.choice]
    return [*choices, *(one for one in callers if not unbenchmarked or one.await_kernels())]


def _found(
    settings: Settings, kernel_inputs: Any, op: str, fast: bool | None
) -> list[TilecastChoice] | None:
    """The choices for a product, or why there is none is said; None where it falls back to ATen."""
    try:
        found = _choices(settings, kernel_inputs, op, fast)
        count("problems")
        return found
    except Deferred as reason:
        count(f"fell back to ATen: {op}")
        _say_none(op, reason)
        return None
    except (NotCovered, TilecastError) as reason:
        count(f"not covered: {op}")
        _say_none(op, reason)
        if settings.invariant and kernel_inputs.device_type == "cuda":
            telemetry.say_once(
                "not invariant",
                f"{op} has no tilecast kernel, so its rows may have other bits in another batch: "
                f"{reason}",
            )
    # Whatever goes wrong in here, the graph compiles without tilecast.
    except Exception as error:
        telemetry.warn_once("choosing kernels", error)
    return []


def _of_aten(templates: Any, template_choices: Any) -> Any:
    """The generators of ATen's choices alone."""
    aten = {one.uid for one in templates if isinstance(one, ExternKernelChoice)}
    return {uid: some for uid, some in template_choices.items() if uid in aten}


def fused_choices(
    settings: Settings, kernel_inputs: Any, inputs: Sequence[str], epilogue: Sequence[str]
) -> list[TilecastCaller]:
    """The choices for a fused product, best first.

    Empty if no tilecast kernel covers the product, or at k = 1 if the model is not sure of it.

    Args:
        settings: those in force.
        kernel_inputs: what a kernel reads.
        inputs: their names: A, B, and those of the extras.
        epilogue: steps behind a bias.
    """
    try:
        found = _choices(settings, kernel_inputs, FUSED, None, tuple(inputs), tuple(epilogue))
    except (Deferred, NotCovered, TilecastError) as reason:
        _say_none(FUSED, reason)
        return []
    return [one.choice for one in found if one.choice]


def _say_none(op: str, reason: Exception) -> None:
    log.info("tilecast: no choice for %s: %s", op, reason)
    if isinstance(reason, TilecastError):
        telemetry.say_once("no model", f"some products get no tilecast kernel: {reason}")


class TilecastChoice(KernelTemplateChoice):
    """A choice that is generated once; Inductor would do it anew with the layout that it has."""

    @cached_property
    def choice(self) -> TilecastCaller | None:  # type: ignore[override]
        """The generated choice; None where that failed."""
        return super().choice  # type: ignore[return-value]


def _choices(
    settings: Settings,
    kernel_inputs: Any,
    op: str,
    fast: bool | None,
    inputs: tuple[str, ...] | None = None,
    epilogue: tuple[str, ...] = (),
) -> list[TilecastChoice]:
    """The choices for a product, whose kernels start to compile; raises as `read` and `chosen`."""
    start = time.perf_counter()
    if op != FUSED and not settings.invariant and _is_concatenated(V.graph.current_node):
        raise NotCovered("a cat reads it, into which other choices write without a copy")
    matmul = read(kernel_inputs, op, fast, inputs, epilogue)
    if settings.record and not _on_trial():
        record(settings.record, matmul.hint)
    matmul = replace(matmul, hint=settings.posed(matmul.hint))
    choices = chosen(
        settings, matmul, selection.hardware_of(kernel_inputs.device().index or 0, settings)
    )
    if op == FUSED and any(choice.unsure for choice in choices):
        raise Deferred(f"k = 1 fuses nothing that it is not sure of, here {matmul.hint}")
    begin(choices)
    _log_choices(op, matmul, choices, time.perf_counter() - start)
    layout = kernel_inputs.output_layout(flexible=False)
    found = [
        TilecastChoice(template(), template_params(choice=choice), {}, layout, kernel_inputs)
        for choice in choices
    ]
    # Generated now: if none can be, Inductor's choices are needed.
    return [one for one in found if one.choice is not None]


def _is_concatenated(node: Node) -> bool:
    """Whether Inductor may have a product written where a cat wants it.

    It plans that before it knows the fastest choice, and only if all of them write anywhere, which
    kernels for the strides of one result do not.
    """
    return any(user.target is torch.ops.aten.cat.default for user in node.users)


def chosen(settings: Settings, matmul: Matmul, gpu: Hardware) -> list[Choice]:
    """The choices for a product, best first.

    Raises:
        TilecastError: there is no model for the GPU, dtypes and majors.
        Deferred: none is benchmarked, cuBLAS may win throughout, and ATen is named.
    """
    unsure = False
    if matmul.dynamic:  # Each call picks by the model, which no file of choices overrules.
        settings = replace(settings, choices=None, named="")
    predictions = shortlist(settings, matmul.hint, gpu)
    swept: tuple[KernelConfig, ...] = ()
    if matmul.dynamic:
        swept = portfolio(settings, tuple(matmul.sweep()), gpu, matmul.any_rows)
    if settings.k == 1 and not swept and names(config.max_autotune_gemm_backends, "ATEN"):
        choice = decided(settings, matmul.hint, gpu, matmul.any_rows)
        unsure = choice.deferred
        if unsure and (matmul.dynamic or not _may_benchmark()):
            raise Deferred(
                f"ATen may take no more than {choice.library_over:.2f}x the time of "
                f"{choice.prediction.config.name} for {matmul.hint}"
            )
    if matmul.dynamic:
        shortlists = [(swept or (predictions[0].config,), predictions[0])]
    else:
        shortlists = [((prediction.config,), prediction) for prediction in predictions]
    untried = selection.untried(settings, gpu)
    return [
        Choice(matmul, configs, settings, prediction.microseconds, unsure, untried)
        for configs, prediction in shortlists
    ]


def _may_benchmark() -> bool:
    """Whether times may decide: ranks would choose differently, and so would two compilations."""
    alone = not (distributed.is_available() and distributed.is_initialized())
    return alone and not config.deterministic


def begin(choices: Sequence[Choice]) -> None:
    """Start to compile the kernels of some choices, without waiting."""
    builder = object_builder()
    for choice in choices:
        for spec in choice.specs:
            builder.start(spec)


def _log_choices(op: str, matmul: Matmul, choices: Sequence[Choice], seconds: float) -> None:
    shown = ", ".join(
        f"{position}. {' or '.join(config.name for config in choice.configs)} "
        f"(predicted {choice.microseconds / 1000:.4f} ms)"
        for position, choice in enumerate(choices, 1)
    )
    what = f"{op} {matmul.hint} {matmul.hint.operands}"
    log.info("tilecast: %s, ranked in %.1f ms: %s", what, seconds * 1000, shown)
