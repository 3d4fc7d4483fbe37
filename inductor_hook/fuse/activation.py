"""Activations behind the products of a graph, and gates, which multiply one half by another.

Either is known by its values, whatever operators spell it: PyTorch decomposes it in one way or
another, and some models write their own. Elementwise operators behind a product, or behind the two
halves of its columns, are evaluated on numbers of every size, and compared with torch's functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from operator import getitem
from typing import cast

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from tilecast.data_collection.timing.tensors import applied
from tilecast.heuristics import operands
from tilecast.heuristics.operands import GROUPS, ROW, ROW_GROUPS, Extra
from tilecast.inductor_hook.fuse.baseline import whole
from tilecast.inductor_hook.fuse.form import Fused, Match
from tilecast.inductor_hook.fuse.fx import (
    CONVERT,
    EXPAND,
    GROUPED,
    HALVING,
    OPAQUE,
    PRODUCTS,
    RESHAPES,
    VIEWS,
    columns,
    is_covered,
)

WIDE = (torch.float32, torch.float64, torch.bool)
"""Types beside the product's own that hold all values; others would cut some off."""
NAMESPACES = ("aten", "prims")
"""Operators of others are not evaluated: they may want a GPU, or do more than compute."""
LONGEST = 24
"""Most operators of an activation; PyTorch writes ten."""
TOLERANCE = 1e-7
"""Of a value, relative: what PyTorch writes is within 1e-15 in double precision, while a hyperbolic
tangent in place of the error function makes 5e-4."""


def activations(graph: Graph) -> Iterator[Match]:
    """The products of a graph with an activation or a gate behind them, if that saves a kernel.

    It does not where Inductor computes something else of the result element by element, and does
    the activation in the same kernel.
    """
    for target in (*PRODUCTS, GROUPED):
        for product in graph.find_nodes(op="call_function", target=target):
            # Without factors, which are keywords.
            if is_covered(product.meta["val"]) and not product.kwargs:
                yield from _behind(product)


def _behind(product: Node) -> Iterator[Match]:
    reshapes: list[Node] = []
    start = product
    while len(start.users) == 1 and next(iter(start.users)).target in RESHAPES:
        (start,) = start.users
        reshapes.append(start)
    dtype = product.meta["val"].dtype
    splits, halves = _halves(product, *reshapes)
    between = (*reshapes, *splits)
    values = dict(zip(halves, _pairs(), strict=True)) if halves else {start: _points()}
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
        try:
            values[step] = _evaluated(step, values)
        # Not every operator takes double precision on a CPU; then it is no activation.
        except Exception:
            return
        if readers == {step} and result.dtype == dtype:
            name = _named(values[step], gate=bool(halves))
            if name:
                if _saves_a_kernel(step):
                    steps = {*between, *values} - {product}
                    yield from _match(product, tuple(sorted(steps)), name)
                return


