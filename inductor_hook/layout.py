"""Which way an operand is stored, and whether the kernel's TMA can read it that way."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import ALIGNMENT_BYTES


def major(name: str, strides: Sequence[Any], itemsize: int, sizes: Any = None) -> str:
    """``row`` or ``col``: the way along which an operand is contiguous.

    Args:
        name: what messages call the operand.
        strides: of (rows, columns) or (batch, rows, columns), in elements.
        itemsize: bytes of an element.
        sizes: what Inductor's ``SizeVars`` know of symbolic strides; left out, they are numbers.

    Raises:
        TilecastError: no stride is 1, or another is no multiple of 16 bytes, or 0, as an expanded
            operand's is: TMA reads neither (CUDA driver API, ``cuTensorMapEncodeTiled``).
    """
    equal = sizes.statically_known_equals if sizes else operator.eq
    divides = sizes.statically_known_multiple_of if sizes else lambda size, step: size % step == 0
    *batch, rows, columns = strides
    if equal(columns, 1):
        found, others = "row", (rows, *batch)
    elif equal(rows, 1):
        found, others = "col", (columns, *batch)
    else:
        raise TilecastError(
            f"{name} has strides {tuple(strides)}; allowed: 1 along rows or columns; "
            "call contiguous() on it"
        )
    multiple = ALIGNMENT_BYTES // itemsize
    for stride in others:
        if equal(stride, 0) or not divides(stride, multiple):
            raise TilecastError(
                f"{name} has strides {tuple(strides)}; allowed beside the 1: multiples of "
                f"{multiple} other than 0; pad it or call contiguous() on it"
            )
    return found
