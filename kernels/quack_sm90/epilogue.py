"""What is done to a product before it is stored: scales, then the steps of its operands."""

from __future__ import annotations

from typing import NamedTuple

# isort: off
# First, as it makes QuACK importable where its other parts' packages are not.
from tilecast.kernels.quack_sm90.kernel import TunableGemm

import cutlass
import cutlass.cute as cute
import quack.activation
from cutlass import Float32, Int32, const_expr
from quack.cute_dsl_utils import mlir_namedtuple
from quack.epilogue.ops import ColVecLoad, RowVecLoad, Scalar

from tilecast.heuristics.operands import COLUMN, MATRIX, ONE, ROW
# isort: on

_ACTIVATIONS = {
    "relu": quack.activation.relu,
    "gelu": quack.activation.gelu_erf,
    "gelu-tanh": quack.activation.gelu_tanh_approx,
    "silu": quack.activation.silu,
}


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
        *(RowVecLoad(f"row_{name}") for name in ("scale_a", "scale_b", "bias")),
        *(ColVecLoad(f"column_{name}") for name in ("scale_a", "scale_b", "bias")),
    )

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
        if step == "alpha":
            return value * given["alpha"]
        if step == "bias":
            return value + given["row_bias" if "row_bias" in given else "column_bias"][i]
        if step == "c":
            return value + matrix[i].to(self.acc_dtype)
        if step == "beta-c":
            return value + given["beta"] * matrix[i].to(self.acc_dtype)
        return _ACTIVATIONS[step](value)


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
