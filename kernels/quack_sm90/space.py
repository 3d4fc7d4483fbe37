"""The candidate space of QuACK's SM90 GEMM; nothing else says which configs are in it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product

import numpy as np

from tilecast.heuristics.config import Geometry
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GATED_COLUMNS, KINDS_REMEMBERED, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.quack_sm90.axes import SWIZZLE, Axes, most_stages
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.quack_sm90.resources import (
    ADDRESSING_REGISTERS,
    exchange_bytes,
    launch_registers,
    mma_registers,
    registers,
    smem_bytes,
    stage_bytes,
    warp_groups,
)
from tilecast.kernels.rules import (
    HARDWARE,
    INVARIANT,
    MEASURED,
    Broken,
    Rule,
    groups,
    groups_as_stored,
    idle_rules,
    l2_traffic,
    multicast_slice,
    rule,
    split_stretch,
    split_waves,
)
from tilecast.kernels.stages import TILE_K_BYTES, tile_ks

AXES = Axes(
    tile_m=(64, 128, 192, 256, 320),
    tile_n=tuple(range(16, 257, 16)),
    clusters=((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)),
    splits=(1, 2, 3, 4, 6, 8),
    ctas_per_sm=(1, 2),
    schedules=("coop", "pong"),
    rasters=("m", "n"),
)
MOST_CTAS = 16
"""Of a cluster that splits k; more than 8 are Hopper's alone (CUDA programming guide, clusters)."""

NEVER_NEAR: tuple[dict[str, object], ...] = (
    {"tile_m": 320},  # 6.5%
    {"tile_m": 256, "tile_k_bytes": 256},  # 8.3%
    {"tile_m": 256, "ctas_per_sm": 2},  # 9.7%
    {"tile_m": 256, "split": True},  # 6.6%
    {"tile_m": 192, "split": True},  # 3.1%
    {"cluster_m": 2, "cluster_n": 2, "ctas_per_sm": 2},  # 6.2%
    {"cluster_m": 4, "ctas_per_sm": 2},  # 4.2%
    {"cluster_n": 4, "ctas_per_sm": 2},  # 3.4%
)
"""Values that together were never near the best on any of the 60 problems of the pilot, and how far
behind their best config was where it came closest (kernels/EXPERIMENTS.md). Finer classes are left
to the model: what 45 problems never had near the best was up to 11% ahead on the other 15."""

_SCALES = {
    (False, "int32"): ("tensor-scales", "row-scales", "out-row-scales"),
    (False, "fp22"): ("tensor-scales", "row-scales"),
    (False, "fp32"): (),
    (True, "fp32"): ("column-scales", "fp32-column-scales"),
}
"""How operands may be scaled, by whether B is converted and what A's are added up in."""


