"""Which way an operand is stored, and whether the kernel's TMA can read it that way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import ALIGNMENT_BYTES


class SizeVars(Protocol):
    """What is known of extents in every case: of Inductor's symbols, as its ``SizeVars`` says."""

    def statically_known_equals(self, left: Any, right: Any) -> bool:
        """Whether two extents are the same."""
        ...

    def statically_known_multiple_of(self, numerator: Any, denominator: Any) -> bool:
        """Whether one extent divides the other."""
        ...


class FixedSizes:
    """The same of extents that are numbers."""

    def statically_known_equals(self, left: int, right: int) -> bool:
        """Whether they are the same."""
        return left == right

    def statically_known_multiple_of(self, numerator: int, denominator: int) -> bool:
        """Whether one divides the other."""
        return numerator % denominator == 0


def major(name: str, strides: Sequence[Any], itemsize: int, sizes: SizeVars | None = None) -> str:
    """``row`` or ``col``: the way along which an operand is contiguous.

    Args:
        name: what messages call the operand.
        strides: of (rows, columns) or (batch, rows, columns), in elements.
        itemsize: bytes of an element.
        sizes: what is known of the strides; that they are numbers when left out.

    Raises:
        TilecastError: no stride is 1, or another is no multiple of 16 bytes, or 0, as an expanded
            operand's is: TMA reads neither (CUDA driver API, ``cuTensorMapEncodeTiled``).
    """
    sizes = sizes or FixedSizes()
    *batch, rows, columns = strides
    if sizes.statically_known_equals(columns, 1):
        found, others = "row", (rows, *batch)
    elif sizes.statically_known_equals(rows, 1):
        found, others = "col", (columns, *batch)
    else:
        raise TilecastError(
            f"{name} has strides {tuple(strides)}; allowed: 1 along rows or columns; "
            "call contiguous() on it"
        )
    multiple = ALIGNMENT_BYTES // itemsize
    for stride in others:
        if sizes.statically_known_equals(stride, 0) or not sizes.statically_known_multiple_of(
            stride, multiple
        ):
            raise TilecastError(
                f"{name} has strides {tuple(strides)}; allowed beside the 1: multiples of "
                f"{multiple} other than 0; pad it or call contiguous() on it"
            )
    return found
