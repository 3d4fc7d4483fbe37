"""Looking ahead: a graph's kernels start to compile before its first product is lowered.

Lowering a product takes Inductor a moment, with Triton's templates some tenths of a second, and a
graph has many. What is compiled in the meantime is not waited for in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from tilecast.heuristics.errors import TilecastError
from tilecast.inductor_hook.describe.layout import Addend, Scale, adding
from tilecast.inductor_hook.describe.matmul import LeftToLibrary, Matmul
from tilecast.inductor_hook.dispatch.plan import Product, problem_of
from tilecast.inductor_hook.offer.offer import begin, chosen
from tilecast.inductor_hook.offer.template import Choice
from tilecast.inductor_hook.select.selection import gpu_of
from tilecast.inductor_hook.settings import Settings

aten = torch.ops.aten
_Asked = tuple[Product, torch.Tensor, torch.Tensor]
"""What is asked for, A and B."""


def look_ahead(graph: Graph, settings: Settings) -> None:
    """Start on the kernels that a graph's products will ask for, where their extents are fixed.

    A head start and no more: what is overlooked here starts when its product is lowered, and what
    is not asked for then was compiled in vain.
    """
    for node in graph.nodes:
        if node.target in _PRODUCTS:
            # Lowering says why there is no choice.
            with suppress(TilecastError, LeftToLibrary):
                _look_at(node, settings)


def _look_at(node: Node, settings: Settings) -> None:
    if not all(_is_foreseen(one.meta["val"]) for one in node.all_input_nodes):
        return
    args, options = map_arg((node.args, node.kwargs), lambda operand: operand.meta["val"])
    begin(expected(settings, *_PRODUCTS[node.target](*args, **options)))


def expected(
    settings: Settings, product: Product, a: torch.Tensor, b: torch.Tensor
) -> list[Choice]:
    """The choices that a product will have, best first; none where an extent is symbolic.

    Args:
        settings: those in force.
        product: what is asked for.
        a: its A; here as below extents, strides and type count, not what it holds.
        b: its B.

    Raises:
        TilecastError: no kernel, or no model, is for it.
        LeftToLibrary: ATen shall do it.
    """
    if not (_is_foreseen(a) and _is_foreseen(b)):
        return []
    of_a, of_b = ((x.shape, x.stride(), x.dtype, x.device) for x in (a, b))
    problem = problem_of(product, of_a, of_b)
    matmul = Matmul(problem, product.rank == 3, any_rows=problem.n != b.shape[-1])
    return chosen(settings, matmul, gpu_of(a.device.index or 0, settings))


def _is_foreseen(operand: Any) -> bool:
    """Whether an input is a tensor on a GPU, none of whose numbers is symbolic."""
    if not isinstance(operand, torch.Tensor) or operand.device.type != "cuda":
        return False
    numbers = (*operand.shape, *operand.stride(), operand.storage_offset())
    return all(isinstance(number, int) for number in numbers)


def _mm(a: torch.Tensor, b: torch.Tensor) -> _Asked:
    return Product(), a, b


def _bmm(a: torch.Tensor, b: torch.Tensor) -> _Asked:
    return Product(3), a, b


def _addmm(
    bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> _Asked:
    start = bias.storage_offset() * bias.itemsize
    addend = Addend(bias.shape, bias.stride(), bias.dtype, start)
    kind = addend.kind((a.shape[0], b.shape[1]), a.dtype, "row")
    return Product(steps=adding(kind, alpha, beta)), a, b


def _int_mm(a: torch.Tensor, b: torch.Tensor) -> _Asked:
    return Product(out=torch.int32), a, b


def _scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> _Asked:
    scales = (Scale.of(scale_a), Scale.of(scale_b))
    steps = () if bias is None else ("bias",)
    return Product(2, out_dtype, scales, use_fast_accum, steps), a, b


_PRODUCTS: dict[Any, Callable[..., _Asked]] = {
    aten.mm.default: _mm,
    aten.bmm.default: _bmm,
    aten.addmm.default: _addmm,
    aten._int_mm.default: _int_mm,
    aten._scaled_mm.default: _scaled_mm,
}
"""The operators that are looked for, each with what it asks for."""
