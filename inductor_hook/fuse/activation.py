"""Activations behind the products of a graph: where they are, and one node in place of both.

An activation is known by its values, whatever operators spell it: PyTorch decomposes it in one way
or another, and some models write their own. What stands behind a product and computes each element
from that element alone is evaluated on numbers of every size, and if torch's own function gives the
same, it is that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from tilecast.data_collection.timing.tensors import applied
from tilecast.heuristics.operands import ACTIVATIONS

aten = torch.ops.aten
CONVERT = torch.ops.prims.convert_element_type.default
PRODUCTS = (aten.mm.default, aten.addmm.default)
"""Those that a kernel of ours may do together with what follows: of (a, b) and (bias, a, b)."""
DEVICE = "cuda"
"""Where they are done."""
DTYPES = (torch.bfloat16, torch.float16)
"""Types of their results."""
WIDE = (torch.float32, torch.float64, torch.bool)
"""Types beside the product's own that values keep their meaning in; others would cut some off."""
RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
"""They leave every element where it is."""
VIEWS = (*RESHAPES, aten.permute.default, aten.transpose.int, aten.t.default)
"""They take no kernel."""
OPAQUE = (*PRODUCTS, aten.bmm.default, aten.baddbmm.default)
"""Operators that Inductor puts into no kernel with what computes their operands."""
LONGEST = 24
"""Operators that an activation is made of, at most; PyTorch writes ten."""
TOLERANCE = 1e-7
"""Of a value, relative: what PyTorch writes is within 1e-15 in double precision, while a hyperbolic
tangent in place of the error function makes 5e-4."""


@dataclass(frozen=True)
class Activated:
    """A product of a graph and the activation behind it; nothing else reads what lies between."""

    product: Node
    """One of `PRODUCTS`, (m, n)."""
    reshapes: tuple[Node, ...]
    """What lies between them, one behind the other."""
    steps: tuple[Node, ...]
    """The operators of the activation, in the order of the graph."""
    name: str
    """One of `ACTIVATIONS`."""

    def alone(self) -> Graph:
        """Both as a graph of their own, whose last node, (m, n), nothing reads.

        Its inputs are the product's operands.
        """
        graph, copies = with_inputs(cast(tuple[Node, ...], self.product.args))
        product = graph.node_copy(self.product, copies.__getitem__)
        copies[(self.product, *self.reshapes)[-1]] = product
        for step in self.steps:
            copies[step] = graph.node_copy(step, copies.__getitem__)
            dtype = step.meta["val"].dtype
            copies[step].meta["val"] = torch.empty_like(product.meta["val"], dtype=dtype)
        return graph

    def replace(self, target: Callable) -> None:
        """Put one node in place of both, which calls ``target`` with the product's operands."""
        graph, product = self.product.graph, self.product
        with graph.inserting_before(product):
            node = graph.call_function(target, product.args)
        node.meta.update(product.meta)
        product.replace_all_uses_with(node)
        self.steps[-1].replace_all_uses_with((node, *self.reshapes)[-1])
        for replaced in (*reversed(self.steps), product):
            graph.erase_node(replaced)


def activations(graph: Graph) -> Iterator[Activated]:
    """Those behind the products of a graph that a kernel may do, and that save a kernel if it does.

    None is saved where Inductor computes something else of the result element by element: it does
    the activation in the same kernel.
    """
    for target in PRODUCTS:
        for product in graph.find_nodes(op="call_function", target=target):
            # Without factors, which are keywords.
            if is_ours(product.meta["val"]) and not product.kwargs:
                yield from _behind(product)


def with_inputs(operands: Sequence[Node]) -> tuple[Graph, dict[Node, Node]]:
    """A graph that has inputs alone, which stand for some nodes of another, and each one's."""
    graph, copies = Graph(), {}
    for i, operand in enumerate(operands):
        copies[operand] = graph.placeholder(f"input_{i}")
        copies[operand].meta["val"] = operand.meta["val"]  # by which Inductor counts FLOPs
    return graph, copies


def is_ours(result: torch.Tensor) -> bool:
    """Whether kernels of ours make results of such a type on such a device."""
    return result.device.type == DEVICE and result.dtype in DTYPES


def reads_memory(node: Node) -> bool:
    """Whether Inductor puts a node into no kernel with what computes its operands.

    So it is with outputs, products, and nodes of ours that stand for a product and what follows it.
    """
    return (
        node.op == "output"
        or node.target in OPAQUE
        or hasattr(node.target, "_inductor_lowering_function")
    )


def _behind(product: Node) -> Iterator[Activated]:
    """The activation behind a product, if there is one."""
    reshapes: list[Node] = []
    start = product
    while len(start.users) == 1 and next(iter(start.users)).target in RESHAPES:
        (start,) = start.users
        reshapes.append(start)
    dtype = product.meta["val"].dtype
    values = {start: _points()}
    while len(values) <= LONGEST:
        readers = {user for node in values for user in node.users} - values.keys()
        if not readers:
            return
        step = min(readers)
        if not _is_elementwise(step, values):
            return
        result = step.meta["val"]
        if not isinstance(result, torch.Tensor) or result.dtype not in (dtype, *WIDE):
            return
        values[step] = _evaluated(step, values)
        if readers == {step} and result.dtype == dtype:
            name = _named(values[step])
            if name:
                if _saves_a_kernel(step):
                    yield Activated(product, tuple(reshapes), tuple(values)[1:], name)
                return


def _is_elementwise(node: Node, values: Mapping[Node, torch.Tensor]) -> bool:
    """Whether it computes each element from the same element of what has values, and no more."""
    target = node.target
    return (
        isinstance(target, torch._ops.OpOverload)
        and torch.Tag.pointwise in target.tags
        and not target._schema.is_mutable
        and all(operand in values for operand in node.all_input_nodes)
    )


def _evaluated(node: Node, values: Mapping[Node, torch.Tensor]) -> torch.Tensor:
    """What an elementwise node gives, in double precision throughout."""
    if node.target is CONVERT:
        value = values[node.all_input_nodes[0]]
        # Sums of what is true are none of bool.
        return value != 0 if node.meta["val"].dtype is torch.bool else value.double()
    args = map_arg(node.args, values.__getitem__)
    target = cast(Callable, node.target)
    return target(*args, **map_arg(node.kwargs, values.__getitem__))


def _named(values: torch.Tensor) -> str | None:
    """The activation that gives these values at `_points`."""
    for name, expected in _expected().items():
        if torch.allclose(values.double(), expected, TOLERANCE, TOLERANCE, equal_nan=True):
            return name
    return None


def _saves_a_kernel(node: Node) -> bool:
    """Whether nothing reads a node, or a view of it, that Inductor would compute along with it."""
    return all(
        reads_memory(user) or (user.target in VIEWS and _saves_a_kernel(user))
        for user in node.users
    )


@cache
def _points() -> torch.Tensor:
    """Numbers of every size that a 16-bit type has, more of them where activations bend, and NaN.

    No infinities, of which torch's own functions and their decompositions make different things.
    """

    def row(*numbers: float) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.double, device="cpu")

    near = row(*(i / 64 for i in range(-768, 769)))
    powers = row(*(2.0**i for i in range(-126, 128)))
    return torch.cat((near, powers, -powers, row(torch.nan)))


@cache
def _expected() -> dict[str, torch.Tensor]:
    """What each activation makes of them."""
    return {name: applied(name, _points(), {}) for name in sorted(ACTIVATIONS)}
