"""A product that reads int8, scales and bias: as one kernel of ours where that is faster.

As with activations one node is in place of all, and lowering decides what becomes of it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch._inductor.ir import TensorBox, is_storage_and_layout
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.lowering import lowerings, to_dtype
from torch._inductor.select_algorithm import ExternKernelCaller, realize_inputs
from torch.fx import Graph

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.fuse.activation import aten
from tilecast.inductor_hook.fuse.fused_choice import Operands, in_one_kernel, preferred
from tilecast.inductor_hook.fuse.int8 import CONVERTED, WHOLE, quantized_products
from tilecast.inductor_hook.fuse.node import in_place_of
from tilecast.inductor_hook.fuse.scales import OUT
from tilecast.inductor_hook.fuse.unfused_baseline import ALONE, ATEN, stand_in, stand_in_alone
from tilecast.inductor_hook.offer.template import TilecastCaller
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.select.selection import shortlist
from tilecast.inductor_hook.settings import Settings
from tilecast.kernels.build.builder import object_builder
from tilecast.kernels.spec import KernelSpec

WEIGHT, PRODUCT = "int8 weight", "int8 product"
"""What they are counted as: with A in 16 bits, and with A in int8, too."""


def rewrite(graph: Graph) -> None:
    """Put one node in place of each product that reads int8 and may be worth fusing."""
    for one in quantized_products(graph):
        fused = partial(_fused, one.form, one.behind.row is not None)
        name = PRODUCT if one.form == WHOLE else WEIGHT
        one.replace(in_place_of(one.alone(), name, fused, partial(_result, one.form)))


def _result(form: str, a: torch.Tensor, weight: torch.Tensor, *others) -> torch.Tensor:
    n = weight.shape[1 if form in (CONVERTED, WHOLE) else 0]
    return a.new_empty(*a.shape[:-1], n, dtype=OUT)


def _fused(form: str, scaled: bool, operands: Operands) -> TensorBox | None:
    """All of it by one kernel of ours; None where that does not pay, or fails."""
    return in_one_kernel("a product of int8", partial(_decided, form, scaled), operands)


def _decided(form: str, scaled: bool, operands: Operands) -> TilecastCaller | None:
    """The choice that shall do it, if any shall."""
    return preferred(_op(form, scaled), _inputs(form, operands), partial(_replaced, form))


def _replaced(
    form: str, settings: Settings, nodes: list[Any], layout: Any, problem: GemmProblem
) -> list[ExternKernelCaller]:
    """What ours are timed against; nothing where nobody multiplies alone."""
    if form != WHOLE:
        return [stand_in(nodes, layout, form)]
    kernels = [ATEN] if problem.in_library else []
    # A model of one's own may know none of the results.
    with suppress(TilecastError):
        kernels.append(_begun(settings, replace(problem, operands=ALONE), nodes[0].get_device()))
    return [stand_in_alone(nodes, layout, kernel) for kernel in kernels]


def _begun(settings: Settings, problem: GemmProblem, device: torch.device) -> str:
    """The name of the kernel that the model prefers for a problem; it starts to compile.

    Raises:
        TilecastError: no model knows the GPU, dtypes and majors.
    """
    config = shortlist(settings, problem, selection.hardware_of(device.index or 0, settings))[
        0
    ].config
    object_builder().start(KernelSpec(config, problem.operands, batched=False))
    return config.name


def _op(form: str, scaled: bool) -> str:
    """What `tilecast.inductor_hook.describe.matmul.INPUTS` calls it."""
    if form == WHOLE:
        return "scaled_int_mm"
    return "scaled_mixed_mm" if scaled else "mixed_mm"


def _inputs(form: str, operands: tuple[TensorBox, ...]) -> MMKernelInputs:
    """What is multiplied, in memory: A (m, k), B (k, n), the column (m, 1) if any, rows (n,)."""
    a, b, *rows = operands
    a = lowerings[aten.reshape](a, [-1, a.get_size()[-1]])
    if form not in (CONVERTED, WHOLE):
        b = lowerings[aten.permute](b, [1, 0])
    column = [_in_fp32(rows.pop(0))] if form == WHOLE else []
    rows = [lowerings[aten.reshape](row, [b.get_size()[1]]) for row in rows]
    nodes = realize_inputs(a, b, *column, *rows)
    return MMKernelInputs(nodes, out_dtype=OUT, mat1_idx=0, mat2_idx=1)


def _in_fp32(column: TensorBox) -> TensorBox:
    """Scales as a kernel reads them, which Inductor may write where it computes them.

    In a buffer of their own: where nothing is fused, nothing reads it, and all is as it was.
    """
    if column.get_dtype() == torch.float32 and is_storage_and_layout(column):
        return column
    return to_dtype(column, torch.float32, copy=True)
