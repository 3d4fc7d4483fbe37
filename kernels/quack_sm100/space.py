"""The candidate space of QuACK's SM100 GEMM.

Nothing of it was measured: rules are the hardware's and QuACK's, and arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilecast.heuristics.config import Geometry
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import MATRIX, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.quack.family import columns_of, with_stages
from tilecast.kernels.quack_sm100.config import Sm100Config
from tilecast.kernels.quack_sm100.resources import (
    MOST_N,
    accumulators,
    pairs,
    smem_bytes,
    stage_bytes,
)
from tilecast.kernels.rules import (
    HARDWARE,
    INVARIANT,
    Broken,
    Rule,
    idle_rules,
    l2_traffic,
    multicast_slice,
    off_axes,
    rule,
)
from tilecast.kernels.stages import TILE_K_BYTES, tile_ks

TILE_M = (64, 128)
TILE_N = (16, 32, 64, 96, 128, 160, 192, 224, 256, 512)
CLUSTERS = ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2))
STAGES = tuple(range(2, 13))
RASTERS = ("m", "n")
SWIZZLE = 8
_SCALES = ("", "tensor-scales", "row-scales", "block-scales")
"""How fp8 may be scaled."""
TENSOR_COLUMNS = 512
"""Columns of 32 bits x 128 rows of tensor memory (PTX ISA, tcgen05): the accumulators' place."""


@rule(
    HARDWARE,
    "the kernel multiplies two operands of bf16, of fp16 or of fp8 of one type, adds up in fp32, "
    "reads 8 bits along k and scales them alone; its rows come in no groups, and its epilogue "
    "has no gates and reads no matrices",
)
def _operands(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    a, b, out = operands.a, operands.b, operands.out.dtype
    wide = a.dtype.bits == 16
    multiplied = (
        a.dtype == b.dtype
        and a.dtype.accumulator != "int32"
        and (wide or (a.major, b.major) == ("row", "col"))
        and operands.scales in (("",) if wide else _SCALES)
        and out.bits >= 16
        and out.accumulator != "int32"
        and not (operands.groups or operands.gate)
        and not any(extra.kind == MATRIX for extra in operands.extras)
    )
    return not multiplied


@rule(
    HARDWARE,
    f"tile_m is {TILE_M}, tile_n {TILE_N}, tile_k {TILE_K_BYTES} bytes, the cluster one of "
    f"{CLUSTERS} (more than 8 CTAs are not portable), stages {STAGES[0]} to {STAGES[-1]} and "
    f"swizzle {SWIZZLE}",
)
def _axes(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    axes = (
        (c.tile_m, TILE_M),
        (c.tile_n, TILE_N),
        (c.tile_k, tile_ks(operands)),
        (c.stages, STAGES),
        (c.swizzle, (SWIZZLE,)),
    )
    return off_axes(c, axes, CLUSTERS)


@rule(HARDWARE, f"accumulators share the {TENSOR_COLUMNS} columns of tensor memory")
def _tensor_memory(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    return c.tile_n * accumulators(c, operands) > TENSOR_COLUMNS


@rule(HARDWARE, "tiles wider than one instruction are a pair's of 256 rows, as QuACK has them")
def _wide(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    return (c.tile_n > MOST_N) & ~(pairs(c) & (c.tile_m == 128))


@rule(
    HARDWARE,
    "scales of blocks are read for 128 rows and 64 columns at a time, by one instruction a tile",
)
def _blocks(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    uneven = (c.tile_m % 128 != 0) | (c.tile_n % 64 != 0) | (c.tile_n > MOST_N)
    return operands.block_scaled & uneven


@rule(HARDWARE, "pipeline, epilogue buffers and barriers of a CTA share an SM's 227 KB")
def _shared_memory(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    return smem_bytes(c, operands) > hardware.smem_limit(1)


@rule(
    HARDWARE, "the deepest pipeline that fits hides most latency, and nothing else wants its room"
)
def _depth(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    return c.stages != _most_stages(c, operands, hardware)


def _most_stages(c: Geometry, operands: GemmOperands, hardware: Hardware) -> np.ndarray:
    limit = hardware.smem_limit(1)
    more = (limit - smem_bytes(c, operands)) // stage_bytes(c, operands)
    found = np.minimum(c.stages + more, STAGES[-1])
    # Scales of blocks may leave no room for the last of them.
    return found - (smem_bytes(replace(c, stages=found), operands) > limit)


CONFIG_RULES: tuple[Rule[GemmOperands], ...] = (
    _operands,
    _axes,
    _tensor_memory,
    _wide,
    _blocks,
    multicast_slice,
    _shared_memory,
    _depth,
)
"""What makes a config compile."""
PROBLEM_RULES: tuple[Rule[GemmProblem], ...] = (
    *idle_rules(TILE_M, TILE_N, RASTERS[0], SWIZZLE),
    l2_traffic,
)
"""What arithmetic excludes for one problem."""


@rule(INVARIANT, "nobody has compared the bits of these kernels on a GPU")
def _uncompared(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    return True


INVARIANT_RULES: tuple[Rule[GemmOperands], ...] = (_uncompared,)
"""None of them promises a row the same bits in every batch."""


def points(operands: GemmOperands, hardware: Hardware) -> Geometry:
    """Every point of the axes with the deepest pipeline that fits, valid or not.

    They stand in the order of `Sm100Config`s.
    """
    outer, inner = (TILE_M, TILE_N, tile_ks(operands), range(len(CLUSTERS))), ((0, 1), (0, 1))
    grid = np.meshgrid(*(np.array(axis, np.int32) for axis in (*outer, *inner)), indexing="ij")
    tile_m, tile_n, tile_k, cluster, raster, swap = map(np.ravel, grid)
    cluster_m, cluster_n = np.array(CLUSTERS, np.int32)[cluster].T
    one = np.ones_like(tile_m)
    found = Geometry(
        *(tile_m, tile_n, tile_k, cluster_m, cluster_n, one * STAGES[0], one, one),
        *(raster == 0, one * SWIZZLE, swap == 1, one, tile_n <= MOST_N),
    )
    return with_stages(found, _most_stages(found, operands, hardware), math.prod(map(len, inner)))


def stock_configs(operands: GemmOperands, hardware: Hardware) -> tuple[Sm100Config, ...]:
    """None: nobody has compared the kernels that ``cutlass.operators`` has with these."""
    return ()


def geometry(configs: Sequence[Sm100Config]) -> Geometry:
    """The common view of some configs."""
    columns = columns_of(configs)
    return replace(columns, ping_pong=columns.tile_n <= MOST_N)
