"""Which of our configs are the kernels that ``cutlass.operators`` itself enumerates for SM90.

They are what PyTorch's NVGEMM backend chooses from, and the baselines that stand for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import product

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.cutlass_sm90.config import Sm90Config
from tilecast.kernels.cutlass_sm90.resources import smem_bytes
from tilecast.kernels.cutlass_sm90.space import tile_ks


@lru_cache(maxsize=16)
def stock_configs(operands: GemmOperands, hardware: Hardware) -> tuple[Sm90Config, ...]:
    """The 24 SM90 GEMMs of ``cutlass.operators`` 0.3.0, in the order in which it lists them.

    Tiles and clusters are those that its ``Sm90StaticPersistentGemmOperator`` enumerates; two warp
    groups where its kernel takes two, and as many stages as one CTA's shared memory holds.
    """
    configs = []
    depth = tile_ks(operands)[0]
    for tile_m, tile_n, cluster_m, cluster_n in product((64, 128), (64, 128, 256), (1, 2), (1, 2)):
        groups = 2 if tile_m > 64 and tile_n > 128 else 1
        empty = Sm90Config(tile_m, tile_n, depth, cluster_m, cluster_n, 0, groups)
        fixed = smem_bytes(empty, operands)
        stage = smem_bytes(replace(empty, stages=1), operands) - fixed
        stages = (hardware.smem_bytes_per_block - fixed) // stage
        configs.append(replace(empty, stages=stages))
    return tuple(configs)


def stock_candidates(
    operands: GemmOperands, hardware: Hardware, candidates: Iterable[KernelConfig]
) -> dict[Sm90Config, Sm90Config]:
    """Which candidate stands for each stock config, in the order of `stock_configs`.

    Tile, cluster, warp groups and CTAs per SM agree and operands are not exchanged; where no such
    candidate is scheduled as the stock kernel is, the nearest swizzle, raster or number of stages
    stands in. Stock configs without any are left out.
    """
    alike: dict[tuple, list[Sm90Config]] = {}
    for config in candidates:
        if isinstance(config, Sm90Config):
            alike.setdefault(_shape(config), []).append(config)
    return {
        stock: min(
            alike[_shape(stock)],
            key=lambda config: (
                config.swizzle != stock.swizzle,
                config.raster != stock.raster,
                abs(config.stages - stock.stages),
                config,
            ),
        )
        for stock in stock_configs(operands, hardware)
        if _shape(stock) in alike
    }


def _shape(config: Sm90Config) -> tuple:
    """What `stock_candidates` matches by."""
    return (
        *(config.tile_m, config.tile_n, config.tile_k, config.cluster_m, config.cluster_n),
        *(config.warp_groups, config.ctas_per_sm, config.swap_ab),
    )
