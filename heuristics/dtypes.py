"""The element types that operands may have: one row each, and nobody else knows them."""

from __future__ import annotations

from dataclasses import dataclass

from tilecast.heuristics.errors import TilecastError


@dataclass(frozen=True)
class DType:
    """One element type."""

    name: str
    """Short name, used wherever operands are spelled."""
    bits: int
    """Size of an element."""
    torch: str
    """Its name in torch."""
    cutlass: str
    """Its name in the CuTe DSL."""
    accumulator: str
    """Short name of the type that its products are added up in, unless operands say otherwise."""
    speed: float | None
    """Dense tensor rate over that of bf16 on the same GPU (NVIDIA H100 and H200 data sheets); None
    where tensor cores do not multiply it."""

    def bytes(self, elements: float) -> float:
        """Bytes of so many elements."""
        return elements * self.bits / 8

    def __str__(self) -> str:
        """The short name."""
        return self.name


DTYPES = {
    row.name: row
    for row in (
        DType("bf16", 16, "bfloat16", "BFloat16", "fp32", 1.0),
        DType("fp16", 16, "float16", "Float16", "fp32", 1.0),
        # What Hopper's tensor cores add up products of fp8 in: some 14 bits of mantissa, kept as
        # float32 (DeepSeek-V3 technical report, 3.3.2). Before fp32, which look-ups by type find.
        DType("fp22", 32, "float32", "Float32", "fp22", None),
        DType("fp32", 32, "float32", "Float32", "fp32", None),
        DType("e4m3", 8, "float8_e4m3fn", "Float8E4M3FN", "fp22", 2.0),
        DType("e5m2", 8, "float8_e5m2", "Float8E5M2", "fp22", 2.0),
        DType("e8m0", 8, "float8_e8m0fnu", "Float8E8M0FNU", "fp32", None),  # powers of two
        DType("int8", 8, "int8", "Int8", "int32", 2.0),
        DType("int32", 32, "int32", "Int32", "int32", None),
    )
}
"""Every element type by its short name."""

_BY_TORCH = {row.torch: row for row in DTYPES.values()}
_BY_CUTLASS = {row.cutlass: row for row in DTYPES.values()}


def dtype(name: str) -> DType:
    """Look an element type up by its short name.

    Raises:
        TilecastError: it is not known.
    """
    return _found(DTYPES, name, repr(name))


def dtype_of_torch(torch_dtype: object) -> DType:
    """Look an element type up by what torch calls it, such as ``torch.bfloat16``.

    Raises:
        TilecastError: it is not known.
    """
    name = str(torch_dtype).removeprefix("torch.")
    return _found(_BY_TORCH, name, name)


def dtype_of_cutlass(cutlass_dtype: object) -> DType:
    """Look an element type up by what the CuTe DSL calls it, such as ``cutlass.BFloat16``.

    Raises:
        TilecastError: it is not known.
    """
    return _found(_BY_CUTLASS, str(cutlass_dtype), str(cutlass_dtype))


def _found(rows: dict[str, DType], name: str, shown: str) -> DType:
    if name not in rows:
        raise TilecastError(f"dtype {shown} is not known; allowed: {', '.join(rows)}")
    return rows[name]
