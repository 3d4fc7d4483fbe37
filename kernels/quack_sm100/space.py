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
    groups,
    groups_as_stored,
    idle_rules,
    l2_traffic,
    multicast_slice,
    off_axes,
    rule,
    split_stretch,
    split_waves,
)
from tilecast.kernels.stages import TILE_K_BYTES, tile_ks

TILE_M = (64, 128)
TILE_N = (16, 32, 64, 96, 128, 160, 192, 224, 256, 512)
CLUSTERS = ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2))
SPLITS = (1, 2, 3, 4, 6, 8)
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
    "reads 8 bits along k and scales them alone; its epilogue reads no matrices; groups have 16 "
    "bits and no scales, or are fp8 scaled by rows and not gated, nothing is added, and what they "
    "share is stored one after the other; behind a gate B is read along k, the result is stored "
    "along rows in 16 bits, and blocks have no scales",
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
        and groups_as_stored(operands)
        and not (operands.gate and (operands.block_scaled or not _halves_in_turn(operands)))
        and operands.stretches == 1
        and not any(extra.kind == MATRIX for extra in operands.extras)
    )
    return not multiplied


def _halves_in_turn(operands: GemmOperands) -> bool:
    """Whether TMA reads columns of the halves of B in turn, and stores half as many."""
    out = operands.out
    return operands.b.major == "col" and (out.major, out.dtype.bits) == ("row", 16)


@rule(
    HARDWARE,
    f"tile_m is {TILE_M}, tile_n {TILE_N}, tile_k {TILE_K_BYTES} bytes, the cluster one of "
    f"{CLUSTERS} (more than 8 CTAs are not portable), split_k {SPLITS}, stages {STAGES[0]} to "
    f"{STAGES[-1]} and swizzle {SWIZZLE}",
)
def _axes(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    axes = (
        (c.tile_m, TILE_M),
        (c.tile_n, TILE_N),
        (c.tile_k, tile_ks(operands)),
        (c.split_k, SPLITS),
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


@rule(
    HARDWARE,
    "a split has few tiles, so that no order is to choose, and the least deep stages cut k most "
    "evenly; in the last stage of each stretch the kernel leaves out as many scales of blocks as "
    "lie behind the end of k, though k may go on",
)
def _split(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    deep = c.tile_k != tile_ks(operands)[0]
    return (c.split_k > 1) & (~c.raster_m | deep | operands.block_scaled)


@rule(
    HARDWARE,
    "a gate pairs what one thread has of a row: along the kernel's own n, 32 columns at least, of "
    "128 rows, or of 64 that are half of a pair's; sums of a split of k are finished one by one",
)
def _gate(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    apart = c.swap_ab | (c.split_k > 1) | ((c.tile_m < 128) & ~pairs(c))
    return bool(operands.gate) & (apart | (c.tile_n < 32))


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
    groups,
    _tensor_memory,
    _wide,
    _blocks,
    _gate,
    _split,
    multicast_slice,
    _shared_memory,
    _depth,
)
"""What makes a config compile."""
PROBLEM_RULES: tuple[Rule[GemmProblem], ...] = (
    *idle_rules(TILE_M, TILE_N, RASTERS[0], SWIZZLE),
    split_waves,
    split_stretch,
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
    outer = (TILE_M, TILE_N, tile_ks(operands), range(len(CLUSTERS)), SPLITS)
    inner = ((0, 1), (0, 1))
    grid = np.meshgrid(*(np.array(axis, np.int32) for axis in (*outer, *inner)), indexing="ij")
    tile_m, tile_n, tile_k, cluster, split_k, raster, swap = map(np.ravel, grid)
    cluster_m, cluster_n = np.array(CLUSTERS, np.int32)[cluster].T
    one = np.ones_like(tile_m)
    found = Geometry(
        *(tile_m, tile_n, tile_k, cluster_m, cluster_n, one * STAGES[0], one, one),
        *(raster == 0, one * SWIZZLE, swap == 1, split_k, tile_n <= MOST_N),
    )
    return with_stages(found, _most_stages(found, operands, hardware), math.prod(map(len, inner)))


def stock_configs(operands: GemmOperands, hardware: Hardware) -> tuple[Sm100Config, ...]:
    """None: nobody has compared the kernels that ``cutlass.operators`` has with these."""
    return ()


def geometry(configs: Sequence[Sm100Config]) -> Geometry:
    """The common view of some configs."""
    columns = columns_of(configs)
    return replace(columns, ping_pong=columns.tile_n <= MOST_N)
