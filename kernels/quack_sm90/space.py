"""The candidate space of QuACK's SM90 GEMM; nothing else says which configs are in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from tilecast.heuristics.config_table import ConfigColumns
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import KINDS_REMEMBERED, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.family import HARDWARE, MEASURED, PROBLEM
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
    L2_TRAFFIC,
    MULTICAST_SLICE,
    TILE_K_BYTES,
    ConfigRule,
    ProblemRule,
    deepest,
    idle_order_rule,
    idle_rules,
    off_axis,
    registers_rule,
    shared_memory_rule,
    tile_ks,
    tiles,
)

TILE_M = (64, 128, 192, 256, 320)
TILE_N = tuple(range(16, 257, 16))
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))
SPLITS = (1, 2, 3, 4, 6, 8)
MOST_CTAS = 16
"""Of a cluster that splits k; more than 8 are Hopper's alone (CUDA programming guide, clusters)."""
STAGES = tuple(range(2, 13))
SCHEDULES = ("coop", "pong")
CTAS_PER_SM = (1, 2)
ORDERS = (("m", 8), ("n", 8))
"""Raster and swizzle."""

NEVER_NEAR: tuple[tuple[dict[str, object], float], ...] = (
    ({"tile_m": 320}, 0.065),
    ({"tile_m": 256, "tile_k_bytes": 256}, 0.083),
    ({"tile_m": 256, "ctas_per_sm": 2}, 0.097),
    ({"tile_m": 256, "split": True}, 0.066),
    ({"tile_m": 192, "split": True}, 0.031),
    ({"cluster": (2, 2), "ctas_per_sm": 2}, 0.062),
    ({"cluster": (4, 1), "ctas_per_sm": 2}, 0.042),
    ({"cluster": (1, 4), "ctas_per_sm": 2}, 0.034),
)
"""Values that together were never near the best on any of the 60 problems of the pilot, and how far
behind their best config was, as a share of the best, where it came closest
(kernels/EXPERIMENTS.md). Finer classes are left to the model: what 45 problems never had near
the best was up to 11% ahead on the other 15."""

_SCALES = {
    (False, "int32"): ("tensor-scales", "row-scales", "out-row-scales"),
    (False, "fp22"): ("tensor-scales", "row-scales"),
    (False, "fp32"): (),
    (True, "fp32"): ("column-scales", "fp32-column-scales"),
}
"""How operands may be scaled, by whether B is converted and what A's are added up in."""

SPLIT_WAVES = 2
"""A split pays while all CTAs run at once, or nearly: most waves that it may make."""
SPLIT_K_BYTES = 512
"""Least stretch of k of one CTA of a split: four stages of the smallest size."""


def _unsupported(config: QuackConfig, operands: GemmOperands, hardware: Hardware) -> str | None:
    a, b, out = operands.a.dtype, operands.b.dtype, operands.out.dtype
    converted = (a.name, b.name) == ("bf16", "int8")
    if not converted and (
        b.bits != a.bits or (a.bits == 16 and b != a) or b.accumulator != a.accumulator
    ):
        return f"A is {a} and B {b}"
    if operands.scales and operands.scales not in _SCALES[converted, a.accumulator]:
        return f"{operands} scales A of {a} and B of {b}"
    if operands.fused and out.name == "int32":
        return f"{operands} fuses more than a product into whole numbers"
    floats = ("fp32",) if a.accumulator == "fp22" else ()
    if operands.acc.name not in (a.accumulator, *floats):
        return f"{operands} accumulates in {operands.acc}"
    across = (a.bits < 16 and operands.a.major != "row") or (
        b.bits < 16 and operands.b.major != "col"
    )
    if across:
        return f"layout {operands.layout}: 8-bit operands are read along k only"
    scaled = a.accumulator == "int32" and operands.scales
    if ((a.accumulator == "int32") != (out.name == "int32") and not scaled) or out.bits < 16:
        return f"{a} into {out}"
    return None


def _off_axis(config: QuackConfig, operands: GemmOperands, hardware: Hardware) -> str | None:
    return (
        off_axis("tile_m", config.tile_m, TILE_M)
        or off_axis("tile_n", config.tile_n, TILE_N)
        or off_axis("tile_k", config.tile_k, tile_ks(operands))
        or off_axis("cluster", (config.cluster_m, config.cluster_n), CLUSTERS)
        or off_axis("split_k", config.split_k, SPLITS)
        or off_axis("stages", config.stages, STAGES)
        or off_axis("schedule", config.schedule, SCHEDULES)
        or off_axis("ctas_per_sm", config.ctas_per_sm, CTAS_PER_SM)
        or off_axis("order", (config.raster, config.swizzle), ORDERS)
    )