def _halves(product: Node, *reshapes: Node) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """What splits the columns of a product, if operators do, and the first and second half.

    Nothing and nothing where they are not all that is read of it, or it is reshaped across columns.
    """
    n, last = columns(product), (product, *reshapes)[-1]
    # Not the node of the graph's outputs, which has several values, too.
    several = (one for one in last.users if isinstance(one.meta.get("val"), list | tuple))
    splits = tuple(one for one in several if one.target in HALVING)
    parts = [part for one in last.users for part in (one.users if one in splits else (one,))]
    if not n or n % 2 or len(parts) != 2 or {columns(one) for one in reshapes} - {n}:
        return (), ()
    halves = {}
    for part in parts:
        cut = part.args[0] if part.target is getitem else part
        half = part.meta.get("val")
        # Of another dimension than the first, which goes without saying; and not by a keyword.
        cuts = isinstance(cut, Node) and len(cut.args) > HALVING.get(cut.target, len(cut.args))
        if cuts and isinstance(half, torch.Tensor) and half.stride(-1) == 1:
            place = half.storage_offset() - last.meta["val"].storage_offset()
            halves[place, columns(part)] = part
    first, second = (0, n // 2), (n // 2, n // 2)
    found = halves.keys() == {first, second}
    return (splits, (halves[first], halves[second])) if found else ((), ())


def _match(product: Node, steps: tuple[Node, ...], name: str) -> Iterator[Match]:
    """The activation or gate, if the product adds nothing but a row."""
    if product.target is GROUPED:
        yield from _of_groups(product, steps, name)
        return
    *bias, a, b = cast(tuple[Node, ...], product.args)
    rows = [one.all_input_nodes[0] if one.target is EXPAND else one for one in bias]
    dtype, n = product.meta["val"].dtype, columns(product)
    for row in rows:
        value = row.meta["val"]
        # Whether a symbolic extent is 1 must not be asked: that would be a guard.
        if value.dtype != dtype or not all(type(extent) is int for extent in value.shape):
            return
        if value.numel() != n or columns(row) != n:
            return
    extras = (Extra("bias", ROW),) * len(rows)
    fused = Fused(name, extras, dtype, whole, epilogue=(name,))
    yield Match(fused, product, steps, (a, b, *rows))


def _of_groups(product: Node, steps: tuple[Node, ...], name: str) -> Iterator[Match]:
    """The same behind a product of groups of rows, which are all that has these three operands."""
    operands = cast(tuple[Node, ...], product.args)
    ranks = [one.meta["val"].ndim for one in operands if isinstance(one, Node)]
    if len(operands) == 3 and ranks == [2, 3, 1]:
        dtype = product.meta["val"].dtype
        fused = Fused(name, GROUPS[ROW_GROUPS].extras, dtype, whole, epilogue=(name,))
        yield Match(fused, product, steps, operands)


def _is_elementwise(node: Node, values: Mapping[Node, torch.Tensor]) -> bool:
    """Whether it computes each element from the same element of nodes that have values."""
    target = node.target
    return (
        isinstance(target, OpOverload)
        and target.namespace in NAMESPACES
        and torch.Tag.pointwise in target.tags
        and not target._schema.is_mutable
        and all(operand in values for operand in node.all_input_nodes)
    )


def _evaluated(node: Node, values: Mapping[Node, torch.Tensor]) -> torch.Tensor:
    """The values of an elementwise node, in double precision throughout."""
    if node.target is CONVERT:
        value = values[node.all_input_nodes[0]]
        # Sums of what is true are none of bool.
        return value != 0 if node.meta["val"].dtype is torch.bool else value.double()
    args = map_arg(node.args, values.__getitem__)
    target = cast(Callable, node.target)
    return target(*args, **map_arg(node.kwargs, values.__getitem__))


def _named(values: torch.Tensor, gate: bool) -> str | None:
    """The activation that gives these values at `_points`, or the gate that does at `_pairs`."""
    for name, expected in (_expected_of_gates() if gate else _expected()).items():
        if torch.allclose(values.double(), expected, TOLERANCE, TOLERANCE, equal_nan=True):
            return name
    return None


def _saves_a_kernel(node: Node) -> bool:
    """Whether only outputs, products and fused nodes read it, which Inductor computes apart."""
    return all(
        user.op == "output"
        or user.target in OPAQUE
        or hasattr(user.target, "_inductor_lowering_function")
        or (user.target in VIEWS and _saves_a_kernel(user))
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
    """The values of each activation at `_points`."""
    return {name: applied(name, _points(), {}) for name in operands.activations()}


@cache
def _pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers in the first half and the second: each of `_points` in either, beside one near 1.

    And numbers of every size in either, beside one where no activation loses digits.
    """
    points = _points()
    place = torch.arange(len(points))
    small, bent = (place * 37 % 129 - 64) / 64, (place * 29 % 385 - 192) / 64
    first, second = (points, points), (small.double(), bent.double())
    return torch.cat((*first, *second)), torch.cat((*second, *first))


@cache
def _expected_of_gates() -> dict[str, torch.Tensor]:
    """The values of each gate at `_pairs`."""
    pairs = torch.stack(_pairs(), 1)
    return {name: applied(name, pairs, {}).squeeze(1) for name in operands.gates()}
