"""Products of a graph whose weight is stored as int8 and converted first, and what scales them.

Weight-only quantization leaves ``mm(x, weight.to(x.dtype)) * scales``, and a bias behind that.
Converted in its own kernel the weight is read once as int8, and written and read as 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch.fx import Graph, Node

from tilecast.inductor_hook.activations import CONVERT, PRODUCTS, RESHAPES, VIEWS, aten, is_ours

WEIGHT, WIDE = torch.int8, torch.bfloat16
"""Types of the weight that a kernel reads and of what it makes of it."""
SCALES = (torch.bfloat16, torch.float32)
"""Types of the scales that a kernel multiplies by."""
ROW_VIEWS = (
    *VIEWS,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze.default,
    aten.unsqueeze.default,
)
"""They leave the elements of a row in their order."""


CONVERTED, TURNED, PACKED = "converted", "turned", "packed"
"""How a graph multiplies by such a weight: it converts what it multiplies by; it transposes what it
has converted; or Inductor has put ``_weight_int8pack_mm`` there, scales included."""
PACKED_LOWERING = "woq_int8"
"""What Inductor calls the function that it puts there, whose keywords are x, weight and scales."""


@dataclass(frozen=True)
class Mixed:
    """A product by an int8 weight, with the scales and bias behind it that a kernel does, too.

    Nothing else reads what lies between. What is computed of weight, scales and bias before they
    are what is multiplied and added, such as another shape, belongs to it.
    """

    form: str
    """`CONVERTED`, `TURNED` or `PACKED`."""
    a: Node
    """A (m, k); of a packed one m may be several extents."""
    weight: Node
    """The weight as int8: (k, n) if it is converted, else (n, k)."""
    between: tuple[Node, ...]
    """What makes B of the weight, in the order of the graph."""
    product: Node
    """The product, (m, n)."""
    steps: tuple[Node, ...] = ()
    """What is done to the product, in the order of the graph, views too."""
    scales: Node | None = None
    """n numbers, contiguous, which the columns are multiplied by."""
    bias: Node | None = None
    """n numbers, contiguous, which are added to each row."""

    @property
    def operands(self) -> tuple[Node, ...]:
        """A, the weight, and then scales and bias, where there are such."""
        return (self.a, self.weight, *filter(None, (self.scales, self.bias)))

    def alone(self) -> Graph:
        """All of it as a graph of its own, whose last node, (m, n), nothing reads.

        Its inputs are `operands`.
        """
        graph = Graph()
        result = self.product.meta["val"]
        copies: dict[Node, Node] = {}
        for i, operand in enumerate(self.operands):
            copies[operand] = graph.placeholder(f"input_{i}")
            copies[operand].meta["val"] = operand.meta["val"]  # by which Inductor counts FLOPs

        def copy(node: Node) -> Node:
            if node not in copies and node in self.steps and node.target in RESHAPES:
                copies[node] = copy(node.all_input_nodes[0])
            elif node not in copies:
                copies[node] = graph.node_copy(node, copy)
                if node in self.steps:
                    dtype = node.meta["val"].dtype
                    copies[node].meta["val"] = torch.empty_like(result, dtype=dtype)
            return copies[node]

        copy(self._last)
        return graph

    def replace(self, target: Callable) -> None:
        """Put one node in place of all, which calls ``target`` with `operands`."""
        graph, dtype = self.product.graph, self.product.meta["val"].dtype
        with graph.inserting_before(self._last):
            node = graph.call_function(target, self.operands)
            node.meta.update(self.product.meta)
            for step in self.steps:
                if step.target in RESHAPES:
                    node = graph.call_function(cast(Callable, step.target), (node, step.args[1]))
                    node.meta.update(step.meta, val=step.meta["val"].to(dtype))
        self._last.replace_all_uses_with(node)
        for replaced in reversed((*self.between, self.product, *self.steps)):
            graph.erase_node(replaced)

    @property
    def _last(self) -> Node:
        return (self.product, *self.steps)[-1]


def mixed_products(graph: Graph) -> Iterator[Mixed]:
    """Those of a graph that a kernel may do, which reads the weight as it is stored."""
    for node in graph.nodes:
        target = node.target
        if getattr(target, "__name__", "") == PACKED_LOWERING:
            found = _packed(node)
        else:
            found = _converted(node) if target in PRODUCTS else None
        if found:
            yield found


def _fits(product: Node) -> bool:
    result = product.meta["val"]
    return is_ours(result) and result.dtype == WIDE and _columns(product) is not None


def _columns(node: Node) -> int | None:
    """Extent of the last dimension; None where there is none, or a symbolic one."""
    *_, last = (None, *node.meta["val"].shape)
    return last if type(last) is int else None


def _packed(product: Node) -> Mixed | None:
    """The product that Inductor has put in place of several nodes, with a bias behind it."""
    if set(product.kwargs) != {"x", "weight", "scales"}:
        return None
    a, weight, row = (cast(Node, product.kwargs[name]) for name in ("x", "weight", "scales"))
    scales = _row(row, product, SCALES) if _fits(product) else None
    if not scales or weight.meta["val"].dtype != WEIGHT or _stored(weight) is None:
        return None
    steps, _, bias = _behind(product, scales)
    return Mixed(PACKED, a, weight, (), product, steps, scales, bias)


def _converted(product: Node) -> Mixed | None:
    """The same product with what belongs to it, if its weight is a converted one."""
    # Without factors, which are keywords.
    if product.kwargs or not _fits(product):
        return None
    *added, a, b = cast(tuple[Node, ...], product.args)
    turned = b.target is aten.permute.default and list(cast(list[int], b.args[1])) == [1, 0]
    converted = b.all_input_nodes[0] if turned else b
    if converted.target is not CONVERT or not (len(b.users) == len(converted.users) == 1):
        return None
    (weight,) = converted.all_input_nodes
    if weight.meta["val"].dtype != WEIGHT or _stored(weight) is None:
        return None
    form, between = (TURNED, (converted, b)) if turned else (CONVERTED, (converted,))
    if added:
        bias = _row(added[0], product, (WIDE,))
        return Mixed(form, a, weight, between, product, bias=bias) if bias else None
    return Mixed(form, a, weight, between, product, *_behind(product))


def _behind(
    product: Node, scales: Node | None = None
) -> tuple[tuple[Node, ...], Node | None, Node | None]:
    """Scales, unless there are some, and a bias behind a product: what does it, and both."""
    result = product.meta["val"]
    node, seen = product, []
    found: tuple[tuple[Node, ...], Node | None, Node | None] = ((), scales, None)
    bias: Node | None = None
    while len(node.users) == 1:
        (step,) = node.users
        if step.target is aten.mul.Tensor and not (scales or bias):
            other = scales = _other(step, node, product, SCALES)
        elif step.target is aten.add.Tensor and not (bias or step.kwargs):
            other = bias = _other(step, node, product, (WIDE,))
        else:
            reshaped = step.target in RESHAPES and _columns(step) == _columns(product)
            # Back from scales in fp32.
            rounded = step.target is CONVERT and step.meta["val"].dtype == result.dtype
            other = step if reshaped or rounded else None
        if other is None:
            break
        node = step
        seen.append(step)
        if step.target not in RESHAPES and step.meta["val"].dtype == result.dtype:
            found = tuple(seen), scales, bias
    return found


def _other(step: Node, node: Node, product: Node, dtypes: tuple[torch.dtype, ...]) -> Node | None:
    """The row that a step multiplies a node by, or adds to it; None where it is none."""
    others = [other for other in step.args if other is not node]
    if len(others) != 1 or not isinstance(others[0], Node):
        return None
    one = others[0].meta["val"]
    fits = isinstance(one, torch.Tensor) and one.ndim <= node.meta["val"].ndim
    return _row(others[0], product, dtypes) if fits else None


def _row(node: Node, product: Node, dtypes: tuple[torch.dtype, ...]) -> Node | None:
    """Where the n numbers of a row are stored that is computed of them alone, in their order.

    None where that is not in memory, one behind the other, in one of some types.
    """
    n, shape = _columns(product), node.meta["val"].shape
    # Whether a symbolic extent is 1 must not be asked: that would be a guard.
    if not all(type(extent) is int for extent in shape) or _columns(node) != n:
        return None
    while node.target in ROW_VIEWS or node.target is CONVERT:
        # Rounded on the way it would be another one.
        if node.meta["val"].dtype not in SCALES:
            return None
        node = node.all_input_nodes[0]
    row = node.meta["val"]
    is_row = row.numel() == n == max(row.shape) and row.is_contiguous() and row.dtype in dtypes
    return node if is_row and _stored(node) is not None else None


def _stored(node: Node) -> Node | None:
    """The input of a graph that a node is, or is a view of; None where it is computed.

    A kernel of ours would have that computed first, which Inductor may do along the way.
    """
    while node.target in VIEWS:
        node = node.all_input_nodes[0]
    return node if node.op in ("placeholder", "get_attr") else None
