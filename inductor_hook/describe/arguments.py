"""The map of operand extras: what each becomes as an argument of a kernel's launch.

Eager code and the C++ operator call `launch_arguments`, generated Python holds `sources`. A kernel
takes vectors with one dimension and a matrix as it is, behind A, B and the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tilecast.heuristics.operands import (
    COLUMN,
    COLUMN_BLOCKS,
    GROUP_ENDS,
    GROUP_ROWS,
    MATRIX,
    NUMBER,
    ONE,
    ROW,
    ROW_BLOCKS,
    Extra,
)

if TYPE_CHECKING:
    import torch


def row(vector: torch.Tensor) -> torch.Tensor:
    """A `ROW` as (n,), a view; it may be (1, n) or expanded to the shape of the result."""
    # Not its first row, which a vector that was expanded to no rows does not have.
    return vector if vector.ndim == 1 else vector.as_strided(vector.shape[-1:], (1,))


class Argument(NamedTuple):
    """What an extra of one kind becomes: of a value, and in generated Python, with {} for it."""

    of: Callable[[Any], Any]
    source: str


ARGUMENTS = {
    NUMBER: Argument(float, "{}"),
    ONE: Argument(lambda tensor: tensor.view(-1), "{}.view(-1)"),
    COLUMN: Argument(lambda tensor: tensor.view(-1), "{}.view(-1)"),
    ROW: Argument(row, "row({})"),
    **dict.fromkeys((MATRIX, GROUP_ENDS, GROUP_ROWS), Argument(lambda tensor: tensor, "{}")),
    **dict.fromkeys(
        (ROW_BLOCKS, COLUMN_BLOCKS), Argument(lambda scales: scales.view(-1), "{}.view(-1)")
    ),
}
"""By kind of extra."""


def launch_arguments(extras: Sequence[Extra], values: Mapping[str, Any]) -> list[Any]:
    """What a launch takes behind ``out``, of the extras' values by name."""
    return [ARGUMENTS[extra.kind].of(values[extra.name]) for extra in extras]


def sources(extras: Sequence[Extra], numbers: Mapping[str, float]) -> list[str]:
    """The same as generated Python spells it, where tensors have the extras' names."""
    return [
        ARGUMENTS[extra.kind].source.format(
            repr(float(numbers[extra.name])) if extra.kind == NUMBER else extra.name
        )
        for extra in extras
    ]


def tensor_names(extras: Sequence[Extra]) -> list[str]:
    """The names of those extras that are tensors, in order."""
    return [extra.name for extra in extras if extra.kind != NUMBER]
