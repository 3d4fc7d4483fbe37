"""QuACK's SM100 GEMM, compiled for any extents without a GPU."""

# The DSL's packages are joined at import time: a type checker does not see them.
# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

from typing import cast

# isort: off
import tilecast.kernels.quack.importable  # noqa: F401

from tilecast.kernels.quack.compiler import compile_gemm
from tilecast.kernels.quack.partial_sums import SplitGemm
from tilecast.kernels.quack.parts import parts_of
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
        product = Sm100Gemm(config, parts_of(spec.operands))
        split = SplitGemm(product, config, spec.operands)
        return compile_gemm(split, spec, arch, symbol, room=True)
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
