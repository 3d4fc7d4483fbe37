"""QuACK's SM100 GEMM behind which a gate pairs the two halves of B.

B is read with the columns of its halves in turn, by the strides of TMA's descriptor, so that a
thread has the two that the gate pairs side by side. What it makes of them is stored by QuACK, as a
second result of half the columns beside a first one that is left out.
"""

# The DSL's packages are joined at import time: a type checker does not see them.
# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

from copy import copy
from typing import Any, NamedTuple

# isort: off
import tilecast.kernels.quack.importable  # noqa: F401

import cutlass
import cutlass.cute as cute
from cutlass import Float32
from quack.cute_dsl_utils import mlir_namedtuple
from quack.epilogue.ops import ColVecLoad, RowVecLoad, Scalar, TileStore

from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.quack.epilogue import NUMBERS, VECTORS
from tilecast.kernels.quack_sm100.config import Sm100Config
from tilecast.kernels.quack_sm100.product import Sm100Gemm
# isort: on


@mlir_namedtuple
class _Arguments(NamedTuple):
    """Those of `tilecast.kernels.quack.epilogue.FusedArguments` that a gate may have, and out."""

    out: cute.Tensor
    alpha: Float32 | None = None
    one_scale_a: cute.Pointer | None = None
    one_scale_b: cute.Pointer | None = None
    row_scale_b: cute.Tensor | None = None
    row_bias: cute.Tensor | None = None
    second_scale_b: cute.Tensor | None = None
    second_bias: cute.Tensor | None = None
    column_scale_a: cute.Tensor | None = None


class _HalfRow(RowVecLoad):
    """A vector along the columns of out, each of which two columns of the tile are made into."""

    def _tile_size(self, cta_tile_shape_mnk):
        return cta_tile_shape_mnk[1] // 2

    def _tile_dim(self, ctx):
        return ctx.tile_N[1]

    def _broadcast_stride(self):
        return (0, (0, 1))

    def begin(self, gemm, param, smem_tensor, ctx):
        """See `RowVecLoad`."""
        ctx = copy(ctx)
        ctx.tile_N = (2, ctx.tile_N // 2)
        return super().begin(gemm, param, smem_tensor, ctx)


class _EveryOther:
    """The elements of a thread that are of one half."""

    def __init__(self, values: Any, half: int):
        self._values, self._half = values, half

    def __getitem__(self, i: int) -> Any:
        return self._values[2 * i + self._half]


class GatedGemm(Sm100Gemm):
    """The same as `Sm100Gemm`, with a gate at the end of the epilogue."""

    EpilogueArguments = _Arguments
    _epi_ops = (
        TileStore("out", gated=True),
        *(Scalar(name) for name in NUMBERS if name != "beta"),
        *(_HalfRow(f"{half}_{name}") for half in ("row", "second") for name in VECTORS[1:]),
        ColVecLoad("column_scale_a"),
    )

    def __init__(self, config: Sm100Config, operands: GemmOperands):
        """Set what does not depend on extents."""
        super().__init__(config, operands)
        self.concat_layout = ("B",)

    @cute.jit
    def epi_visit_subtile(self, params, epi_loop_tensors, tRS_rD, tRS_rC=None):
        """Make a piece of out of one that is twice as wide, element by element in registers."""
        out = cute.make_rmem_tensor(cute.recast_layout(2, 1, tRS_rD.layout).shape, self.acc_dtype)
        first, self.second = _EveryOther(tRS_rD, 0), _EveryOther(tRS_rD, 1)
        given = {
            name: _EveryOther(value, 0) if isinstance(value, cute.Tensor) else value
            for name, value in epi_loop_tensors.items()
        }
        for i in cutlass.range_constexpr(cute.size(out)):
            out[i] = self._finished(first[i], given, None, i)
        return (out,)

    def launch(self, a, b, out, arguments, *others):
        """Launch; out is what the epilogue stores."""
        given = {name: value for name, value in arguments._asdict().items() if value is not None}
        super().launch(a, b, None, _Arguments(out=out, **given), *others)
