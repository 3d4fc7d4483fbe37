"""Products of a graph that a matrix is added to, and nothing else: residuals, and what reads them.

Behind a linear layer of more than two dimensions the sum stands behind a view. Without one Inductor
itself makes an ``addmm`` of both, unless it computes more of the sum along the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import eq
from typing import cast

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from tilecast.inductor_hook.fuse.activation import (
    PRODUCTS,
    RESHAPES,
    VIEWS,
    aten,
    is_ours,
    reads_memory,
    with_inputs,
)
from tilecast.inductor_hook.fuse.scales import columns, row_of


@dataclass(frozen=True)
class Residual:
    """A product of a graph and what is added to it; nothing else reads what lies between."""

    product: Node
    """One of `PRODUCTS`, (m, n), with a row if any."""
    reshapes: tuple[Node, ...]
    """What lies between it and the sum, one behind the other; their rows are the product's."""
    sum: Node
    """The sum."""

    @property
    def added(self) -> Node:
        """What is added, of the sum's shape and type."""
        return next(one for one in self.sum.all_input_nodes if one is not self._last)

    @property
    def operands(self) -> tuple[Node, ...]:
        """What is added, a row if any, A and B, and then what shapes are made of."""
        between = {self.product, *self.reshapes}
        shapes = [one for reshape in self.reshapes for one in reshape.all_input_nodes]
        shapes = [one for one in shapes if one not in between]
        return (self.added, *cast(tuple[Node, ...], self.product.args), *dict.fromkeys(shapes))

    def alone(self) -> Graph:
        """All of it as a graph of its own, whose last node nothing reads.

        Its inputs are `operands`.
        """
        graph, copies = with_inputs(self.operands)
        for node in (self.product, *self.reshapes, self.sum):
            copies[node] = graph.node_copy(node, copies.__getitem__)
        return graph

    def replace(self, target: Callable) -> None:
        """Put one node in place of all, which calls ``target`` with `operands`."""
        graph = self.sum.graph
        with graph.inserting_before(self.sum):
            node = graph.call_function(target, self.operands)
        node.meta.update(self.sum.meta)
        self.sum.replace_all_uses_with(node)
        for replaced in (self.sum, *reversed(self.reshapes), self.product):
            graph.erase_node(replaced)

    @property
    def _last(self) -> Node:
        return (self.product, *self.reshapes)[-1]


def residuals(graph: Graph) -> Iterator[Residual]:
    """Those of a graph whose sum is in memory in any case: a kernel that adds writes nothing more.

    Inductor may compute the sum along with what reads it, and leave it unwritten. It does not where
    an output, a product or a later sum of this kind reads it.
    """
    found = {}
    for target in PRODUCTS:
        for product in graph.find_nodes(op="call_function", target=target):
            if one := _behind(product):
                found[one.sum] = one  # one of two products that are added
    later = {one.added for one in found.values()}
    # All at once: one that is replaced may be what another one adds.
    yield from [one for one in found.values() if _is_written(one.sum, later)]


def _behind(product: Node) -> Residual | None:
    """What is added behind a product, if a matrix is."""
    # Without factors, which are keywords.
    if not is_ours(product.meta["val"]) or product.kwargs or columns(product) is None:
        return None
    *bias, _, _ = cast(tuple[Node, ...], product.args)
    if bias and not row_of(bias[0], product, (product.meta["val"].dtype,)):
        return None
    node, reshapes = product, []
    while len(node.users) == 1:
        (step,) = node.users
        if step.target is aten.add.Tensor:
            return Residual(product, tuple(reshapes), step) if _adds_matrix(step, node) else None
        if step.target not in RESHAPES or columns(step) != columns(product):
            return None
        node = step
        reshapes.append(node)
    return None


def _adds_matrix(step: Node, node: Node) -> bool:
    """Whether a step adds to a node what has its shape and type, without a factor."""
    others = [other for other in step.args if other is not node]
    if step.kwargs or len(others) != 1 or not isinstance(others[0], Node):
        return False
    one, result = others[0].meta["val"], node.meta["val"]
    return (
        isinstance(one, torch.Tensor)
        and (one.dtype, one.device, one.ndim) == (result.dtype, result.device, result.ndim)
        # No guard, where either is symbolic.
        and all(map(statically_known_true, map(eq, one.shape, result.shape)))
    )


def _is_written(node: Node, later: set[Node]) -> bool:
    """Whether something reads a node, or a view of it, from memory, or is a later residual."""
    return node in later or any(
        reads_memory(user) or (user.target in VIEWS and _is_written(user, later))
        for user in node.users
    )
