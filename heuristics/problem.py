"""One GEMM to be solved: its extents and how its operands are stored."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilecast.heuristics.errors import TilecastError

DTYPE_BYTES = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
}
"""Bytes per element of every dtype that an operand may have, named as torch names them."""

INPUT_DTYPES = ("bfloat16", "float16")
OUT_DTYPES = ("bfloat16", "float16", "float32")
MAJORS = ("row", "col")
EPILOGUES = ("none",)
MAX_EXTENT = 2**31
ALIGNMENT_BYTES = 16
"""A TMA descriptor needs every global stride to be a multiple of 16 bytes (CUDA driver API,
``cuTensorMapEncodeTiled``), so the contiguous extent of each operand must be one too."""


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise TilecastError(f"{name} {value!r} is not known; allowed: {', '.join(allowed)}")


@dataclass(frozen=True)
class GemmOperands:
    """How A (m x k), B (k x n) and out (m x n) are typed and stored.

    Together with a `KernelConfig` this is everything a compiled kernel depends on: extents and
    strides are run-time values.
    """

    dtype: str = "bfloat16"
    """Dtype of A and B."""
    out_dtype: str = "bfloat16"
    """Dtype of the result."""
    acc_dtype: str = "float32"
    """Dtype that products are accumulated in."""
    a_major: str = "row"
    """``row``: A is contiguous along k; ``col``: along m."""
    b_major: str = "col"
    """``col``: B is contiguous along k, as ``torch.nn.Linear`` stores its weight; ``row``: along
    n."""
    out_major: str = "row"
    """``row``: out is contiguous along n; ``col``: along m."""
    epilogue: str = "none"
    """What is fused after the product."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            TilecastError: a field has a value that is not allowed.
        """
        _one_of("dtype", self.dtype, INPUT_DTYPES)
        _one_of("out_dtype", self.out_dtype, OUT_DTYPES)
        _one_of("acc_dtype", self.acc_dtype, ("float32",))
        for name in ("a_major", "b_major", "out_major"):
            _one_of(name, getattr(self, name), MAJORS)
        _one_of("epilogue", self.epilogue, EPILOGUES)

    @property
    def layout(self) -> str:
        """Majors of A, B and out as three letters, such as ``rcr`` for ``torch.nn.Linear``."""
        return self.a_major[0] + self.b_major[0] + self.out_major[0]

    @classmethod
    def from_layout(cls, layout: str, dtype: str = "bfloat16", out_dtype: str | None = None):
        """Build operands from a three-letter layout.

        Args:
            layout: majors of A, B and out, each ``r`` (row) or ``c`` (column).
            dtype: dtype of A and B.
            out_dtype: dtype of the result; that of A and B when left out.

        Raises:
            TilecastError: the layout or a dtype is not known.
        """
        majors = {"r": "row", "c": "col"}
        if not isinstance(layout, str) or len(layout) != 3 or set(layout) - set(majors):
            raise TilecastError(
                f"layout {layout!r} is not known; allowed: three letters r or c for A, B and out; "
                "use rcr for torch.nn.Linear"
            )
        a, b, out = (majors[letter] for letter in layout)
        return cls(dtype, out_dtype or dtype, "float32", a, b, out)


LINEAR_BF16 = GemmOperands()
"""bf16 with weights as ``torch.nn.Linear`` stores them."""


@dataclass(frozen=True)
class GemmProblem:
    """out[m, n] = A[m, k] @ B[k, n], ``batch`` times."""

    m: int
    """Rows of A and out."""
    n: int
    """Columns of B and out."""
    k: int
    """Columns of A, rows of B."""
    batch: int = 1
    """Independent products of the same extents."""
    operands: GemmOperands = field(default=LINEAR_BF16)
    """Dtypes and majors."""

    def __post_init__(self) -> None:
        """Check the extents and the 16-byte rule.

        Raises:
            TilecastError: an extent is no integer, out of range, or breaks the 16-byte rule.
        """
        for name in ("m", "n", "k", "batch"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise TilecastError(
                    f"{name}={value!r} is not an integer; allowed: 1 to {MAX_EXTENT}"
                )
            if not 1 <= value <= MAX_EXTENT:
                raise TilecastError(f"{name}={value} is out of range; allowed: 1 to {MAX_EXTENT}")
        operands = self.operands
        for operand, extent, dtype in (
            ("A", "k" if operands.a_major == "row" else "m", operands.dtype),
            ("B", "k" if operands.b_major == "col" else "n", operands.dtype),
            ("out", "n" if operands.out_major == "row" else "m", operands.out_dtype),
        ):
            multiple = ALIGNMENT_BYTES // DTYPE_BYTES[dtype]
            value = getattr(self, extent)
            if value % multiple:
                raise TilecastError(
                    f"{extent}={value} breaks the 16-byte rule of {operand} ({dtype}, contiguous "
                    f"along {extent}); allowed: multiples of {multiple}; pad {extent} to "
                    f"{-(-value // multiple) * multiple}"
                )

    @property
    def flops(self) -> int:
        """Floating-point operations: one multiply and one add per product term."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def min_bytes(self) -> int:
        """Bytes that must cross DRAM: each input read once, the output written once."""
        operands = self.operands
        inputs = (self.m * self.k + self.k * self.n) * DTYPE_BYTES[operands.dtype]
        return (inputs + self.m * self.n * DTYPE_BYTES[operands.out_dtype]) * self.batch

    @property
    def family(self) -> tuple[int, int]:
        """The (n, k) pair: problems that share it never stand on both sides of a held-out split."""
        return (self.n, self.k)

    def __str__(self) -> str:
        """``m x n x k``, with the batch in front where there is one."""
        prefix = f"{self.batch}x" if self.batch > 1 else ""
        return f"{prefix}{self.m}x{self.n}x{self.k}"
