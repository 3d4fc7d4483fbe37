"""The scales and biases behind the products of a graph that a kernel can apply."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from tilecast.heuristics.operands import COLUMN, ROW, Extra
from tilecast.inductor_hook.fuse.fx import (
    CONVERT,
    EXPAND,
    INT8_PRODUCT,
    RESHAPES,
    SCALES,
    aten,
    columns,
    row_of,
    stored,
)

OUT = torch.bfloat16
"""Type of what a kernel makes of a product."""


@dataclass(frozen=True)
class Behind:
    """The steps behind a product (m, n); nothing else reads what lies between.

    Scales and bias are the nodes in memory, before views and conversions.
    """

    steps: tuple[Node, ...] = ()
    """In the order of the graph, views too."""
    column: Node | None = None
    """(m, 1), which the rows are multiplied by; it may be computed in the graph."""
    row: Node | None = None
    """n numbers, contiguous, which the columns are multiplied by."""
    bias: Node | None = None
    """n numbers, contiguous, which are added to each row."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Column, row and bias, where there are such."""
        return tuple(filter(None, (self.column, self.row, self.bias)))

    @property
    def extras(self) -> tuple[Extra, ...]:
        """The same as extras of a kernel."""
        found = {
            Extra("scale_a", COLUMN, "fp32"): self.column,
            Extra("scale_b", ROW): self.row,
            Extra("bias", ROW): self.bias,
        }
        return tuple(extra for extra, node in found.items() if node is not None)


def behind(product: Node, known: Behind) -> Behind:
    """All that a kernel may do behind a product (m, n), beside what is ``known``; ends in `OUT`."""
    node, seen, found = product, known, known
    while len(node.users) == 1:
        (step,) = node.users
        more = _with(seen, step, node, product)
        if more is None:
            break
        node, seen = step, replace(more, steps=(*seen.steps, step))
        if step.target not in RESHAPES and step.meta["val"].dtype == OUT:
            found = seen
    return found


def _with(seen: Behind, step: Node, node: Node, product: Node) -> Behind | None:
    """The steps so far with another that reads ``node``; None where no kernel does it."""
    if step.target is aten.mul.Tensor and not seen.bias:
        column = None if seen.column else _column(step, node, product)
        row = None if seen.row or column else _row(step, node, product, SCALES)
        if column or row:
            return replace(seen, column=column or seen.column, row=row or seen.row)
    elif step.target is aten.add.Tensor and not (seen.bias or step.kwargs):
        bias = _row(step, node, product, (OUT,))
        return replace(seen, bias=bias) if bias else None
    reshaped = step.target in RESHAPES and columns(step) == columns(product)
    converted = step.target is CONVERT and step.meta["val"].dtype in SCALES
    return seen if reshaped or converted else None


def _other(step: Node, node: Node) -> Node | None:
    """The other operand of a step; None where it adds dimensions."""
    others = [other for other in step.args if other is not node]
    if len(others) != 1 or not isinstance(others[0], Node):
        return None
    one = others[0].meta["val"]
    fits = isinstance(one, torch.Tensor) and one.ndim <= node.meta["val"].ndim
    return others[0] if fits else None


def _column(step: Node, node: Node, product: Node) -> Node | None:
    """The scales (m, 1) that the rows of a product of int8 are multiplied by in a step."""
    other = _other(step, node)
    if product.target is not INT8_PRODUCT or other is None:
        return None
    column = other.all_input_nodes[0] if other.target is EXPAND else other
    one, (rows, _) = column.meta["val"], product.meta["val"].shape
    is_column = (
        one.ndim == node.meta["val"].ndim == 2
        and one.dtype in SCALES
        and columns(column) == 1
        # No guard, where either is symbolic.
        and statically_known_true(one.shape[0] == rows)
    )
    return column if is_column and _is_at_hand(column) else None


def _is_at_hand(column: Node) -> bool:
    """Whether a column comes in fp32 without a kernel of its own: computed, or stored so."""
    while column.target is CONVERT:
        column = column.all_input_nodes[0]
    start = stored(column)
    return start is None or start.meta["val"].dtype == torch.float32


def _row(step: Node, node: Node, product: Node, dtypes: tuple[torch.dtype, ...]) -> Node | None:
    """The other operand of a step, if it is a row."""
    other = _other(step, node)
    return other and row_of(other, product, dtypes)
