"""Compiling QuACK's SM90 GEMM; what this module imports decides what a config compiles to."""

from __future__ import annotations

from typing import cast

from tilecast.kernels.gemm_object import compile_gemm
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.quack_sm90.epilogue import FusedGemm, GemmWithExtras
from tilecast.kernels.quack_sm90.kernel import TunableGemm
from tilecast.kernels.spec import KernelSpec


def compile_kernel(spec: KernelSpec, arch: str, symbol: str) -> bytes:
    """The object file of a kernel, which exports ``symbol``."""
    operands = spec.operands
    fused = GemmWithExtras if operands.extras else FusedGemm
    kernel = fused if operands.fused else TunableGemm
    config = cast("QuackConfig", spec.config)
    return compile_gemm(kernel(config, operands, spec.any_rows), spec, arch, symbol)
