"""What several nodes of a graph do, by one kernel of ours where that is faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._inductor import config
from torch._inductor.ir import TensorBox
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.lowering import lowerings
from torch._inductor.select_algorithm import ExternKernelCaller, autotune_select_algorithm
from torch._inductor.virtualized import V

from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.fuse.activation import aten
from tilecast.inductor_hook.fuse.node import Decided
from tilecast.inductor_hook.handlers import bind
from tilecast.inductor_hook.offer.offer import own
from tilecast.inductor_hook.offer.template import TilecastCaller
from tilecast.inductor_hook.settings import Settings, asked
from tilecast.inductor_hook.timing.lowering_state import trying

Operands = tuple[TensorBox, ...]
"""Those of a node that is in place of others. The rows of the first are the result's."""
Replaced = Callable[[Settings, list[Any], Any, GemmProblem], list[ExternKernelCaller]]
"""Gives what our kernels are timed against, of settings, inputs, the result's layout and the
problem; nothing where they cannot be."""


def in_one_kernel(
    what: str, decided: Callable[[Operands], TilecastCaller | None], operands: Operands
) -> TensorBox | None:
    """The result of the choice that shall do it all; None where none shall, or it fails."""
    token = trying.set(True)
    try:
        caller = decided(operands)
        if caller is None:
            return None
        result = caller.output_node()
        *rows, _ = operands[0].get_size()
        return lowerings[aten.reshape](result, [*rows, result.get_size()[1]])
    # Whatever goes wrong in here, the graph compiles without us.
    except Exception as error:
        telemetry.warn_once(f"fusing {what}", error)
        return None
    finally:
        trying.reset(token)


def preferred(op: str, inputs: MMKernelInputs, replaced: Replaced) -> TilecastCaller | None:
    """The choice that shall do it, if any shall.

    Args:
        op: what `tilecast.inductor_hook.describe.matmul.INPUTS` calls it.
        inputs: those, in memory.
        replaced: gives what is timed beside our choices, and never taken.
    """
    settings = asked()
    if not settings:
        return None
    ours = own(settings, inputs, op)
    if settings.k == 1 or not ours:
        return ours[0] if ours else None
    if config.deterministic:  # Inductor must not benchmark
        return None
    bind(V.choices)  # for what is measured to be told us: nothing in here asks for the handler
    nodes, layout = inputs.nodes(), inputs.output_layout(flexible=False)
    stand_ins = replaced(settings, nodes, layout, ours[0].choice.matmul.hint)
    if not stand_ins:
        return None
    # Ours behind them: they compile meanwhile.
    choices = [*stand_ins, *ours]
    try:
        # Here and now, as with a setting of 2.15 it would be later.
        with config.patch(pipeline_max_autotune_gemm=False):
            autotune_select_algorithm(op, choices, nodes, layout, return_multi_template=False)
    except Decided as decision:
        return decision.caller
    # Where a filter of Inductor's has left one choice. Nothing reads what it returned.
    return None
