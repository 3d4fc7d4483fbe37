"""QuACK's SM90 GEMM of parts of k that stay apart, and what adds them up."""

# The DSL's packages are joined at import time: a type checker does not see them.
# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

from dataclasses import replace
from typing import cast

# isort: off
import tilecast.kernels.quack.importable  # noqa: F401

from quack.gemm_config import SplitKMode
from quack.gemm_sm90 import GemmSm90

from tilecast.heuristics.operands import K_GROUPS, GemmOperands
from tilecast.kernels.quack.compiler import compile_gemm
from tilecast.kernels.quack.grouped import SCHEDULERS
from tilecast.kernels.quack.partial_sums import SplitGemm
from tilecast.kernels.quack.parts import parts_of
from tilecast.kernels.quack_sm90.kernel import TunableGemm
from tilecast.kernels.quack_sm90_memory.config import MemoryConfig
from tilecast.kernels.spec import KernelSpec
# isort: on


def compile_kernel(spec: KernelSpec, arch: str, symbol: str) -> bytes:
    """The object file of a kernel, which exports ``symbol``."""
    config = cast("MemoryConfig", spec.config)
    product = PartsGemm(config, parts_of(spec.operands))
    split = SplitGemm(product, config, spec.operands, spec.any_rows)
    return compile_gemm(split, spec, arch, symbol, room=True)


class PartsGemm(TunableGemm):
    """The same as a product that nobody splits, of each part of k; a CTA has one tile of one part.

    Out has as many matrices for each product as there are parts.
    """

    def __init__(self, config: MemoryConfig, operands: GemmOperands):
        """Set what does not depend on extents."""
        super().__init__(replace(config, split_k=1), operands)
        self.is_persistent = False
        self._init_split_k(config.split_k, SplitKMode.SEPARATE)

    epilogue_split_k = GemmSm90.epilogue_split_k

    def get_scheduler_class(self, varlen_m: bool = False):
        """What hands out tiles; all threads wait there, where more than loads have to.

        Of a part without a stage nothing is loaded: its zeros must not be stored while the kernel
        in front reads what lies there.
        """
        return SCHEDULERS[K_GROUPS]
