"""The kernel that adds up a split of k, without the product in front: it runs on any GPU.

``python sums_alone.py OPERANDS SPLITS ARCH FILE`` compiles it, in a process of its own as all
kernels.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.quack.compiler import compile_gemm
from tilecast.kernels.quack.partial_sums import SplitGemm
from tilecast.kernels.quack_sm100.config import Sm100Config
from tilecast.kernels.spec import KernelSpec

if __name__ == "__main__":
    text, splits, arch, file = sys.argv[1:]
    operands = GemmOperands.parse(text)
    config = replace(Sm100Config(64, 16, 64), split_k=int(splits))
    spec = KernelSpec(config, operands, batched=True)
    alone = SplitGemm(lambda *product: None, config, operands)
    Path(file).write_bytes(compile_gemm(alone, spec, arch, Path(__file__).stem, room=True))
