"""What is done to a product before it is stored: scales, then the steps of its operands."""

from __future__ import annotations

from functools import cache
from pkgutil import resolve_name
from typing import Any, NamedTuple

# isort: off
import tilecast.kernels.quack.importable  # noqa: F401

import cutlass
import cutlass.cute as cute
from cutlass import Float32
from quack.cute_dsl_utils import mlir_namedtuple

from tilecast.heuristics.operands import (
    COLUMN,
    COLUMN_BLOCKS,
    EPILOGUES,
    GROUP_ENDS,
    GROUP_ROWS,
    MATRIX,
    NUMBER,
    ONE,
    ROW,
    ROW_BLOCKS,
    GemmOperands,
)
# isort: on

NUMBERS = ("alpha", "beta", "one_scale_a", "one_scale_b")
"""Single numbers that an epilogue may read."""
VECTORS = ("scale_a", "scale_b", "bias")
"""Vectors that it may read, each along either extent of out."""
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


@mlir_namedtuple
class FusedArguments(NamedTuple):
    """What the epilogue reads; vectors lie along the kernel's own n (rows) or m (columns).

    Where a gate pairs two halves of n, rows are of the first, and those of the second beside them.
    """

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
    second_scale_b: cute.Tensor | None = None
    second_bias: cute.Tensor | None = None


class Epilogue:
    """What is done to a product by the operands that a kernel has, whatever its architecture."""

    EpilogueArguments = FusedArguments
    config: Any
    operands: GemmOperands

    @cute.jit
    def epi_visit_subtile(self, params, epi_loop_tensors, tRS_rD, tRS_rC=None):
        """Do it to one piece of the tile, element by element in registers."""
        for i in cutlass.range_constexpr(cute.size(tRS_rD)):
            tRS_rD[i] = self._finished(tRS_rD[i], epi_loop_tensors, tRS_rC, i)
        return ()

    def _finished(self, value, given, matrix, i):
        """What becomes of an element; where there is a gate, of that and the one it pairs."""
        value = self._before_gate(value, given, matrix, i, ("row", "column"))
        if not self.operands.gate:
            return value
        gate = EPILOGUES[self.operands.gate]
        pair = value, self._before_gate(self.second[i], given, matrix, i, ("second", "column"))
        return _function(gate.device)(pair[gate.half]) * pair[1 - gate.half]

    def _before_gate(self, value, given, matrix, i, lines):
        """What all steps but a gate make of an element, with vectors of these two lines."""
        for name in ("scale_a", "scale_b"):
            if f"one_{name}" in given:
                value = value * given[f"one_{name}"]
            for line in lines:
                if f"{line}_{name}" in given:
                    value = value * given[f"{line}_{name}"][i]
        for step in self.operands.epilogue:
            if step != self.operands.gate:
                value = self._step(step, value, given, matrix, i, lines)
        return value

    def _step(self, step, value, given, matrix, i, lines):
        fusion = EPILOGUES[step]
        extras = [self._extra(extra, given, matrix, i, lines) for extra in fusion.extras]
        if fusion.device:
            return _function(fusion.device)(value, *extras)
        if step == "alpha":
            return value * extras[0]
        if step == "beta-c":
            matrix, beta = extras
            return value + beta * matrix
        return value + extras[0]

    def _extra(self, extra, given, matrix, i, lines):
        """What an extra holds for the element, which lies in a vector of either line."""
        if extra.kind == MATRIX:
            return matrix[i].to(self.acc_dtype)
        if extra.kind == NUMBER:
            return given[extra.name]
        along, across = (f"{line}_{extra.name}" for line in lines)
        return given[along if along in given else across][i]

    def arguments(self, extras: tuple):
        """What the epilogue reads of the operands' extras; a matrix and ends of groups, or None."""
        arguments, matrix, ends = {}, None, None
        lines = {ROW: "row", COLUMN: "column", GROUP_ROWS: "row"}
        if self.config.swap_ab:
            lines = {ROW: "column", COLUMN: "row"}
        for extra, value in zip(self.operands.extras, extras, strict=True):
            if extra.kind == MATRIX:
                matrix = value
            elif extra.kind == GROUP_ENDS:
                ends = value
            elif extra.kind == ONE:
                arguments[f"one_{extra.name}"] = value.iterator
            elif extra.kind == ROW and self.operands.gate != "":
                half = cute.make_layout((cute.size(value) // 2,))
                arguments[f"row_{extra.name}"] = cute.make_tensor(value.iterator, half)
                second = value.iterator + cute.size(value) // 2
                arguments[f"second_{extra.name}"] = cute.make_tensor(second.align(4), half)
            elif extra.kind in lines:
                arguments[f"{lines[extra.kind]}_{extra.name}"] = value
            elif extra.kind not in (ROW_BLOCKS, COLUMN_BLOCKS):
                arguments[extra.name] = value
        return FusedArguments(**arguments), matrix, ends
