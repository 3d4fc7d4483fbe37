"""Products of a graph that read int8: by a weight that is converted first, or of int8 by int8.

Weight-only quantization leaves ``mm(x, weight.to(x.dtype)) * scales``, and a bias behind that.
Converted in its own kernel the weight is read once as int8, and written and read as 16 bits.
Dynamic quantization leaves ``_int_mm(x, weight) * scales of rows * scales of columns``, whose
product is written and read as 32 bits where another kernel scales it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch.fx import Graph, Node

from tilecast.inductor_hook.fuse.activation import (
    CONVERT,
    PRODUCTS,
    RESHAPES,
    aten,
    is_ours,
    with_inputs,
)
from tilecast.inductor_hook.fuse.scales import (
    EXPAND,
    INT8_PRODUCT,
    OUT,
    SCALES,
    Behind,
    behind,
    columns,
    row_of,
    stored,
)

WEIGHT = torch.int8
"""Type of the weight."""
CONVERTED, TURNED, PACKED, WHOLE = "converted", "turned", "packed", "whole"
"""How a graph multiplies by such a weight: it converts what it multiplies by; it transposes what it
has converted; Inductor has put ``_weight_int8pack_mm`` there, scales included; or A is int8, too,
so that whole numbers are multiplied, by ``_int_mm``."""
PACKED_LOWERING = "woq_int8"
"""What Inductor calls the function that it puts there, whose keywords are x, weight and scales."""


@dataclass(frozen=True)
class Quantized:
    """A product by an int8 weight, with the scales and bias behind it that a kernel does, too.

    What is computed of weight, scales and bias before they are what is multiplied and added, such
    as another shape, belongs to it.
    """

    form: str
    """`CONVERTED`, `TURNED`, `PACKED` or `WHOLE`."""
    a: Node
    """A (m, k); of a packed one m may be several extents."""
    weight: Node
    """The weight as int8: (k, n) if it is converted or multiplied as it is, else (n, k)."""
    between: tuple[Node, ...]
    """What makes B of the weight, in the order of the graph."""
    product: Node
    """The product, (m, n)."""
    behind: Behind
    """What is done to it."""

    @property
    def operands(self) -> tuple[Node, ...]:
        """A, the weight, and then scales and bias, where there are such."""
        return (self.a, self.weight, *self.behind.inputs)

    def alone(self) -> Graph:
        """All of it as a graph of its own, whose last node, (m, n), nothing reads.

        Its inputs are `operands`.
        """
        graph, copies = with_inputs(self.operands)
        result, steps = self.product.meta["val"], self.behind.steps

        def copy(node: Node) -> Node:
            if node not in copies and (
                node.target is EXPAND or (node in steps and node.target in RESHAPES)
            ):
                copies[node] = copy(node.all_input_nodes[0])
            elif node not in copies:
                copies[node] = graph.node_copy(node, copy)
                if node in steps:
                    dtype = node.meta["val"].dtype
                    copies[node].meta["val"] = torch.empty_like(result, dtype=dtype)
            return copies[node]

        copy(self._last)
        return graph

    def replace(self, target: Callable) -> None:
        """Put one node in place of all, which calls ``target`` with `operands`."""
        graph, steps = self.product.graph, self.behind.steps
        with graph.inserting_before(self._last):
            node = graph.call_function(target, self.operands)
            node.meta.update(self.product.meta, val=self.product.meta["val"].to(OUT))
            for step in steps:
                if step.target in RESHAPES:
                    node = graph.call_function(cast(Callable, step.target), (node, step.args[1]))
                    node.meta.update(step.meta, val=step.meta["val"].to(OUT))
        self._last.replace_all_uses_with(node)
        for replaced in reversed((*self.between, self.product, *steps)):
            graph.erase_node(replaced)

    @property
    def _last(self) -> Node:
        return (self.product, *self.behind.steps)[-1]


def quantized_products(graph: Graph) -> Iterator[Quantized]:
    """Those of a graph that a kernel may do, which reads the weight as it is stored.

    Each may be replaced before the next is asked for.
    """
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
    return is_ours(one) and one.dtype == OUT and columns(result) is not None


def _packed(product: Node) -> Quantized | None:
    """The product that Inductor has put in place of several nodes, with a bias behind it."""
    if set(product.kwargs) != {"x", "weight", "scales"}:
        return None
    a, weight, scales = (cast(Node, product.kwargs[name]) for name in ("x", "weight", "scales"))
    row = row_of(scales, product, SCALES) if _fits(product) else None
    if not row or weight.meta["val"].dtype != WEIGHT or stored(weight) is None:
        return None
    return Quantized(PACKED, a, weight, (), product, behind(product, Behind(row=row)))


def _whole(product: Node) -> Quantized | None:
    """The product of whole numbers with scales of rows and of columns, and a bias behind them.

    A and the weight need not be stored: there is no kernel that computes either along the way.
    """
    a, b = cast(tuple[Node, Node], product.args)
    found = behind(product, Behind())
    whole = a.meta["val"].dtype == b.meta["val"].dtype == WEIGHT
    if not (whole and found.column and found.row and _fits(found.steps[-1])):
        return None
    return Quantized(WHOLE, a, b, (), product, found)


def _converted(product: Node) -> Quantized | None:
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
    if weight.meta["val"].dtype != WEIGHT or stored(weight) is None:
        return None
    form, between = (TURNED, (converted, b)) if turned else (CONVERTED, (converted,))
    if not added:
        return Quantized(form, a, weight, between, product, behind(product, Behind()))
    bias = row_of(added[0], product, (OUT,))
    return Quantized(form, a, weight, between, product, Behind(bias=bias)) if bias else None
