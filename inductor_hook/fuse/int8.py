"""Products of a graph that read int8: by a weight that is converted first, or of int8 by int8.

Weight-only quantization leaves ``mm(x, weight.to(x.dtype)) * scales``, and a bias behind that.
Converted in its own kernel the weight is read once as int8, and written and read as 16 bits.
Dynamic quantization leaves ``_int_mm(x, weight) * scales of rows * scales of columns``, whose
product is written and read as 32 bits where another kernel scales it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import cast

import torch
from torch.fx import Graph, Node

from tilecast.inductor_hook.fuse.baseline import int8_alone, packed, unscaled
from tilecast.inductor_hook.fuse.form import Form, Fused, Match
from tilecast.inductor_hook.fuse.fx import (
    CONVERT,
    INT8_PRODUCT,
    PRODUCTS,
    SCALES,
    aten,
    columns,
    is_covered,
    row_of,
    stored,
)
from tilecast.inductor_hook.fuse.scales import OUT, Behind, behind

INT8 = torch.int8
WEIGHT, PRODUCT = "int8 weight", "int8 product"
"""The names in counters: with A in 16 bits, and with A in int8, too."""
PACKED_LOWERING = "woq_int8"
"""Inductor's lowering of ``_weight_int8pack_mm``, which it puts in place of
``mm(x, weight.t().to(x.dtype)) * scales``; its keywords are x, weight and scales."""


def quantized_products(graph: Graph) -> Iterator[Match]:
    """Products of a graph that a kernel can do, which reads the weight as it is stored."""
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


FORM = Form("products of int8", quantized_products)
"""A product that reads int8, with the scales and bias behind it."""


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