def _warp_group_tile(config: QuackConfig, operands: GemmOperands, hardware: Hardware) -> str | None:
    if config.schedule == "pong" and config.tile_m > 192:
        return f"{config.tile_m} rows for one warp group, 192 are allowed"
    if warp_groups(config)[1] == 2 or config.tile_m in (192, 320):
        step = 16 if config.schedule == "pong" else 32
        if config.tile_n % step:
            return f"tile_n {config.tile_n} is no multiple of {step}"
    own_b_along_k = operands.a.major == "row" if config.swap_ab else operands.b.major == "col"
    if warp_groups(config)[1] == 2 and not own_b_along_k:
        return f"{config.tile_m} rows split along n, and layout {operands.layout} is not along k"
    return None


def _conversion(config: QuackConfig, operands: GemmOperands, hardware: Hardware) -> str | None:
    if not operands.converted:
        return None
    if not config.swap_ab:
        return "B is converted, and is not the kernel's own A"
    if warp_groups(config)[1] == 2:
        return f"{config.tile_m} rows are converted by two warp groups each"
    return None


def _split(config: QuackConfig, operands: GemmOperands, hardware: Hardware) -> str | None:
    if config.split_k == 1:
        return None
    if config.schedule != "coop":
        return f"split_k {config.split_k} with schedule {config.schedule}, allowed coop"
    if min(config.cluster_m, config.cluster_n) > 1:
        cluster = f"cluster {config.cluster_m}x{config.cluster_n}"
        return f"split_k {config.split_k} with {cluster}, loads are shared along one side"
    ctas = config.cluster_m * config.cluster_n * config.split_k
    if ctas > MOST_CTAS:
        return f"a cluster of {ctas} CTAs, {MOST_CTAS} are allowed"
    need, have = exchange_bytes(config, operands), config.stages * stage_bytes(config, operands)
    return None if need <= have else f"{need} bytes of sums to receive, {have} to be had"


def _registers(config: QuackConfig, operands: GemmOperands) -> tuple[int, int, int, int]:
    """What `registers_rule` asks for."""
    instruction = config.tile_n // warp_groups(config)[1] // 2
    return (
        mma_registers(config, operands),
        registers(config, operands)[1],
        instruction + ADDRESSING_REGISTERS,
        launch_registers(config),
    )


def most_stages(config: QuackConfig, operands: GemmOperands, hardware: Hardware) -> int:
    """The deepest pipeline that fits with the config's tile, within `STAGES`; 1 if none does."""
    return deepest(config, operands, hardware, smem_bytes, stage_bytes, STAGES)


def _depth(config: QuackConfig, operands: GemmOperands, hardware: Hardware) -> str | None:
    most = most_stages(config, operands, hardware)
    return None if config.stages == most else f"stages is {config.stages}, tried is {most}"


def _field(config: QuackConfig, operands: GemmOperands, name: str) -> object:
    match name:
        case "cluster":
            return (config.cluster_m, config.cluster_n)
        case "tile_k_bytes":
            return operands.a.dtype.bytes(config.tile_k)
        case "split":
            return config.split_k > 1
    return getattr(config, name)


def _never_near(config: QuackConfig, operands: GemmOperands, hardware: Hardware) -> str | None:
    for values, margin in NEVER_NEAR:
        if all(_field(config, operands, name) == value for name, value in values.items()):
            shown = " with ".join(f"{name} {value}" for name, value in values.items())
            return f"{shown} was {margin:.1%} or more behind on every pilot problem"
    return None


def _split_sharing(config: QuackConfig, operands: GemmOperands, hardware: Hardware) -> str | None:
    if config.split_k == 1 or (config.cluster_m, config.cluster_n) == (1, 1):
        return None
    if (config.cluster_m > 1) != (config.tile_n >= config.tile_m):
        return f"loads of the shorter side of {config.tile_m}x{config.tile_n} shared"
    deep = operands.a.dtype.bytes(config.tile_k)
    if (config.ctas_per_sm, deep) != (1, TILE_K_BYTES[0]):
        shape = f"{config.ctas_per_sm} CTAs per SM and stages of {deep:g} bytes"
        return f"{shape} where splits share loads, tried are 1 and {TILE_K_BYTES[0]}"
    return None


def _one_order(config: QuackConfig, operands: GemmOperands, hardware: Hardware) -> str | None:
    order = (config.raster, config.swizzle)
    if config.split_k > 1 and order != ORDERS[0]:
        return f"raster {order} with split_k {config.split_k}, allowed {ORDERS[0]}"
    return None