@rule(
    HARDWARE,
    "the kernel multiplies operands of one width, or bf16 and int8, and accumulates in fp32, in "
    "fp22 (fp8) or in int32 (int8); it reads 8 bits along k and scales them alone; it fuses "
    "nothing into whole numbers; groups have 16 bits and no scales, or are fp8 scaled by rows and "
    "not gated, nothing is added, and what they share is stored one after the other",
)
def _operands(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    a, b, out = operands.a.dtype, operands.b.dtype, operands.out.dtype
    converted = (a.name, b.name) == ("bf16", "int8")
    whole, wide = a.accumulator == "int32", b.bits == 16
    alike = a == b if wide else (a.bits, a.accumulator) == (b.bits, b.accumulator)
    accumulators = ("fp22", "fp32") if a.accumulator == "fp22" else (a.accumulator,)
    multiplied = (
        (converted or alike)
        and (not operands.scales or operands.scales in _SCALES[converted, a.accumulator])
        and operands.acc.name in accumulators
        and (a.bits == 16 or operands.a.major == "row")
        and (wide or operands.b.major == "col")
        and (whole == (out.name == "int32") or (whole and operands.scales))
        and not (operands.fused and out.name == "int32")
        and out.bits >= 16
    )
    return not (multiplied and groups_as_stored(operands))


@rule(
    HARDWARE,
    "warp groups that split a tile along n store it in pieces of 32 columns and read their own "
    "B along k; two that take turns hold a tile each, of at most 192 rows",
)
def _warp_group_tile(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    too_large = c.ping_pong & (c.tile_m > 192)
    along_n = warp_groups(c)[1] == 2
    step = np.where(c.ping_pong, 16, 32)
    stepped = along_n | (c.tile_m == 192) | (c.tile_m == 320)
    uneven = stepped & (c.tile_n % step != 0)
    own_b_along_k = np.where(c.swap_ab, operands.a.major == "row", operands.b.major == "col")
    return too_large | uneven | (along_n & ~own_b_along_k)


@rule(
    HARDWARE,
    "what is converted passes through registers, as the kernel's own A alone may; the warp "
    "group that converts a row multiplies it",
)
def _conversion(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    return operands.converted and ~c.swap_ab | (warp_groups(c)[1] == 2)


@rule(
    HARDWARE,
    "a gate pairs accumulators of one thread, which are those of 8 columns of each half of B in "
    "turn: along the kernel's own n, 32 columns at least, 16 in a multicast slice, none of another "
    "warp group; B is read along k, and sums of a split of k are not exchanged",
)
def _gate(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    if not operands.gate:
        return False
    apart = c.swap_ab | (warp_groups(c)[1] == 2) | (c.split_k > 1)
    cut = (c.tile_n % 32 != 0) | (c.tile_n % (GATED_COLUMNS * c.cluster_m) != 0)
    return apart | cut | (operands.b.major != "col")


@rule(
    HARDWARE,
    "CTAs that split k add up through the shared memory that their stages leave, share loads "
    f"along one side, take no turns, and are at most {MOST_CTAS} in a cluster",
)
def _split(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    both_sides = np.minimum(c.cluster_m, c.cluster_n) > 1
    too_many = c.cluster_m * c.cluster_n * c.split_k > MOST_CTAS
    no_room = exchange_bytes(c, operands) > c.stages * stage_bytes(c, operands)
    return (c.split_k > 1) & (c.ping_pong | both_sides | too_many | no_room)


@rule(
    HARDWARE,
    "where k is added up in stretches, one CTA takes them all or each of a split one; sums that "
    "are promoted at every stage, converted operands and gates have none",
)
def _stretches(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    if operands.stretches == 1:
        return False
    alone = operands.promoted or operands.converted or operands.gate
    return bool(alone) | ((c.split_k > 1) & (c.split_k != operands.stretches))


@rule(
    HARDWARE,
    "accumulators and addresses must fit into what setmaxnreg can give, or the kernel waits "
    "for ever for registers that the SM does not have; and the operands of one wgmma into the "
    "launch allocation, or ptxas refuses (C7602)",
)
def _registers(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    one_wgmma = c.tile_n // warp_groups(c)[1] // 2 + ADDRESSING_REGISTERS
    return (mma_registers(c, operands) > registers(c, operands)[1]) | (
        one_wgmma > launch_registers(c)
    )


@rule(HARDWARE, "pipeline, epilogue buffers and barriers of all CTAs on an SM share its 228 KB")
def _shared_memory(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    return smem_bytes(c, operands) > hardware.smem_limit(c.ctas_per_sm)


@rule(HARDWARE, "where k is split every tile has a cluster of its own, and the raster is m")
def _one_order(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    return (c.split_k > 1) & ~c.raster_m


@rule(MEASURED, "on no pilot problem did a config with these values come near the best")
def _never_near(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    more = {"tile_k_bytes": c.tile_k * operands.a.dtype.bytes(1), "split": c.split_k > 1}
    fields = vars(c) | more
    found = [
        np.logical_and.reduce([fields[name] == value for name, value in values.items()])
        for values in NEVER_NEAR
    ]
    return np.logical_or.reduce(found)


@rule(
    MEASURED,
    "where CTAs that split k share loads, those of the tile's longer side save most, and "
    f"one CTA per SM and stages of {TILE_K_BYTES[0]} bytes are tried",
)
def _split_sharing(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    shared = (c.split_k > 1) & (c.cluster_m * c.cluster_n > 1)
    shorter = (c.cluster_m > 1) != (c.tile_n >= c.tile_m)
    deep = c.tile_k * operands.a.dtype.bytes(1) != TILE_K_BYTES[0]
    return shared & (shorter | deep | (c.ctas_per_sm != 1))


def deepest(config: QuackConfig, operands: GemmOperands, hardware: Hardware) -> QuackConfig:
    """The same config with the deepest pipeline that fits; of one stage where none does."""
    return replace(config, stages=int(most_stages(config, operands, hardware)))


@lru_cache(maxsize=KINDS_REMEMBERED)
def stock_configs(operands: GemmOperands, hardware: Hardware) -> tuple[QuackConfig, ...]:
    """The 24 tiles and clusters that ``cutlass.operators`` 0.3.0 enumerates, in its order.

    PyTorch's NVGEMM backend chooses from them. They are those of
    ``Sm90StaticPersistentGemmOperator``, as cooperative tilecast kernels with the deepest pipeline
    that fits. Theirs differ in how tiles are ordered and how the epilogue stores.
    """
    depth = tile_ks(operands)[0]
    shapes = product((64, 128), (64, 128, 256), (1, 2), (1, 2))
    configs = (QuackConfig(m, n, depth, along_m, along_n) for m, n, along_m, along_n in shapes)
    return tuple(deepest(config, operands, hardware) for config in configs)


@rule(MEASURED, "the deepest pipeline that fits is tried")
def _depth(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    return c.stages != most_stages(c, operands, hardware)


CONFIG_RULES: tuple[Rule[GemmOperands], ...] = (
    _operands,
    AXES.rule(),
    groups,
    _warp_group_tile,
    _conversion,
    _gate,
    _split,
    _stretches,
    _registers,
    _shared_memory,
    multicast_slice,
    _one_order,
    _never_near,
    _split_sharing,
    _depth,
)
"""What makes a config compile and run, and what a pilot left of that."""
OPERANDS_RULE = _operands
"""What the kernel multiplies."""
TILE_RULES: tuple[Rule[GemmOperands], ...] = (
    _warp_group_tile,
    _registers,
    _shared_memory,
    multicast_slice,
    _never_near,
    _depth,
)
"""What is asked of a tile, whoever multiplies it."""


PROBLEM_RULES: tuple[Rule[GemmProblem], ...] = (
    *idle_rules(AXES.tile_m, AXES.tile_n, AXES.rasters[0], SWIZZLE),
    split_waves,
    split_stretch,
    l2_traffic,
)
"""What arithmetic excludes for one problem."""


@rule(
    INVARIANT,
    "CTAs that split k round where their stretches end; kernels agree that add up the stretches "
    "that the operands name, however many CTAs take them, and whole numbers are exact",
)
def _other_stretches(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    alike = (c.split_k == 1) | (c.split_k == operands.stretches)
    return ~alike & (operands.out.dtype.name != "int32")


@rule(
    INVARIANT,
    "sums of fp8 are promoted to float32 once a stage, so that kernels with deeper stages round "
    "elsewhere; those with the least deep ones agree",
)
def _promotion(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    return operands.promoted & (c.tile_k != tile_ks(operands)[0])


INVARIANT_RULES: tuple[Rule[GemmOperands], ...] = (_other_stretches, _promotion)
"""What gives a row other bits than the kernels that are left, which agree with each other."""
