"""Which configs stand for the kernels that ``cutlass.operators`` enumerates for SM90.

They are what PyTorch's NVGEMM backend chooses from, and what nvMatmulHeuristics was made to rank.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import KINDS_REMEMBERED, GemmOperands
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.quack_sm90.space import deepest
from tilecast.kernels.rules import tile_ks


@lru_cache(maxsize=KINDS_REMEMBERED)
def stock_configs(operands: GemmOperands, hardware: Hardware) -> tuple[QuackConfig, ...]:
    """The 24 tiles and clusters of ``cutlass.operators`` 0.3.0, in its order.

    They are those of its ``Sm90StaticPersistentGemmOperator``, as cooperative tilecast kernels
    with the deepest pipeline that fits. Theirs differ in what such a config does not name: how
    tiles are ordered and how the epilogue stores.
    """
    depth = tile_ks(operands)[0]
    shapes = product((64, 128), (64, 128, 256), (1, 2), (1, 2))
    configs = (QuackConfig(m, n, depth, along_m, along_n) for m, n, along_m, along_n in shapes)
    return tuple(deepest(config, operands, hardware) for config in configs)