CONFIG_RULES = (
    ConfigRule(
        "operands",
        HARDWARE,
        "the kernel multiplies operands of one width, or bf16 and int8; it reads 8 bits along k "
        "and scales them alone; it fuses nothing into whole numbers",
        _unsupported,
    ),
    ConfigRule(
        "axes",
        HARDWARE,
        "the kernel was written and measured for these values",
        _off_axis,
    ),
    ConfigRule(
        "warp-group-tile",
        HARDWARE,
        "warp groups that split a tile along n store it in pieces of 32 columns and read their own "
        "B along k; two that take turns hold a tile each",
        _warp_group_tile,
    ),
    ConfigRule(
        "conversion",
        HARDWARE,
        "what is converted passes through registers, as the kernel's own A alone may; the warp "
        "group that converts a row multiplies it",
        _conversion,
    ),
    ConfigRule(
        "split",
        HARDWARE,
        "CTAs that split k add up through the shared memory that their stages leave",
        _split,
    ),
    registers_rule(_registers),
    shared_memory_rule(smem_bytes),
    MULTICAST_SLICE,
    ConfigRule(
        "one-order",
        HARDWARE,
        "where k is split every tile has a cluster of its own, in whatever order",
        _one_order,
    ),
    ConfigRule(
        "never-near",
        MEASURED,
        "on no pilot problem did a config with these values come near the best",
        _never_near,
    ),
    ConfigRule(
        "split-sharing",
        MEASURED,
        "where CTAs that split k share loads, those of the tile's longer side save most, and "
        "stages are plain",
        _split_sharing,
    ),
    ConfigRule("depth", MEASURED, "the deepest pipeline that fits is tried", _depth),
)
"""What makes a config compile and run, and what a pilot left of that."""
_OF_CLUSTERS = tuple(
    rule
    for rule in CONFIG_RULES
    if rule.name in ("split", "multicast-slice", "never-near", "split-sharing")
)
"""Those that look at the CTAs of a cluster: the others say the same of one CTA alone."""


def _split_waves(columns: ConfigColumns, problem: GemmProblem, hardware: Hardware):
    rows, columns_ = tiles(columns, problem)
    ctas = rows * columns_ * problem.batch * columns.split_k * (columns.split_k > 1)
    return ctas / (hardware.sm_count * columns.ctas_per_sm), 0 * ctas + SPLIT_WAVES


def _split_stretch(columns: ConfigColumns, problem: GemmProblem, hardware: Hardware):
    stretch = problem.operands.a.dtype.bytes(problem.k) / SPLIT_K_BYTES
    return columns.split_k * (columns.split_k > 1), 0 * columns.split_k + stretch


PROBLEM_RULES = (
    *idle_rules(TILE_M, TILE_N),
    ProblemRule(
        "split-waves",
        PROBLEM,
        "a split of k pays by filling the GPU, which more tiles fill without it",
        "waves of CTAs",
        _split_waves,
    ),
    ProblemRule(
        "split-stretch",
        PROBLEM,
        "each CTA of a split needs some stages of k to multiply",
        "split_k",
        _split_stretch,
    ),
    idle_order_rule(ORDERS[0]),
    L2_TRAFFIC,
)
"""What arithmetic excludes for one problem."""


def points(operands: GemmOperands) -> Iterator[QuackConfig]:
    """Every point that the axes span, valid or not."""
    for tile, cluster, split, rest, order, swap_ab in itertools.product(
        itertools.product(TILE_M, TILE_N, tile_ks(operands)),
        CLUSTERS,
        SPLITS,
        itertools.product(STAGES, SCHEDULES, CTAS_PER_SM),
        ORDERS,
        (False, True),
    ):
        yield QuackConfig(*tile, *cluster, split, *rest, *order, swap_ab)


@lru_cache(maxsize=KINDS_REMEMBERED)
def valid_configs(operands: GemmOperands, hardware: Hardware) -> tuple[QuackConfig, ...]:
    """The space: every config that no `CONFIG_RULES` exclude, sorted."""
    whole = [(*cluster, 1) for cluster in CLUSTERS]
    split = [(*cluster, parts) for cluster in CLUSTERS if 1 in cluster for parts in SPLITS[1:]]
    space = []

    def sound(config: QuackConfig, rules: Iterable[ConfigRule]) -> bool:
        return not any(rule.violation(config, operands, hardware) for rule in rules)

    for tile, schedule, ctas, swap_ab in itertools.product(
        itertools.product(TILE_M, TILE_N, tile_ks(operands)),
        SCHEDULES,
        CTAS_PER_SM,
        (False, True),
    ):
        alone = QuackConfig(*tile, 1, 1, 1, 2, schedule, ctas, *ORDERS[0], swap_ab)
        # What fits does not depend on the CTAs of a cluster, and no rule but the one about splits
        # looks at the order.
        stages = most_stages(alone, operands, hardware)
        if not sound(replace(alone, stages=stages), CONFIG_RULES):
            continue
        for cluster in (*whole, *split) if schedule == SCHEDULES[0] else whole:
            config = QuackConfig(*tile, *cluster, stages, schedule, ctas, *ORDERS[0], swap_ab)
            if sound(config, _OF_CLUSTERS):
                orders = ORDERS if config.split_k == 1 else ORDERS[:1]
                space += [
                    QuackConfig(*tile, *cluster, stages, schedule, ctas, *order, swap_ab)
                    for order in orders
                ]
    return tuple(sorted(space))
