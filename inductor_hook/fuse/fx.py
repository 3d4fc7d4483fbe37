"""What all forms of fusion ask of a graph: operators, where values lie, and what may be moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, Node

aten = torch.ops.aten
CONVERT = torch.ops.prims.convert_element_type.default
EXPAND = aten.expand.default
INT8_PRODUCT = aten._int_mm.default
"""The product of int8 by int8, in int32."""
PRODUCTS = (aten.mm.default, aten.addmm.default)
"""Products of (a, b) and of (bias, a, b) that one kernel may do together with what follows."""
GROUPED = aten._grouped_mm.default
"""The product of groups of rows, and others."""
RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
"""They leave every element where it is."""
HALVING: dict[Any, int] = {
    aten.split.Tensor: 2,
    aten.split_with_sizes.default: 2,
    aten.slice.Tensor: 1,
}
"""Operators that part a dimension of their first operand, and which argument says which one."""
VIEWS = (*RESHAPES, aten.permute.default, aten.transpose.int, aten.t.default)
"""They take no kernel."""
ROW_VIEWS = (
    *VIEWS,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze.default,
    aten.unsqueeze.default,
)
"""They leave the elements of a row in their order."""
OPAQUE = (*PRODUCTS, GROUPED, aten.bmm.default, aten.baddbmm.default)
"""Operators that Inductor puts into no kernel with what computes their operands."""
DEVICE = "cuda"
"""The device of products that are fused."""
DTYPES = (torch.bfloat16, torch.float16)
"""Types of their results."""
SCALES = (torch.bfloat16, torch.float32)
"""Types of the scales that a kernel multiplies by."""


def with_inputs(operands: Sequence[Node]) -> tuple[Graph, dict[Node, Node]]:
    """A graph of inputs that stand for some nodes of another, and the input of each node."""
    graph, copies = Graph(), {}
    for i, operand in enumerate(operands):
        copies[operand] = graph.placeholder(f"input_{i}")
        copies[operand].meta["val"] = operand.meta["val"]  # by which Inductor counts FLOPs
    return graph, copies


def is_covered(result: torch.Tensor) -> bool:
    """Whether tilecast kernels make results of such a type on such a device."""
    return result.device.type == DEVICE and result.dtype in DTYPES


def mutates(node: Node) -> bool:
    """Whether a node may write to one of its operands, so that no read may move past it."""
    if isinstance(node.target, OpOverload):
        return node.target._schema.is_mutable
    return isinstance(node.target, HigherOrderOperator)


def columns(node: Node) -> int | None:
    """Extent of the last dimension; None where there is none, or a symbolic one."""
    *_, last = (None, *node.meta["val"].shape)
    return last if type(last) is int else None


def row_of(node: Node, product: Node, dtypes: Sequence[torch.dtype]) -> Node | None:
    """The stored row of n numbers, contiguous and of one of some types, that a node is a view of.

    None where there is none.
    """
    n, shape = columns(product), node.meta["val"].shape
    # Whether a symbolic extent is 1 must not be asked: that would be a guard.
    if not all(type(extent) is int for extent in shape) or columns(node) != n:
        return None
    while node.target in ROW_VIEWS or node.target is CONVERT:
        # Rounded on the way it would be another row.
        if node.meta["val"].dtype not in SCALES:
            return None
        node = node.all_input_nodes[0]
    row = node.meta["val"]
    if row.ndim == 0 or row.dtype not in dtypes or not row.is_contiguous():
        return None
    return node if row.numel() == n == max(row.shape) and stored(node) is not None else None


def stored(node: Node) -> Node | None:
    """The input of a graph that a node is, or is a view of; None where it is computed."""
    while node.target in VIEWS:
        node = node.all_input_nodes[0]
    return node if node.op in ("placeholder", "get_attr") else None
