"""How operands are stored: whether TMA reads A, B and out, and what a kernel adds and scales by."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from tilecast.heuristics.dtypes import dtype_of_torch
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import BLOCK, MATRIX, ROW, TensorSpec
from tilecast.heuristics.problem import ALIGNMENT_BYTES

ROW_ALIGNMENT_BYTES = 4
"""Where the row that a kernel adds may start: it is copied in pieces of this size."""


class Stored(NamedTuple):
    """How a tensor is stored; in a graph some numbers may be symbolic."""

    shape: Sequence[Any]
    strides: Sequence[Any]
    """In elements."""
    dtype: Any
    """torch's."""
    start: Any = 0
    """Where it begins, in bytes."""

    @classmethod
    def of(cls, tensor: Any, start: Any = 0) -> Stored:
        """How one of torch's tensors is stored."""
        return cls(tensor.shape, tensor.stride(), tensor.dtype, start)

    def spec(self, name: str, sizes: Any = None) -> TensorSpec:
        """Its type and `major` as A, B or out of a product; arguments and errors as there."""
        along = major(name, self.shape, self.strides, self.dtype.itemsize, sizes)
        return TensorSpec(dtype_of_torch(self.dtype), along)

    def added_as(
        self, shape: Sequence[Any], dtype: Any, along: str, sizes: Any = None
    ) -> str | None:
        """What kind of extra a kernel adds it as to a product; None where no kernel adds it.

        `ROW`: n contiguous numbers that begin and end at multiples of 4 bytes: (n,), (1, n) or
        these expanded to the product's shape. `MATRIX`: of the product's shape, aligned to 16
        bytes, in strides that TMA reads, contiguous as out is.

        Args:
            shape: of the product.
            dtype: torch's type of the product.
            along: `major` of out.
            sizes: Inductor's ``SizeVars``, where numbers may be symbolic.
        """
        equal, divides = _known(sizes)
        rank = len(self.shape)
        if self.dtype != dtype or not 1 <= rank <= len(shape):
            return None
        *outer, n = shape[len(shape) - rank :]
        *repeated, columns = self.shape
        *steps, step = self.strides
        if (
            equal(columns, n)
            and equal(step, 1)
            and all(
                equal(have, 1) or (equal(have, want) and equal(stride, 0))
                for have, want, stride in zip(repeated, outer, steps, strict=True)
            )
            and divides(self.start, ROW_ALIGNMENT_BYTES)
            and divides(n * dtype.itemsize, ROW_ALIGNMENT_BYTES)
        ):
            return ROW
        whole = rank == len(shape) and all(map(equal, self.shape, shape))
        if whole and divides(self.start, ALIGNMENT_BYTES):
            with suppress(TilecastError):  # no strides that TMA reads
                if major("what is added", shape, self.strides, dtype.itemsize, sizes) == along:
                    return MATRIX
        return None


def ends_groups(offsets: Stored, groups: Any, sizes: Any = None) -> bool:
    """Whether a kernel reads from a tensor where each of some groups ends.

    ``sizes`` are Inductor's ``SizeVars``, where extents may be symbolic.
    """
    equal, _ = _known(sizes)
    return (
        (len(offsets.shape), str(offsets.dtype)) == (1, "torch.int32")
        and equal(offsets.shape[0], groups)
        and equal(offsets.strides[0], 1)
    )


def adding(kind: str | None, alpha: float, beta: float) -> tuple[str, ...]:
    """Steps of an epilogue that give ``alpha`` x product + ``beta`` x addend; none where none do.

    ``kind`` is `Stored.added_as`. With a ``beta`` of 0 the addend may hold NaN, and is not read.
    """
    if kind == ROW and alpha == beta == 1:
        return ("bias",)
    if kind == MATRIX and beta != 0:
        return (*(["alpha"] if alpha != 1 else []), "c" if beta == 1 else "beta-c")
    return ()


