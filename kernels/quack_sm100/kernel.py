"""QuACK's SM100 GEMM, compiled for any extents without a GPU."""

# The DSL's packages are joined at import time: a type checker does not see them.
# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

from dataclasses import replace
from typing import cast

# isort: off
import tilecast.kernels.quack.importable  # noqa: F401

import cutlass.cute as cute
from cutlass import Int32

from tilecast.heuristics.dtypes import dtype
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.quack.compiler import compile_gemm
from tilecast.kernels.quack.epilogue import FusedArguments
from tilecast.kernels.quack.partial_sums import PartialSums
from tilecast.kernels.quack_sm100.config import Sm100Config
from tilecast.kernels.quack_sm100.gated import GatedGemm
from tilecast.kernels.quack_sm100.product import Sm100Gemm, TakesExtras
from tilecast.kernels.spec import KernelSpec
# isort: on


def compile_kernel(spec: KernelSpec, arch: str, symbol: str) -> bytes:
    """The object file of a kernel, which exports ``symbol``.

    Raises:
        NotImplementedError: rows of out begin anywhere, which TMA cannot store; or blocks of a
            batch are scaled, which PyTorch does not ask for.
    """
    if spec.any_rows:
        raise NotImplementedError("rows of out that begin anywhere: TMA stores none")
    if spec.batched and spec.operands.block_scaled:
        raise NotImplementedError("scales of blocks in a batch")
    config = cast("Sm100Config", spec.config)
    if config.split_k > 1:
        return compile_gemm(SplitGemm(config, spec.operands), spec, arch, symbol, room=True)
    taken = bool(spec.operands.extras), bool(spec.operands.gate)
    return compile_gemm(_KERNELS[taken](config, spec.operands), spec, arch, symbol)


class _WithExtras(TakesExtras, Sm100Gemm):
    pass


class _GatedWithExtras(TakesExtras, GatedGemm):
    pass


_KERNELS = {
    (False, False): Sm100Gemm,
    (True, False): _WithExtras,
    (False, True): GatedGemm,
    (True, True): _GatedWithExtras,
}
"""By whether operands have extras, and a gate."""


class SplitGemm:
    """Two kernels: a product whose stretches of k stay apart, in float32, and what adds them up.

    Called with a tuple of the operands' extras behind out, at the end of which is room for as many
    matrices like out, in float32, as there are stretches. Nothing has to be in it.
    """

    def __init__(self, config: Sm100Config, operands: GemmOperands):
        """Set what does not depend on extents."""
        out = replace(operands.out, dtype=dtype("fp32"))
        self.product = Sm100Gemm(config, replace(operands, out=out, scales="", epilogue=()))
        self.sums = PartialSums(config, operands)

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        out: cute.Tensor,
        extras: tuple,
        clusters: Int32,
        stream,
    ):
        """Launch both; see the class."""
        parts = self.sums.tensor(extras[-1], out)
        self.product.launch(a, b, parts, FusedArguments(), clusters, stream)
        self.sums.launch(parts, out, extras[:-1], stream)
