"""What is done to a product before it is stored: scales, then the steps of its operands."""

from __future__ import annotations

from functools import cache
from pkgutil import resolve_name
from typing import NamedTuple

# isort: off
# First, as it makes QuACK importable where its other parts' packages are not.
from tilecast.kernels.quack_sm90.kernel import TunableGemm

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr
from cutlass.experimental import primitives as prims
from quack.cute_dsl_utils import mlir_namedtuple
from quack.epilogue.ops import Scalar

from tilecast.heuristics.operands import COLUMN, EPILOGUES, MATRIX, NUMBER, ONE, ROW
from tilecast.kernels.quack_sm90.vectors import EarlyColumn, EarlyRow, seen
# isort: on

# log2 of the normal distribution function at -t, for t from 0 to _GELU_END: a polynomial fitted for
# the least largest error (Lawson's algorithm), which is 5e-6; the highest power first.
_GELU_END = 6.0
_GELU = (
    *(-1.83481452e-06, 6.15983544e-05, -0.000930525316, 0.00850789271),
    *(-0.0539600727, -0.45846439, -1.15125105, -0.999995294),
)


def gelu(x):
    """X times the normal distribution function at x, to 4e-6 of it, without a branch.

    The error function of the library takes some forty instructions, which stand between the last
    product and the store; this takes twelve. Written for -|x|, where nothing cancels. NaN stays.
    """
    t = cute.arch.fmin(cute.math.absf(x), _GELU_END)
    exponent = Float32(_GELU[0])
    for coefficient in _GELU[1:]:
        exponent = cute.math.fma(exponent, t, Float32(coefficient))
    below = cute.math.exp2(exponent, fastmath=True)
    return cute.math.fma(-t, below, relu(x))


def relu(x):
    """The larger of x and 0; NaN stays, which QuACK's makes 0."""
    return cute.arch.fmax(x, 0.0, nan=True)


@cache
def _function(name):
    """A device function by its dotted name, as a row of `EPILOGUES` has it."""
    return resolve_name(__package__ + name if name.startswith(".") else name)


_VECTORS = ("scale_a", "scale_b", "bias")


@mlir_namedtuple
class FusedArguments(NamedTuple):
    """What the epilogue reads; vectors lie along the kernel's own n (rows) or m (columns)."""

    alpha: Float32 | None = None
    beta: Float32 | None = None
    one_scale_a: cute.Pointer | None = None
    one_scale_b: cute.Pointer | None = None
    row_scale_a: cute.Tensor | None = None
    row_scale_b: cute.Tensor | None = None
    row_bias: cute.Tensor | None = None
    column_scale_a: cute.Tensor | None = None
    column_scale_b: cute.Tensor | None = None
    column_bias: cute.Tensor | None = None


class FusedGemm(TunableGemm):
    """The same, with all that operands name done to the product before it is stored."""

    EpilogueArguments = FusedArguments
    _epi_ops = (
        *(Scalar(name) for name in ("alpha", "beta", "one_scale_a", "one_scale_b")),
        *(EarlyRow(f"row_{name}") for name in _VECTORS),
        *(EarlyColumn(f"column_{name}") for name in _VECTORS),
    )

    def get_scheduler_class(self, varlen_m: bool = False):
        """Which CTA multiplies what."""
        return seen(super().get_scheduler_class(varlen_m), self)

    def epi_get_smem_tensors(self, params, storage):
        """The epilogue's shared memory, and which vectors are to be brought there."""
        self.vectors = []
        return super().epi_get_smem_tensors(params, storage)

    def mma(self, *args):
        """Multiply a tile; its vectors are on their way meanwhile."""
        self._load_vectors()
        return super().mma(*args)

    def mma_rs_interleaved(self, *args, **kwargs):
        """The same of an operand that is converted."""
        self._load_vectors()
        return super().mma_rs_interleaved(*args, **kwargs)

    def _load_vectors(self):
        """Ask for the vectors of the tile that comes next.

        All threads have read those of the tile before: its pieces are stored behind a barrier.
        """
        if not self.vectors:
            return
        # A kernel before this one may write them.
        prims.griddepcontrol(prims.GridDepAction.WAIT)
        threads = self.num_epi_warps * cute.arch.WARP_SIZE
        for op, vector, piece in self.vectors:
            op.load(vector, piece, self.tile[op._coord_idx()], threads)
        cute.arch.cp_async_commit_group()

    @cute.jit
    def epi_visit_subtile(self, params, epi_loop_tensors, tRS_rD, tRS_rC=None):
        """Do it to one piece of the tile, element by element in registers."""
        given = epi_loop_tensors
        for i in cutlass.range_constexpr(cute.size(tRS_rD)):
            value = tRS_rD[i]
            for name in ("scale_a", "scale_b"):
                if const_expr(f"one_{name}" in given):
                    value = value * given[f"one_{name}"]
                for line in ("row", "column"):
                    if const_expr(f"{line}_{name}" in given):
                        value = value * given[f"{line}_{name}"][i]
            for step in self.operands.epilogue:
                value = self._step(step, value, given, tRS_rC, i)
            tRS_rD[i] = value
        return ()

    def _step(self, step, value, given, matrix, i):
        fusion = EPILOGUES[step]
        extras = [self._extra(extra, given, matrix, i) for extra in fusion.extras]
        if fusion.device:
            return _function(fusion.device)(value, *extras)
        if step == "alpha":
            return value * extras[0]
        if step == "beta-c":
            matrix, beta = extras
            return value + beta * matrix
        return value + extras[0]

    def _extra(self, extra, given, matrix, i):
        """What an extra holds for the element, which lies in a vector of either direction."""
        if extra.kind == MATRIX:
            return matrix[i].to(self.acc_dtype)
        if extra.kind == NUMBER:
            return given[extra.name]
        row = f"row_{extra.name}"
        return given[row if row in given else f"column_{extra.name}"][i]


class GemmWithExtras(FusedGemm):
    """The same, called with a tuple of the operands' extras behind out."""

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        out: cute.Tensor,
        extras: tuple,
        max_active_clusters: Int32,
        stream,
    ):
        """Launch; see the class."""
        arguments, matrix = {}, None
        lines = {ROW: "row", COLUMN: "column"}
        if const_expr(self.config.swap_ab):
            lines = {ROW: "column", COLUMN: "row"}
        for extra, value in zip(self.operands.extras, extras, strict=True):
            if const_expr(extra.kind == MATRIX):
                matrix = value
            elif const_expr(extra.kind == ONE):
                arguments[f"one_{extra.name}"] = value.iterator
            elif const_expr(extra.kind in lines):
                arguments[f"{lines[extra.kind]}_{extra.name}"] = value
            else:
                arguments[extra.name] = value
        self.launch(a, b, out, matrix, FusedArguments(**arguments), max_active_clusters, stream)
