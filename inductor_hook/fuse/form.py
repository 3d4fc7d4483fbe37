"""A fused form: a pattern in the FX graph, the operands that it becomes, and its baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from tilecast.heuristics.operands import Extra, columns_for_one
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.fuse.fx import (
    EXPAND,
    HALVING,
    RESHAPES,
    columns,
    mutates,
    with_inputs,
)
from tilecast.inductor_hook.settings import Settings
from tilecast.inductor_hook.timing.stand_in import StandIn


@dataclass(frozen=True)
class Replaced:
    """What a fused kernel would replace, as its node is lowered: baselines are made of it."""

    settings: Settings
    alone: Graph
    """The nodes that a fused kernel would replace; its inputs are their operands."""
    nodes: Sequence[Any]
    """What a kernel reads, in memory: A (m, k), B (k, n) and the extras."""
    layout: Any
    """Where the result lies."""
    problem: GemmProblem
    """With the extents that Inductor benchmarks with where they are symbolic."""


@dataclass(frozen=True)
class Fused:
    """What one kernel does in place of several nodes."""

    name: str
    """The name in counters."""
    extras: tuple[Extra, ...]
    out: torch.dtype
    """Type of the result."""
    baseline: Callable[[Replaced], Sequence[StandIn]]
    """What it would replace, to be timed beside it; nothing where that cannot be timed."""
    epilogue: tuple[str, ...] = ()
    """Steps of the operands' epilogue behind a bias."""
    transposed: bool = False
    """Whether B is stored as (n, k)."""

    @property
    def columns_for_one(self) -> int:
        """Columns of B that make one of the result."""
        return columns_for_one(self.epilogue)


@dataclass(frozen=True)
class Match:
    """A product of a graph and what one kernel does along with it.

    Nothing else reads what lies between.
    """

    fused: Fused
    product: Node
    """(m, n)."""
    steps: tuple[Node, ...]
    """What is done to the product, in the order of the graph, views too."""
    operands: tuple[Node, ...]
    """A (m, k), where m may be several extents, B and the extras."""
    before: tuple[Node, ...] = ()
    """What makes B of its stored form, in the order of the graph."""

    @property
    def last(self) -> Node:
        """The node with the result."""
        return (self.product, *self.steps)[-1]

    @property
    def movable(self) -> bool:
        """Whether nothing between its nodes writes to memory, as it is computed at the last."""
        node, own = (*self.before, self.product)[0], {*self.before, self.product, *self.steps}
        while node is not self.last:
            if node not in own and mutates(node):
                return False
            node = node.next
        return True

    @property
    def _result(self) -> torch.Tensor:
        """The product without values, as wide as the result."""
        product = self.product.meta["val"]
        *rows, n = product.shape
        return product.new_empty(*rows, n // self.fused.columns_for_one)

    def alone(self) -> Graph:
        """All of it as a graph of its own, from `operands` to (m, n)."""
        graph, copies = with_inputs(self.operands)
        result = self._result

        def copy(node: Node) -> Node:
            if hasattr(node.target, "_inductor_lowering_function") and node not in copies:
                # Inductor's own function of a pattern reads keywords alone; its positional
                # arguments are extents of the pattern, which may be symbolic.
                keywords = map_arg(node.kwargs, copy)
                copies[node] = graph.call_function(cast(Callable, node.target), (), keywords)
                copies[node].meta = {**node.meta}
            elif node not in copies and (
                node.target is EXPAND or (node in self.steps and node.target in RESHAPES)
            ):
                copies[node] = copy(node.all_input_nodes[0])
            elif node not in copies:
                copies[node] = graph.node_copy(node, copy)
                if node.target in HALVING and node in self.steps:
                    # Without the extents that reshaping made of m.
                    copies[node].update_arg(HALVING[node.target], -1)
                if node in self.steps and isinstance(node.meta["val"], torch.Tensor):
                    dtype = node.meta["val"].dtype
                    copies[node].meta["val"] = torch.empty_like(result, dtype=dtype)
            return copies[node]

        copy(self.last)
        return graph

    def replace(self, target: Callable) -> None:
        """Put one node in place of all, which calls ``target`` with `operands`."""
        graph = self.product.graph
        with graph.inserting_before(self.last):
            node = graph.call_function(target, self.operands)
            node.meta.update(self.product.meta, val=self._result.to(self.fused.out))
            for step in self.steps:
                if step.target in RESHAPES:
                    shape, result = cast(Sequence, step.args[1]), step.meta["val"]
                    if self.fused.columns_for_one > 1:
                        result = self.last.meta["val"]
                        shape = [*shape[:-1], columns(self.last)]
                    node = graph.call_function(cast(Callable, step.target), (node, shape))
                    node.meta.update(step.meta, val=result.to(self.fused.out))
        self.last.replace_all_uses_with(node)
        for replaced in reversed((*self.before, self.product, *self.steps)):
            graph.erase_node(replaced)


Form = Callable[[Graph], Iterable[Match]]
"""Finds the matches of one kind of fusion in a graph. Each may be replaced before the next is asked
for."""
