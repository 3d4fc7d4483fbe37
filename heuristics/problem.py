"""One GEMM to be solved: its extents and how its operands are stored."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from operator import index

from tilecast.heuristics.dtypes import dtype
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import (
    GATED_COLUMNS,
    K_GROUPS,
    LINEAR_BF16,
    MATRIX,
    ROW_GROUPS,
    STRETCHES,
    GemmOperands,
    TensorSpec,
)

MAX_EXTENT = 2**31 - 1
"""Extents are 32-bit numbers in kernels and in the data set."""
ALIGNMENT_BYTES = 16
"""A TMA descriptor needs every global stride to be a multiple of 16 bytes (CUDA driver API,
``cuTensorMapEncodeTiled``), so the contiguous extent of each operand must be one too."""

STRETCHED_N, STRETCHED_K = 2112, 2048
"""Most columns and least k that are added up in stretches where m must not matter. With more
columns, 33 tiles of 64, four CTAs a tile would be more than the 132 SMs of a Hopper GPU; with a
shorter k a split gains nothing at any m (benchmarks/results/invariant_regret.json)."""

PROBLEM_FIELDS = ("m", "n", "k", "batch", "operands")
"""The columns that a problem takes in a table: `GemmProblem.row` and `GemmProblem.from_row`."""


@dataclass(frozen=True)
class GemmProblem:
    """out[m, n] = A[m, k] @ B[k, n], ``batch`` times; behind a gate out has n/2 columns.

    Of rows or of a k that come in groups, see `products`.
    """

    m: int
    """Rows of A and out; where they are grouped, of all groups together."""
    n: int
    """Columns of B and, but for a gate, of out."""
    k: int
    """Columns of A, rows of B; where it is grouped, of all groups together."""
    batch: int = 1
    """Independent products of the same extents, or the groups."""
    operands: GemmOperands = field(default=LINEAR_BF16)
    """How A, B and out are typed and stored."""

    def __post_init__(self) -> None:
        """Check the extents and the 16-byte rule.

        Raises:
            TilecastError: an extent is no integer, out of range, or breaks the 16-byte rule.
        """
        for name in ("m", "n", "k", "batch"):
            value = getattr(self, name)
            if type(value) is not int:
                raise TilecastError(
                    f"{name}={str(value)[:100]!r} is not an integer; allowed: 1 to {MAX_EXTENT}"
                )
            if not 1 <= value <= MAX_EXTENT:
                shown = value if abs(value) < 10**18 else "a number of many digits"
                raise TilecastError(f"{name}={shown} is out of range; allowed: 1 to {MAX_EXTENT}")
        operands = self.operands
        for name, spec, (rows, columns) in (
            ("A", operands.a, ("m", "k")),
            ("B", operands.b, ("k", "n")),
            ("out", operands.out, ("m", "n")),
        ):
            extent = columns if spec.major == "row" else rows
            multiple = ALIGNMENT_BYTES * 8 // spec.dtype.bits
            value = getattr(self, extent)
            if value % multiple:
                raise TilecastError(
                    f"{extent}={value} breaks the 16-byte rule of {name} ({spec.dtype}, contiguous "
                    f"along {extent}); allowed: multiples of {multiple}; pad {extent} to "
                    f"{-(-value // multiple) * multiple}"
                )

        if operands.gate and self.n % GATED_COLUMNS:
            raise TilecastError(
                f"n={self.n} cannot be halved by {operands.gate}; allowed: multiples of "
                f"{GATED_COLUMNS}"
            )

    @classmethod
    def parse(cls, text: str, operands: GemmOperands = LINEAR_BF16) -> GemmProblem:
        """Read a problem written as ``MxNxK``, or ``BATCHxMxNxK``.

        Raises:
            TilecastError: the text is not of that form, or an extent is not allowed.
        """
        batch, m, n, k = read_extents(text)
        return cls(m, n, k, batch, operands)

    def row(self) -> tuple[int, int, int, int, str]:
        """The values of `PROBLEM_FIELDS`; operands as their text."""
        return (self.m, self.n, self.k, self.batch, self.operands.text)

    @classmethod
    def from_row(cls, row: tuple) -> GemmProblem:
        """The problem of which `row` returned this.

        Raises:
            TilecastError: a value is not allowed.
        """
        try:
            m, n, k, batch = map(index, row[:4])
            (operands,) = row[4:]
            return cls(m, n, k, batch, GemmOperands.parse(operands))
        except TypeError as error:
            shown = str(row)[:100]
            raise TilecastError(
                f"{shown} is no problem; allowed: m, n, k, batch and operands"
            ) from error

    @property
    def batched(self) -> bool:
        """Whether A and out are as many matrices as B."""
        return self.batch > 1 and not self.operands.groups

    @property
    def products(self) -> float:
        """Products to do: all of a batch and of groups along k; of groups of rows, those with any.

        Where rows go is known on the device alone, so these are the mean over ways to deal them by
        the flat Dirichlet distribution, as `tilecast.data_collection.timing.tensors.group_ends`
        does.
        """
        groups = self.batch
        by_rows = self.operands.groups == ROW_GROUPS
        return groups * self.m / (groups + self.m - 1) if by_rows else groups

    @property
    def rows(self) -> int:
        """Rows of one of the `products`; of groups their mean, rounded down."""
        # The mean is (batch + m - 1) / batch.
        return -(-self.m // self.batch) if self.operands.groups == ROW_GROUPS else self.m

    @property
    def depth(self) -> int:
        """The k of one of the `products`; of groups along k their mean, rounded up."""
        return -(-self.k // self.batch) if self.operands.groups == K_GROUPS else self.k

    @property
    def dealt(self) -> int:
        """What its groups share among them: all rows, or all of k."""
        return self.k if self.operands.groups == K_GROUPS else self.m

    def evenly(self) -> GemmProblem:
        """The batch of products that groups along k would be if each had the mean k of all.

        Unlike groups of rows they all make a whole matrix of out, in as many tiles.
        """
        if self.operands.groups != K_GROUPS:
            return self
        return replace(self, k=self.depth, operands=self.operands.grouped(""))

    @property
    def out_n(self) -> int:
        """Columns of out."""
        return self.n // self.operands.columns_for_one

    def invariant(self) -> GemmProblem:
        """The same, where a row is to have the same bits whatever m is: added up as n and k ask.

        With few columns and a long k, so few tiles take so long that k has to be split, which adds
        up in stretches. Kernels that do not split it can add up like that, too, so that few and
        many rows have the same bits. Whole numbers are exact anyway, sums of fp8 that are promoted
        round at every stage, what is converted is multiplied from registers, and no kernel splits
        k of groups.
        """
        operands = self.operands
        few_tiles = self.n <= STRETCHED_N and self.k >= max(2 * self.n, STRETCHED_K)
        whole = operands.acc.name == "int32"
        apart = whole or operands.promoted or operands.converted or operands.groups
        if apart or not few_tiles:
            return self
        return replace(self, operands=replace(operands, stretches=STRETCHES))

    @property
    def flops(self) -> int:
        """Floating-point operations: one multiply and one add per product term."""
        matrices = 1 if self.operands.groups else self.batch
        return 2 * self.m * self.n * self.k * matrices

    @property
    def min_bytes(self) -> float:
        """Bytes that must cross DRAM: each matrix read once, the output written once.

        Rows, columns and numbers that an epilogue reads are small beside these. B is not read for a
        group without rows.
        """
        return self._bytes(self.products)

    @property
    def stored_bytes(self) -> float:
        """Bytes of all matrices, also of B for groups without rows."""
        return self._bytes(self.batch)

    def _bytes(self, products: float) -> float:
        """Of A, B and out of some products."""
        operands = self.operands
        a = operands.a.dtype.bytes(self.m * self.k)
        b = operands.b.dtype.bytes(self.k * self.n)
        like_out = 1 + sum(extra.kind == MATRIX for extra in operands.extras)
        out = like_out * operands.out.dtype.bytes(self.m * self.out_n)
        sizes = zip((a, b, out), operands.stacked, strict=True)
        return sum(size * (products if stacked else 1) for size, stacked in sizes)

    @property
    def family(self) -> tuple[int, int]:
        """The (n, k) pair: problems that share it never stand on both sides of a held-out split.

        Of groups along k the (m, n) of the weight whose gradient they are: k is rows of a batch.
        """
        return (self.m, self.n) if self.operands.groups == K_GROUPS else (self.n, self.k)

    @property
    def library_call(self) -> str:
        """The operator of PyTorch that multiplies such operands, such as ``torch.mm``."""
        operator, _ = library_operator(self.operands)
        alone, batched = _RANKS.get(operator, (operator, operator))
        return f"torch.{batched if self.batch > 1 else alone}"

    @property
    def in_library(self) -> bool:
        """Whether PyTorch multiplies this at all: what its operators refuse, as CUDA has them."""
        operands, alone = self.operands, self.batch == 1
        match library_operator(operands)[0]:
            case "matmul" | "addmm":
                return True
            case "_grouped_mm":
                # Of other types it reads the offsets on the host, which no CUDA graph captures.
                return operands.a.dtype.name == operands.out.dtype.name == "bf16"
            case "_scaled_grouped_mm":
                types = [one.dtype.name for one in (operands.a, operands.b, operands.out)]
                return types == ["e4m3", "e4m3", "bf16"] and operands.scales == "row-scales"
            case "_int_mm":
                scaled = operands.scales in ("tensor-scales", "row-scales", "out-row-scales")
                whole = not operands.scales and operands.out == TensorSpec(dtype("int32"), "row")
                return alone and self.m > 16 and self.n % 8 == 0 and (scaled or whole)
            case "_scaled_mm":
                by_row = operands.scales == "row-scales" and operands.out.dtype.name == "bf16"
                scaled = by_row or operands.scales in ("", "tensor-scales")
                narrow = operands.a.dtype.name == operands.b.dtype.name == "e5m2"
                return alone and self.n % 16 == 0 and scaled and not narrow
        return alone

    def __str__(self) -> str:
        """``m x n x k``, with the batch or the groups in front where there are some."""
        prefix = f"{self.batch}x" if self.batch > 1 else ""
        return f"{prefix}{self.m}x{self.n}x{self.k}"


def read_extents(text: str) -> tuple[int, int, int, int]:
    """The batch, m, n and k of ``MxNxK``, or ``BATCHxMxNxK``, whatever rules they break.

    Raises:
        TilecastError: the text is not of that form.
    """
    if not re.fullmatch(r"[0-9]{1,18}(x[0-9]{1,18}){2,3}", text):
        raise TilecastError(
            f"{text[:100]!r} is not a problem; allowed: MxNxK or BATCHxMxNxK, such as 16x6144x4096"
        )
    batch, m, n, k = map(int, ["1", *text.split("x")][-4:])
    return batch, m, n, k


_ACTIVATED = (("bias", "relu"), ("bias", "gelu-tanh"))
"""Activations that cuBLAS has with a bias."""
ADDED = (("c",), ("beta-c",), ("alpha", "c"), ("alpha", "beta-c"))
"""What ``addmm`` does with a matrix."""
_RANKS = {"matmul": ("mm", "bmm"), "addmm": ("addmm", "baddbmm")}
"""What does as `library_operator` says: one product, and a batch of them."""


def library_operator(operands: GemmOperands) -> tuple[str, int]:
    """The operator of ``torch`` that begins a product, and how many steps of the epilogue it does.

    Those that it leaves, and scales of int8, each take an operator of their own.
    """
    steps = operands.epilogue
    biased = steps[:1] == ("bias",)
    if operands.groups:
        return "_scaled_grouped_mm" if operands.scales else "_grouped_mm", 0
    if operands.converted:
        return "matmul", 0
    if operands.a.dtype.name == "int8":
        return "_int_mm", 0
    if operands.a.dtype.bits == 8:
        # It adds none to a result in fp32.
        return "_scaled_mm", int(biased and operands.out.dtype.name != "fp32")
    if operands.out.dtype != operands.a.dtype:
        return "matmul", 0
    if steps in _ACTIVATED:
        return "_addmm_activation", 2
    if biased:
        return "addmm", 1
    return ("addmm", len(steps)) if steps in ADDED else ("matmul", 0)
