"""The candidate space of the tunable SM90 kernel; nothing else says which configs are in it.

Rules are of three kinds, each with its reason: what does not compile, or hangs, on the hardware;
what a pilot on the GPU showed to be never near the best (benchmarks/space_pruning.py); and, as
inequalities over many configs at once, what arithmetic excludes for one m, n, k.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.cutlass_sm90.config import Sm90Config
from tilecast.kernels.cutlass_sm90.exclusions import pilot_for
from tilecast.kernels.cutlass_sm90.resources import (
    ADDRESSING_REGISTERS,
    WGMMA_M,
    accumulator_registers,
    launch_registers,
    mma_registers,
    smem_bytes,
)
from tilecast.kernels.family import HARDWARE, MEASURED
from tilecast.kernels.rules import (
    L2_TRAFFIC,
    MULTICAST_SLICE,
    ConfigRule,
    deepest,
    idle_order_rule,
    idle_rules,
    off_axis,
    registers_rule,
    shared_memory_rule,
    tile_ks,
)

TILE_M = (64, 128, 256)
TILE_N = (16, 32, 48, 64, 96, 128, 160, 192, 224, 256)
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))
STAGES = tuple(range(2, 13))
WARP_GROUPS = (1, 2)
CTAS_PER_SM = (1, 2)
RASTERS = ("m", "n")
SWIZZLES = (1, 2, 4, 8)


def _unsupported(config: Sm90Config, operands: GemmOperands, hardware: Hardware) -> str | None:
    a, out = operands.a.dtype, operands.out.dtype
    if operands.b.dtype != a:
        return f"A is {a} and B {operands.b.dtype}"
    if operands.fused:
        return f"{operands} fuses more than a product"
    if operands.acc.name != a.accumulator:
        return f"accumulates in {operands.acc}"
    if a.bits < 16 and (operands.a.major, operands.b.major) != ("row", "col"):
        return f"layout {operands.layout}: wgmma reads 8-bit operands along k only"
    if (a.accumulator == "int32") != (out.name == "int32") or out.bits < 16:
        return f"{a} into {out}"
    return None


def _off_axis(config: Sm90Config, operands: GemmOperands, hardware: Hardware) -> str | None:
    return (
        off_axis("tile_m", config.tile_m, TILE_M)
        or off_axis("tile_n", config.tile_n, TILE_N)
        or off_axis("tile_k", config.tile_k, tile_ks(operands))
        or off_axis("cluster", (config.cluster_m, config.cluster_n), CLUSTERS)
        or off_axis("stages", config.stages, STAGES)
        or off_axis("warp_groups", config.warp_groups, WARP_GROUPS)
        or off_axis("ctas_per_sm", config.ctas_per_sm, CTAS_PER_SM)
        or off_axis("raster", config.raster, RASTERS)
        or off_axis("swizzle", config.swizzle, SWIZZLES)
    )


def _warp_group_rows(config: Sm90Config, operands: GemmOperands, hardware: Hardware) -> str | None:
    rows = config.warp_groups * WGMMA_M
    return (
        None if config.tile_m % rows == 0 else f"{rows} rows do not divide tile_m {config.tile_m}"
    )


def _registers(config: Sm90Config, operands: GemmOperands) -> tuple[int, int, int, int]:
    """What `registers_rule` asks for."""
    return (
        accumulator_registers(config) + ADDRESSING_REGISTERS,
        mma_registers(config),
        config.tile_n // 2 + ADDRESSING_REGISTERS,
        launch_registers(config),
    )


def most_stages(config: Sm90Config, operands: GemmOperands, hardware: Hardware) -> int:
    """The deepest pipeline that fits with the config's tile, within `STAGES`; 1 if none does."""
    return deepest(config, operands, hardware, smem_bytes, STAGES)


