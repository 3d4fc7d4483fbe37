"""Masks behind products of groups of rows that mask nothing, but part a product from its gate.

Hugging Face's layers zero the rows of experts that other GPUs have, whose number is none of this
GPU's. Where the numbers are places of one score for each expert, there is no such row.
"""

from __future__ import annotations

from operator import getitem
from typing import Any

from torch.fx import Graph, Node

from tilecast.inductor_hook.fuse.fx import GROUPED, ROW_VIEWS, aten


def drop_masks(graph: Graph) -> None:
    """Take each ``where(mask, other, product)`` out of a graph whose mask is true nowhere."""
    for product in graph.find_nodes(op="call_function", target=GROUPED):
        for reader in [*product.users]:
            masked = reader.target is aten.where.self and reader.args[2] is product
            if masked and _stored(reader) == _stored(product) and _never(reader.args[0]):
                reader.replace_all_uses_with(product)
                graph.erase_node(reader)


def _never(mask: Any) -> bool:
    """Whether it asks of places that ``topk`` chose, in any order, if they are behind the last.

    It chooses places of what there is, whatever the numbers are, NaN too.
    """
    compared = _source(mask)
    if compared.target is not aten.ge.Scalar:
        return False
    places, bound = compared.args
    found = _source(places)
    chosen = _part(found, 1)
    if chosen is None or chosen.target is not aten.topk.default or chosen.kwargs:
        return False
    scores, dim = chosen.args[0], (*chosen.args, -1)[2]
    extent = scores.meta["val"].shape[dim]
    return type(extent) is type(bound) is int and extent <= bound


def _source(node: Any) -> Any:
    """The node that has the same elements, before views and a sort."""
    while True:
        order = _part(node, 0)
        if order is not None and order.target is aten.sort.default:
            node = order.args[0]
        elif node.target in ROW_VIEWS:
            node = node.args[0]
        else:
            return node


def _part(node: Any, which: int) -> Any:
    """What a node takes one of the results of; None where it does not take this one."""
    return node.args[0] if node.target is getitem and node.args[1] == which else None


def _stored(node: Node) -> tuple[Any, ...]:
    value = node.meta["val"]
    return value.dtype, value.shape, value.stride()
