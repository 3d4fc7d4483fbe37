"""How operands are stored: whether TMA reads A, B and out, and what a kernel adds and scales by."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from tilecast.heuristics.dtypes import dtype_of_torch
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import ALIGNMENT_BYTES

BIAS_ALIGNMENT_BYTES = 4
"""Where the row that a kernel adds may start: it is copied in pieces of this size."""


class Bias(NamedTuple):
    """What an addmm adds to its product; in a graph some numbers may be symbolic."""

    shape: Sequence[Any]
    """Its extents."""
    strides: Sequence[Any]
    """As many, in elements."""
    dtype: Any
    """What torch calls the type of its elements."""
    start: Any
    """Where it begins, in bytes."""
    alpha: float
    """Factor of the product."""
    beta: float
    """Factor of the bias."""

    def fuses(self, n: Any, dtype: Any, sizes: Any = None) -> bool:
        """Whether a kernel adds it before it stores the product; else it is added afterwards.

        It does so with one row of n numbers, one behind the other, of out's type, from a multiple
        of 4 bytes on and to one, that is (n,), (1, n) or these expanded to (m, n), and with no
        factors.

        Args:
            n: columns of the product.
            dtype: what torch calls the type of its elements.
            sizes: what Inductor's ``SizeVars`` know of symbolic numbers; left out, there are none.
        """
        equal = sizes.statically_known_equals if sizes else operator.eq
        divides = sizes.statically_known_multiple_of if sizes else _divides
        return (
            self.alpha == self.beta == 1
            and self.dtype == dtype
            and len(self.shape) in (1, 2)
            and equal(self.shape[-1], n)
            and equal(self.strides[-1], 1)
            and (len(self.shape) == 1 or equal(self.shape[0], 1) or equal(self.strides[0], 0))
            and divides(self.start, BIAS_ALIGNMENT_BYTES)
            and divides(n * dtype.itemsize, BIAS_ALIGNMENT_BYTES)
        )


class Scale(NamedTuple):
    """What A or B of a ``scaled_mm`` is scaled by; in a graph extents may be symbolic."""

    shape: Sequence[Any]
    """Its extents."""
    dtype: Any
    """What torch calls the type of its elements."""
    contiguous: bool
    """Whether its elements lie one behind the other."""


def scaling(a: Scale, b: Scale, rows: Any, columns: Any, sizes: Any = None) -> str:
    """What operands call the scales of A and B.

    Args:
        a: scale of A.
        b: scale of B.
        rows: m.
        columns: n.
        sizes: what Inductor's ``SizeVars`` know of symbolic extents; left out, they are numbers.

    Raises:
        TilecastError: they are neither one number each nor one a row of A and a column of B.
    """
    for scale in (a, b):
        found = dtype_of_torch(scale.dtype)
        if found.name != "fp32":
            raise TilecastError(f"scales of {found}; allowed: fp32")
    equal = sizes.statically_known_equals if sizes else operator.eq
    if all(equal(extent, 1) for extent in (*a.shape, *b.shape)):
        return "tensor-scales"
    if len(a.shape) == len(b.shape) == 2 and a.contiguous and b.contiguous:
        found = (*a.shape, *b.shape)
        if all(map(equal, found, (rows, 1, 1, columns))):
            return "row-scales"
    raise TilecastError(
        f"scales {tuple(a.shape)} and {tuple(b.shape)}; allowed: one number each, or contiguous "
        "(m, 1) and (1, n)"
    )


def major(name: str, strides: Sequence[Any], itemsize: int, sizes: Any = None) -> str:
    """``row`` or ``col``: the way along which an operand is contiguous.

    Args:
        name: what messages call the operand.
        strides: of (rows, columns) or (batch, rows, columns), in elements.
        itemsize: bytes of an element.
        sizes: what Inductor's ``SizeVars`` know of symbolic strides; left out, they are numbers.

    Raises:
        TilecastError: no stride is 1, or another is no multiple of 16 bytes, which TMA does not
            read (CUDA driver API, ``cuTensorMapEncodeTiled``), or rows or columns are expanded.
    """
    equal = sizes.statically_known_equals if sizes else operator.eq
    divides = sizes.statically_known_multiple_of if sizes else _divides
    *batch, rows, columns = strides
    if equal(columns, 1):
        found, leading = "row", rows
    elif equal(rows, 1):
        found, leading = "col", columns
    else:
        raise TilecastError(
            f"{name} has strides {tuple(strides)}; allowed: 1 along rows or columns; "
            "call contiguous() on it"
        )
    multiple = ALIGNMENT_BYTES // itemsize
    if equal(leading, 0) or not all(divides(stride, multiple) for stride in (leading, *batch)):
        raise TilecastError(
            f"{name} has strides {tuple(strides)}; allowed beside the 1: multiples of {multiple}, "
            "0 for a batch alone; pad it or call contiguous() on it"
        )
    return found


def padded(columns: int, itemsize: int) -> int:
    """How long a row is that TMA writes and that holds so many elements, in elements.

    Args:
        columns: what it holds.
        itemsize: bytes of an element.
    """
    multiple = ALIGNMENT_BYTES // itemsize
    return -(-columns // multiple) * multiple


def _divides(size: int, step: int) -> bool:
    return size % step == 0