def _stages_tried(most: int, deep: int) -> tuple[int, ...]:
    """Depths that are candidates when at most ``most`` stages fit."""
    return (most, most - 1, (most + 1) // 2) if most >= deep else (most,)


def _never_near(config: Sm90Config, operands: GemmOperands, hardware: Hardware) -> str | None:
    for excluded in pilot_for(operands, hardware).exclusions:
        if excluded.matches(config, operands):
            return f"{excluded} was {excluded.margin:.1%} or more behind on every pilot problem"
    return None


def _schedule(config: Sm90Config, operands: GemmOperands, hardware: Hardware) -> str | None:
    pilot, most = pilot_for(operands, hardware), most_stages(config, operands, hardware)
    tried, order = _stages_tried(most, pilot.deep), (config.raster, config.swizzle)
    if config.stages not in tried:
        return f"stages is {config.stages}, tried are {tried}"
    if order not in pilot.schedules:
        return f"raster {config.raster} with swizzle {config.swizzle}, tried are {pilot.schedules}"
    if config.stages < most and order != pilot.schedules[0]:
        return f"fewer stages than {most} are tried with raster {pilot.schedules[0]} only"
    return None


CONFIG_RULES = (
    ConfigRule(
        "operands",
        HARDWARE,
        "the kernel multiplies operands of one dtype, those of 8 bits along k, and fuses nothing",
        _unsupported,
    ),
    ConfigRule(
        "axes",
        HARDWARE,
        "the kernel was written and measured for these values",
        _off_axis,
    ),
    ConfigRule(
        "warp-group-rows",
        HARDWARE,
        "each MMA warp group multiplies whole blocks of 64 rows (wgmma m64)",
        _warp_group_rows,
    ),
    registers_rule(_registers),
    shared_memory_rule(smem_bytes),
    MULTICAST_SLICE,
    ConfigRule(
        "never-near",
        MEASURED,
        "on no pilot problem did a config with these values come within 2% of the best",
        _never_near,
    ),
    ConfigRule(
        "schedule",
        MEASURED,
        "on the pilot the deepest pipeline won but for deep ones of small tiles, and three raster "
        "orders of eight did: what the rule leaves loses 0.16% (2.6% at most)",
        _schedule,
    ),
)
"""What makes a config compile and run, and what the pilot left of that."""


PROBLEM_RULES = (
    *idle_rules(TILE_M, TILE_N),
    idle_order_rule(lambda problem, hardware: pilot_for(problem.operands, hardware).schedules[0]),
    L2_TRAFFIC,
)
"""What arithmetic excludes for one problem."""


def points(operands: GemmOperands) -> Iterator[Sm90Config]:
    """Every point that the axes span, valid or not."""
    for tile, cluster, schedule, raster, swizzle, swap_ab in itertools.product(
        itertools.product(TILE_M, TILE_N, tile_ks(operands)),
        CLUSTERS,
        itertools.product(STAGES, WARP_GROUPS, CTAS_PER_SM),
        RASTERS,
        SWIZZLES,
        (False, True),
    ):
        yield Sm90Config(*tile, *cluster, *schedule, raster, swizzle, swap_ab)


@lru_cache(maxsize=16)
def valid_configs(operands: GemmOperands, hardware: Hardware) -> tuple[Sm90Config, ...]:
    """The space: every config that no `CONFIG_RULES` exclude, sorted."""
    pilot = pilot_for(operands, hardware)
    first, *others = pilot.schedules
    shapes = (
        Sm90Config(tm, tn, tk, cm, cn, 2, groups, ctas, *first, swap)
        for tm, tn, tk, (cm, cn), groups, ctas, swap in itertools.product(
            TILE_M, TILE_N, tile_ks(operands), CLUSTERS, WARP_GROUPS, CTAS_PER_SM, (False, True)
        )
    )
    space = []
    for shape in shapes:
        # The schedule rule is asked with the depths that are tried; no other looks at them.
        most = most_stages(shape, operands, hardware)
        deepest = replace(shape, stages=most)
        if any(rule.violation(deepest, operands, hardware) for rule in CONFIG_RULES):
            continue
        space += [replace(shape, stages=s) for s in _stages_tried(most, pilot.deep)]
        space += [replace(deepest, raster=raster, swizzle=band) for raster, band in others]
    return tuple(sorted(space))