def scaling(scales: Sequence[Stored], rows: Any, columns: Any, k: Any, sizes: Any = None) -> str:
    """The name in operand texts of the scales of A (m rows) and B (n columns).

    ``sizes`` are Inductor's ``SizeVars``, where extents may be symbolic.

    Raises:
        TilecastError: they are neither one number each, nor one a row of A and a column of B, nor
            one a block of each.
    """
    equal, divides = _known(sizes)
    a, b = scales
    types = [dtype_of_torch(scale.dtype).name for scale in scales]
    if types == ["e8m0"] * 2:
        counts = (512 * -(-lines // 128) * -(-k // (4 * BLOCK)) for lines in (rows, columns))
        if all(
            _contiguous(scale, count, equal) and divides(scale.start, ALIGNMENT_BYTES)
            for scale, count in zip(scales, counts, strict=True)
        ):
            return "block-scales"
        raise TilecastError(
            f"scales {tuple(a.shape)} and {tuple(b.shape)} of e8m0; allowed: contiguous tiles of "
            "128 rows x 4 blocks of 32"
        )
    if types != ["fp32"] * 2:
        raise TilecastError(f"scales of {' and '.join(types)}; allowed: fp32, or e8m0")
    if all(equal(extent, 1) for extent in (*a.shape, *b.shape)):
        return "tensor-scales"
    if len(a.shape) == len(b.shape) == 2:
        found = (*a.shape, *b.shape)
        dense = (equal(a.strides[0], 1) or equal(rows, 1)) and (
            equal(b.strides[1], 1) or equal(columns, 1)
        )
        if dense and all(map(equal, found, (rows, 1, 1, columns))):
            return "row-scales"
    raise TilecastError(
        f"scales {tuple(a.shape)} and {tuple(b.shape)}; allowed: one number each, or contiguous "
        "(m, 1) and (1, n)"
    )


def _contiguous(numbers: Stored, count: Any, equal: Any) -> bool:
    """Whether these are so many, one behind the other."""
    step, dense = 1, True
    for extent, stride in zip(reversed(numbers.shape), reversed(numbers.strides), strict=True):
        dense = dense and (equal(extent, 1) or equal(stride, step))
        step = step * extent
    return dense and equal(step, count)


def major(
    name: str, shape: Sequence[Any], strides: Sequence[Any], itemsize: int, sizes: Any = None
) -> str:
    """``row`` or ``col``: the way along which an operand is contiguous.

    Args:
        name: the operand's name in messages.
        shape: (rows, columns) or (batch, rows, columns).
        strides: as many, in elements; Inductor's are 0 where a single row or column is a view.
        itemsize: bytes of an element.
        sizes: Inductor's ``SizeVars``, where strides may be symbolic.

    Raises:
        TilecastError: no stride is 1, or another is no multiple of 16 bytes, which TMA does not
            read (CUDA driver API, ``cuTensorMapEncodeTiled``), or several rows or columns are one.
    """
    equal, divides = _known(sizes)
    *batch, rows, columns = strides
    if equal(columns, 1):
        found, leading, extent = "row", rows, shape[-2]
    elif equal(rows, 1):
        found, leading, extent = "col", columns, shape[-1]
    else:
        raise TilecastError(
            f"{name} has strides {tuple(strides)}; allowed: 1 along rows or columns; "
            "call contiguous() on it"
        )
    multiple = ALIGNMENT_BYTES // itemsize
    expanded = equal(leading, 0) and not equal(extent, 1)
    if expanded or not all(divides(stride, multiple) for stride in (leading, *batch)):
        raise TilecastError(
            f"{name} has strides {tuple(strides)}; allowed beside the 1: multiples of {multiple}, "
            "0 for a batch alone; pad it or call contiguous() on it"
        )
    return found


def padded(columns: int, itemsize: int) -> int:
    """Elements of the shortest row that TMA stores and that holds so many ``columns``."""
    multiple = ALIGNMENT_BYTES // itemsize
    return -(-columns // multiple) * multiple


def _known(sizes: Any) -> tuple[Callable[[Any, Any], bool], Callable[[Any, int], bool]]:
    """What tells whether two numbers are equal, and whether one is a multiple of another.

    Of symbolic numbers, by Inductor's ``SizeVars``, only where it is known.
    """
    if sizes:
        return sizes.statically_known_equals, sizes.statically_known_multiple_of
    return operator.eq, lambda size, step: size % step == 0
