"""A graph's kernels start to compile before its first product is lowered.

Lowering a product takes Inductor a moment, with Triton's templates some tenths of a second, and a
graph has many. What is compiled in the meantime is not waited for in the end.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch._inductor.virtualized import V
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from tilecast.heuristics.errors import TilecastError
from tilecast.inductor_hook.describe.layout import Stored, adding
from tilecast.inductor_hook.describe.matmul import Deferred, Matmul
from tilecast.inductor_hook.describe.product import READERS, Request
from tilecast.inductor_hook.offer.offer import begin, chosen
from tilecast.inductor_hook.offer.template import Choice
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.settings import Settings

aten = torch.ops.aten
_READERS = {getattr(aten, name).default: read for name, read in READERS.items()}


def start_compiling(graph: Graph, settings: Settings) -> None:
    """Start on the kernels that a graph's products will ask for, where their extents are fixed.

    What is overlooked here starts when its product is lowered.
    """
    for node in graph.nodes:
        if node.target in _READERS:
            # Lowering says why there is no choice.
            with suppress(TilecastError, Deferred):
                _start(node, settings)


def _start(node: Node, settings: Settings) -> None:
    if not all(_is_foreseen(one.meta["val"]) for one in node.all_input_nodes):
        return
    args, options = map_arg((node.args, node.kwargs), lambda operand: operand.meta["val"])
    request = _READERS[node.target](*args, **options)
    if request is not None:
        begin(expected(settings, request))


def expected(settings: Settings, request: Request) -> list[Choice]:
    """The choices that a product will have, best first.

    None where an extent is symbolic, or if the graph becomes a package of AOTInductor.

    Raises:
        TilecastError: no kernel, or no model, is for it.
        Deferred: it falls back to ATen.
    """
    product, a, b, bias, alpha, beta, *_ = request
    if V.aot_compilation or not (_is_foreseen(a) and _is_foreseen(b)):
        return []
    if bias is not None:
        addend = Stored.of(bias, bias.storage_offset() * bias.itemsize)
        kind = addend.added_as((*a.shape[:-1], b.shape[-1]), product.out or a.dtype, "row")
        steps = adding(kind, alpha, beta)
        if not steps:
            return []
        product = product._replace(steps=steps)
    problem = settings.posed(product.problem(Stored.of(a), Stored.of(b)))
    matmul = Matmul(problem, product.rank == 3, any_rows=problem.n != b.shape[-1])
    return chosen(settings, matmul, selection.hardware_of(a.device.index or 0, settings))


def _is_foreseen(operand: Any) -> bool:
    """Whether an input is a tensor on a GPU, none of whose numbers is symbolic."""
    if not isinstance(operand, torch.Tensor) or operand.device.type != "cuda":
        return False
    numbers = (*operand.shape, *operand.stride(), operand.storage_offset())
    return all(isinstance(number, int) for number in numbers)
