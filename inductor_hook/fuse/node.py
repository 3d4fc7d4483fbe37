"""A product together with the activation behind it: as one kernel of ours where that is faster.

Inductor fuses nothing into a CuteDSL template. So a pass over the graph
(`tilecast.inductor_hook.fuse.fx_pass`) puts one node in place of both, and what becomes of it is
decided when it is lowered: one of our kernels, or the very nodes that it stands for, lowered as if
it had not been there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import lowerings
from torch._inductor.select_algorithm import ExternKernelChoice
from torch._inductor.virtualized import V
from torch.fx import Graph

from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.describe.arguments import row
from tilecast.inductor_hook.fuse.activation import activations, aten
from tilecast.inductor_hook.offer.template import TilecastCaller
from tilecast.inductor_hook.patch.torch_versions import chosen_at_once
from tilecast.inductor_hook.timing.lowering_state import fusing


class Decided(Exception):
    """A fused kernel is the fastest way to a product and the activation behind it, or none is."""

    def __init__(self, caller: TilecastCaller | None):
        """Take the choice of ours that does both, if any shall."""
        super().__init__()
        self.caller = caller


def rewrite(graph: Graph) -> None:
    """Put one node in place of each product with an activation that may be worth fusing."""
    for one in list(activations(graph)):
        one.replace(in_place_of(one.alone(), one.name, partial(_fused, one.name), _result))


def in_place_of(
    replaced: Graph,
    name: str,
    fused: Callable[[tuple[TensorBox, ...]], TensorBox | None],
    result: Callable[..., torch.Tensor],
) -> Callable[..., TensorBox]:
    """What Inductor calls for a node in place of a product and what is done along with it.

    Args:
        replaced: all of it; its inputs are the node's operands.
        name: what it is counted as.
        fused: does it by one kernel of ours; None where that does not pay.
        result: an empty tensor as the result is, of the operands.
    """

    def lower(*operands: TensorBox) -> TensorBox:
        found = fused(operands)
        if found is None:
            telemetry.count(f"not fused: {name}")
            return _lowered(replaced, operands)
        telemetry.count(f"fused: {name}")
        telemetry.count("problems")
        return found

    lowering: Any = lower
    lowering._inductor_lowering_function = True
    # Since 2.14 Inductor asks for the shape of the result anew where operands have changed.
    lowering._inductor_lowering_output_metadata_fn = result
    return lowering


def _lowered(graph: Graph, operands: tuple[TensorBox, ...]) -> TensorBox:
    """What Inductor makes of the last node of a graph."""
    inputs, env = iter(operands), V.graph.env
    for node in graph.nodes:
        env[node] = next(inputs) if node.op == "placeholder" else V.graph.run_node(node)
    *_, last = graph.nodes
    return env[last]


def _result(*operands: torch.Tensor) -> torch.Tensor:
    *_, a, b = operands
    return a.new_empty(a.shape[0], b.shape[1])


def _fused(name: str, operands: tuple[TensorBox, ...]) -> TensorBox | None:
    """Product and activation by one kernel of ours; None where that does not pay, or fails."""
    try:
        caller = _decided(name, operands)
        return caller and caller.output_node()
    # Whatever goes wrong in here, the graph compiles without us.
    except Exception as error:
        telemetry.warn_once("fusing an activation", error)
        return None


def _decided(name: str, operands: tuple[TensorBox, ...]) -> TilecastCaller | None:
    """The choice that shall do a product and an activation, if any shall."""
    token = fusing.set(name)
    try:
        with chosen_at_once():
            lowerings[aten.mm if len(operands) == 2 else aten.addmm](*operands)
    except Decided as decision:
        return decision.caller
    finally:
        fusing.reset(token)
    # Where Inductor must not benchmark, such as in its deterministic mode. Nothing reads what it
    # returned.
    return None


NOTHING = "nothing"
"""No activation."""
_IN_PLACE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": aten.relu_,
    "gelu": aten.gelu_,
    "gelu-tanh": partial(aten.gelu_, approximate="tanh"),
    "silu": aten.silu_,
    NOTHING: lambda product: product,
}


@cache
def in_turn(name: str) -> ExternKernelChoice:
    """ATen's product and then an activation, or `NOTHING`: what is benchmarked and never taken.

    The difference of both is what an activation adds to a product, whoever does it.
    """

    def run(*operands: torch.Tensor, out: torch.Tensor) -> None:
        *bias, a, b = operands
        if bias:
            torch.addmm(row(bias[0]), a, b, out=out)
        else:
            torch.mm(a, b, out=out)
        _IN_PLACE[name](out)

    return ExternKernelChoice(run, name=f"tilecast_product_then_{name.replace('-', '_')}")
