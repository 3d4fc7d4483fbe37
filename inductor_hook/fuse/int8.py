"""Products of a graph that read int8: by a weight that is converted first, or of int8 by int8.

Weight-only quantization leaves ``mm(x, weight.to(x.dtype)) * scales``, and a bias behind that.
Converted in its own kernel the weight is read once as int8, and written and read as 16 bits.
Dynamic quantization leaves ``_int_mm(x, weight) * scales of rows * scales of columns``, whose
product is written and read as 32 bits where another kernel scales it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from tilecast.heuristics.operands import COLUMN, ROW, Extra
from tilecast.inductor_hook.fuse.baseline import int8_alone, packed, unscaled
from tilecast.inductor_hook.fuse.form import Fused, Match
from tilecast.inductor_hook.fuse.fx import (
    CONVERT,
    EXPAND,
    INT8_PRODUCT,
    PRODUCTS,
    RESHAPES,
    SCALES,
    aten,
    columns,
    is_covered,
    row_of,
    stored,
)

OUT = torch.bfloat16
"""Type of what a kernel makes of a product."""
INT8 = torch.int8
WEIGHT, PRODUCT = "int8 weight", "int8 product"
"""The names in counters: with A in 16 bits, and with A in int8, too."""
PACKED_LOWERING = "woq_int8"
"""Inductor's lowering of ``_weight_int8pack_mm``, which it puts in place of
``mm(x, weight.t().to(x.dtype)) * scales``; its keywords are x, weight and scales."""


def quantized_products(graph: Graph) -> Iterator[Match]:
    """Products of a graph that read int8, as it is stored, with the scales and bias behind them."""
    for node in list(graph.nodes):
        target = node.target
        if getattr(target, "__name__", "") == PACKED_LOWERING:
            found = _packed(node)
        elif target is INT8_PRODUCT:
            found = _whole(node)
        else:
            found = _converted(node) if target in PRODUCTS else None
        if found:
            yield found


def _fits(result: Node) -> bool:
    one = result.meta["val"]
    return is_covered(one) and one.dtype == OUT and columns(result) is not None


def _packed(product: Node) -> Match | None:
    """The product that Inductor has put in place of several nodes, with a bias behind it."""
    if set(product.kwargs) != {"x", "weight", "scales"}:
        return None
    a, weight, scales = (cast(Node, product.kwargs[name]) for name in ("x", "weight", "scales"))
    row = row_of(scales, product, SCALES) if _fits(product) else None
    if not row or weight.meta["val"].dtype != INT8 or stored(weight) is None:
        return None
    found = behind(product, Behind(row=row))
    fused = Fused(WEIGHT, found.extras, OUT, packed, transposed=True)
    return Match(fused, product, found.steps, (a, weight, *found.inputs))


def _whole(product: Node) -> Match | None:
    """The product of int8 by int8 with scales of rows and of columns, and a bias behind them.

    A and the weight need not be stored: no kernel computes either along the way.
    """
    a, b = cast(tuple[Node, Node], product.args)
    found = behind(product, Behind())
    whole = a.meta["val"].dtype == b.meta["val"].dtype == INT8
    if not (whole and found.column and found.row and _fits(found.steps[-1])):
        return None
    fused = Fused(PRODUCT, found.extras, OUT, int8_alone)
    return Match(fused, product, found.steps, (a, b, *found.inputs))


def _converted(product: Node) -> Match | None:
    """A product with what belongs to it, if its weight is a converted one."""
    # Without factors, which are keywords.
    if product.kwargs or not _fits(product):
        return None
    *added, a, b = cast(tuple[Node, ...], product.args)
    turned = b.target is aten.permute.default and list(cast(list[int], b.args[1])) == [1, 0]
    converted = b.all_input_nodes[0] if turned else b
    if converted.target is not CONVERT or not (len(b.users) == len(converted.users) == 1):
        return None
    (weight,) = converted.all_input_nodes
    if weight.meta["val"].dtype != INT8 or stored(weight) is None:
        return None
    found = Behind(bias=row_of(added[0], product, (OUT,))) if added else behind(product, Behind())
    if added and not found.bias:
        return None
    before = (converted, b) if turned else (converted,)
    fused = Fused(WEIGHT, found.extras, OUT, partial(unscaled, turned), transposed=turned)
    return Match(fused, product, found.steps, (a, weight, *found.inputs), before)


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
