"""The kernel that adds up a split of k, without the product in front: it runs on any GPU.

``python sums_alone.py OPERANDS SPLITS ARCH FILE`` compiles it, in a process of its own as all
kernels.
"""

# The DSL's packages are joined at import time: a type checker does not see them.
# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from cutlass import Int32, cute

from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.quack.compiler import compile_gemm
from tilecast.kernels.quack.partial_sums import PartialSums
from tilecast.kernels.quack_sm100.config import Sm100Config
from tilecast.kernels.spec import KernelSpec


class SumsAlone:
    """Called as `tilecast.kernels.quack_sm100.kernel.SplitGemm` is, on sums that are there."""

    def __init__(self, config: Sm100Config, operands: GemmOperands):
        """Take how many stretches there are, and what is done to their sum."""
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
        """Launch it."""
        self.sums.launch(self.sums.tensor(extras[-1], out), out, extras[:-1], stream)


if __name__ == "__main__":
    text, splits, arch, file = sys.argv[1:]
    operands = GemmOperands.parse(text)
    config = replace(Sm100Config(64, 16, 64), split_k=int(splits))
    spec, alone = KernelSpec(config, operands, batched=True), SumsAlone(config, operands)
    Path(file).write_bytes(compile_gemm(alone, spec, arch, Path(__file__).stem, room=True))
