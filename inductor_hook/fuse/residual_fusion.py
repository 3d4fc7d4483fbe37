"""A product and the matrix that is added to it: as one kernel of ours where that is faster.

As with activations one node is in place of both, and lowering decides what becomes of it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch._inductor.ir import TensorBox, is_storage_and_layout
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.lowering import lowerings
from torch._inductor.select_algorithm import ExternKernelCaller, realize_inputs
from torch.fx import Graph

from tilecast.heuristics.dtypes import dtype_of_torch
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import GemmOperands, TensorSpec
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.fuse.activation import aten
from tilecast.inductor_hook.fuse.fused_choice import Operands, in_one_kernel, preferred
from tilecast.inductor_hook.fuse.node import in_place_of
from tilecast.inductor_hook.fuse.residuals import residuals
from tilecast.inductor_hook.fuse.unfused_baseline import PRODUCT, stand_in
from tilecast.inductor_hook.offer.template import TilecastCaller
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.select.selection import runnable
from tilecast.inductor_hook.settings import Settings, asked

RESIDUAL = "residual"
"""What it is counted as."""


def rewrite(graph: Graph) -> None:
    """Put one node in place of each product and residual that may be worth fusing."""
    for one in residuals(graph):
        if _known(one.product.meta["val"]):
            fused = partial(_fused, len(one.product.args) > 2)
            one.replace(in_place_of(one.alone(), RESIDUAL, fused, _result))


def _known(product: torch.Tensor) -> bool:
    """Whether the model chooses kernels that add a matrix to such a product."""
    settings = asked()
    if not settings:
        return False
    out = TensorSpec(dtype_of_torch(product.dtype), "row")
    operands = GemmOperands.product(out, replace(out, major="col"), out).then("c")
    try:
        gpu = selection.hardware_of(product.device.index or 0, settings)
        return runnable(settings, operands, gpu) == operands
    except TilecastError:  # no kernel or no model is for it, which its products tell
        return False


def _result(added: torch.Tensor, *others) -> torch.Tensor:
    return added.new_empty(added.shape)


def _fused(biased: bool, operands: Operands) -> TensorBox | None:
    """Both by one kernel of ours; None where that does not pay, or fails."""
    return in_one_kernel("a residual", partial(_decided, biased), operands)


def _decided(biased: bool, operands: Operands) -> TilecastCaller | None:
    """The choice that shall do it, if any shall."""
    added, *others = operands
    *rows, a, b = others[: 2 + biased]
    n = b.get_size()[1]
    c = lowerings[aten.reshape](added, [-1, n])
    # Else it would have to be written first, or copied, which Inductor may spare.
    if not is_storage_and_layout(c):
        return None
    rows = [lowerings[aten.reshape](row, [n]) for row in rows]
    nodes = realize_inputs(a, b, c, *rows)
    inputs = MMKernelInputs(nodes, out_dtype=a.get_dtype(), mat1_idx=0, mat2_idx=1)
    return preferred("residual_mm", inputs, _replaced)


def _replaced(
    settings: Settings, nodes: list[Any], layout: Any, problem: GemmProblem
) -> list[ExternKernelCaller]:
    """What ours are timed against: the product with its row, by whoever is fastest."""
    return [stand_in(nodes, layout, PRODUCT)]
