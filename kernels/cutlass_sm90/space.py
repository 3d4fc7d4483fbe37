"""The candidate space of the SM90 kernel, and the only statement of which configs are in it.

Three kinds of rules, each with its reason. `RULES`: what does not compile, or hangs, on the
hardware. `MEASURED_RULES`: what a pilot on the GPU showed to be never near the best
(benchmarks/space_pruning.py). `PROBLEM_RULES`: what arithmetic excludes for one m, n, k.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import DTYPE_BYTES, GemmOperands, GemmProblem
from tilecast.kernels.cutlass_sm90.exclusions import NEVER_NEAR, SCHEDULES, describe
from tilecast.kernels.cutlass_sm90.resources import (
    ADDRESSING_REGISTERS,
    TMA_ROWS,
    WGMMA_M,
    accumulator_registers,
    launch_registers,
    mma_registers,
    smem_bytes,
    smem_limit,
)

if TYPE_CHECKING:
    import numpy as np

SPACE_VERSION = 1
"""Raised when a problem would be given other candidates."""

TILE_M = (64, 128, 256)
TILE_N = (16, 32, 48, 64, 96, 128, 160, 192, 224, 256)
TILE_K = (64, 128)
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))
STAGES = tuple(range(2, 13))
WARP_GROUPS = (1, 2)
CTAS_PER_SM = (1, 2)
RASTERS = ("m", "n")
SWIZZLES = (1, 2, 4, 8)

DEEP = 6
"""A pipeline that holds this many stages is worth trying with fewer, too."""
L2_BYTES_PER_SECOND = 5.5e12
"""What all SMs together load from L2 on an H200; only its order of magnitude matters."""
L2_SLACK = 3.5
"""How many times the problem's floor a config may take for its loads from L2. On the pilot no
config within 5% of the best took more than 3.21 times."""
FLOOR_SECONDS = 3e-6
"""Added to the roofline: launch and first load, which no small problem escapes."""


@dataclass(frozen=True)
class Rule:
    """One condition on a config."""

    name: str
    """Short key, used by ``tilecast space``."""
    reason: str
    """Why the hardware asks for it."""
    complaint: Callable[[KernelConfig, GemmOperands, Hardware], str | None]
    """Returns what is wrong, with the numbers, or None."""


def _axis(name: str, value: object, allowed: tuple) -> str | None:
    return None if value in allowed else f"{name} is {value}, allowed {allowed}"


def _off_axis(config: KernelConfig, operands: GemmOperands, hardware: Hardware) -> str | None:
    return (
        _axis("tile_m", config.tile_m, TILE_M)
        or _axis("tile_n", config.tile_n, TILE_N)
        or _axis("tile_k", config.tile_k, TILE_K)
        or _axis("cluster", (config.cluster_m, config.cluster_n), CLUSTERS)
        or _axis("stages", config.stages, STAGES)
        or _axis("warp_groups", config.warp_groups, WARP_GROUPS)
        or _axis("ctas_per_sm", config.ctas_per_sm, CTAS_PER_SM)
        or _axis("raster", config.raster, RASTERS)
        or _axis("swizzle", config.swizzle, SWIZZLES)
        or _axis("split_k", config.split_k, (1,))
    )


def _warp_group_rows(
    config: KernelConfig, operands: GemmOperands, hardware: Hardware
) -> str | None:
    rows = config.warp_groups * WGMMA_M
    return (
        None if config.tile_m % rows == 0 else f"{rows} rows do not divide tile_m {config.tile_m}"
    )


def _registers(config: KernelConfig, operands: GemmOperands, hardware: Hardware) -> str | None:
    need = accumulator_registers(config) + ADDRESSING_REGISTERS
    have = mma_registers(config)
    if need > have:
        return f"{need} registers per MMA thread, {have} to be had"
    instruction = config.tile_n // 2 + ADDRESSING_REGISTERS
    launched = launch_registers(config)
    if instruction > launched:
        return f"{instruction} registers for one wgmma, {launched} at launch"
    return None


def _shared_memory(config: KernelConfig, operands: GemmOperands, hardware: Hardware) -> str | None:
    need, have = smem_bytes(config, operands), smem_limit(config, hardware)
    return None if need <= have else f"{need} bytes of shared memory, {have} to be had"


def _multicast_slice(
    config: KernelConfig, operands: GemmOperands, hardware: Hardware
) -> str | None:
    for extent, sharers, name in (
        (config.tile_m, config.cluster_n, "tile_m"),
        (config.tile_n, config.cluster_m, "tile_n"),
    ):
        if extent % (sharers * TMA_ROWS):
            return f"{name} {extent} does not split into {sharers} slices of whole {TMA_ROWS} rows"
    return None


RULES = (
    Rule(
        "axes",
        "the kernel was written and measured for these values",
        _off_axis,
    ),
    Rule(
        "warp-group-rows",
        "each MMA warp group multiplies whole blocks of 64 rows (wgmma m64)",
        _warp_group_rows,
    ),
    Rule(
        "registers",
        "accumulators and addresses must fit into what setmaxnreg can give, or the kernel waits "
        "for ever for registers that the SM does not have; and the operands of one wgmma into the "
        "launch allocation, or ptxas refuses (C7602)",
        _registers,
    ),
    Rule(
        "shared-memory",
        "pipeline, epilogue buffers and barriers of all CTAs on an SM share its 228 KB",
        _shared_memory,
    ),
    Rule(
        "multicast-slice",
        "each CTA of a cluster loads an equal slice of the shared tile, in whole swizzle atoms",
        _multicast_slice,
    ),
)
"""What makes a config compile and run, whatever it multiplies."""


def most_stages(config: KernelConfig, operands: GemmOperands, hardware: Hardware) -> int:
    """The deepest pipeline that fits with the config's tile, within `STAGES`; 1 if none does."""
    none, one = (smem_bytes(replace(config, stages=stages), operands) for stages in (0, 1))
    fits = (smem_limit(config, hardware) - none) // (one - none)
    return min(fits, STAGES[-1]) if fits >= STAGES[0] else 1


def _stages_tried(most: int) -> tuple[int, ...]:
    """Depths that are candidates when at most ``most`` stages fit."""
    return (most, most - 1, (most + 1) // 2) if most >= DEEP else (most,)


def _never_near(config: KernelConfig, operands: GemmOperands, hardware: Hardware) -> str | None:
    for loser in NEVER_NEAR:
        if loser.matches(config):
            return f"{describe(loser)} was {loser.margin:.1%} or more behind on every pilot problem"
    return None


def _schedule(config: KernelConfig, operands: GemmOperands, hardware: Hardware) -> str | None:
    most = most_stages(config, operands, hardware)
    if config.stages not in _stages_tried(most):
        return f"stages is {config.stages}, tried are {_stages_tried(most)}"
    if (config.raster, config.swizzle) not in SCHEDULES:
        return f"raster {config.raster} with swizzle {config.swizzle}, tried are {SCHEDULES}"
    if config.stages < most and (config.raster, config.swizzle) != SCHEDULES[0]:
        return f"fewer stages than {most} are tried with raster {SCHEDULES[0]} only"
    return None


MEASURED_RULES = (
    Rule(
        "never-near",
        "on no pilot problem did a config with these values come within 2% of the best",
        _never_near,
    ),
    Rule(
        "schedule",
        "on the pilot the deepest pipeline won but for deep ones of small tiles, and three raster "
        "orders of eight did: what the rule leaves loses 0.16% (2.6% at most)",
        _schedule,
    ),
)
"""What the pilot excluded."""


@dataclass(frozen=True, eq=False)
class ConfigColumns:
    """The fields of many configs, one integer array each, for rules that look at all at once."""

    tile_m: np.ndarray
    tile_n: np.ndarray
    smaller_m: np.ndarray
    """The next smaller tile_m of the axis; 0 for the smallest."""
    smaller_n: np.ndarray
    cluster_m: np.ndarray
    cluster_n: np.ndarray
    ctas_per_sm: np.ndarray
    reordered: np.ndarray
    """1 where the raster order is not the first of `SCHEDULES`."""
    swap_ab: np.ndarray

    @classmethod
    def of(cls, configs: tuple[KernelConfig, ...]) -> ConfigColumns:
        """Columns of some configs, in their order."""
        import numpy as np

        table = np.array(
            [
                (
                    c.tile_m,
                    c.tile_n,
                    _next_smaller(TILE_M, c.tile_m),
                    _next_smaller(TILE_N, c.tile_n),
                    c.cluster_m,
                    c.cluster_n,
                    c.ctas_per_sm,
                    (c.raster, c.swizzle) != SCHEDULES[0],
                    c.swap_ab,
                )
                for c in configs
            ],
            np.int64,
        )
        return cls(*table.reshape(len(configs), 9).T)

    def extents(self, problem: GemmProblem) -> tuple[np.ndarray, np.ndarray]:
        """What the kernel's own m and n run over: the problem's n and m under swap_ab."""
        exchange = (problem.n - problem.m) * self.swap_ab
        return problem.m + exchange, problem.n - exchange

    def tiles(self, problem: GemmProblem) -> tuple[np.ndarray, np.ndarray]:
        """Tiles along the kernel's own m and n."""
        rows, columns = self.extents(problem)
        return -(-rows // self.tile_m), -(-columns // self.tile_n)


@dataclass(frozen=True)
class ProblemRule:
    """One inequality between a config and a problem: a quantity may not exceed its limit."""

    name: str
    """Short key, used by ``tilecast space``."""
    quantity: str
    """What is limited."""
    reason: str
    """Why a config beyond the limit cannot pay."""
    sides: Callable[[ConfigColumns, GemmProblem, Hardware], tuple[np.ndarray, np.ndarray]]
    """Returns the quantity and its limit, an array each, one element per config."""


def _idle_rows(columns: ConfigColumns, problem: GemmProblem, hardware: Hardware):
    return columns.smaller_m, columns.extents(problem)[0] - 1


def _idle_columns(columns: ConfigColumns, problem: GemmProblem, hardware: Hardware):
    return columns.smaller_n, columns.extents(problem)[1] - 1


def _idle_cluster_m(columns: ConfigColumns, problem: GemmProblem, hardware: Hardware):
    return columns.cluster_m, columns.tiles(problem)[0]


def _idle_cluster_n(columns: ConfigColumns, problem: GemmProblem, hardware: Hardware):
    return columns.cluster_n, columns.tiles(problem)[1]


def _idle_order(columns: ConfigColumns, problem: GemmProblem, hardware: Hardware):
    rows, columns_ = columns.tiles(problem)
    several_waves = rows * columns_ * problem.batch > hardware.sm_count * columns.ctas_per_sm
    return columns.reordered, 1 * (several_waves & (rows > 1) & (columns_ > 1))


def _l2_traffic(columns: ConfigColumns, problem: GemmProblem, hardware: Hardware):
    dtype = problem.operands.dtype
    rows, columns_ = columns.tiles(problem)
    loaded = columns.tile_m / columns.cluster_n + columns.tile_n / columns.cluster_m
    traffic = rows * columns_ * problem.batch * loaded * problem.k * DTYPE_BYTES[dtype]
    floor = hardware.roofline_seconds(problem.flops, problem.min_bytes, dtype) + FLOOR_SECONDS
    return traffic / L2_BYTES_PER_SECOND * 1e6, 0 * traffic + L2_SLACK * floor * 1e6


PROBLEM_RULES = (
    ProblemRule(
        "idle-rows",
        "the next smaller tile_m",
        "a smaller tile that already covers the whole extent leaves fewer rows of nothing",
        _idle_rows,
    ),
    ProblemRule(
        "idle-columns",
        "the next smaller tile_n",
        "a smaller tile that already covers the whole extent leaves fewer columns of nothing",
        _idle_columns,
    ),
    ProblemRule(
        "idle-cluster-m",
        "cluster_m",
        "a CTA of a cluster that has no tile along m takes an SM and multiplies nothing",
        _idle_cluster_m,
    ),
    ProblemRule(
        "idle-cluster-n",
        "cluster_n",
        "a CTA of a cluster that has no tile along n takes an SM and multiplies nothing",
        _idle_cluster_n,
    ),
    ProblemRule(
        "idle-order",
        "a raster order other than the first",
        "when one wave holds all tiles, or they form one row, there is no order to choose",
        _idle_order,
    ),
    ProblemRule(
        "l2-traffic",
        "microseconds of loads from L2, multicast counted once",
        "small tiles load the same operands so often that L2 alone takes longer than a better "
        "tile needs for everything",
        _l2_traffic,
    ),
)
"""What arithmetic excludes for one problem."""


def _next_smaller(axis: tuple[int, ...], value: int) -> int:
    index = axis.index(value)
    return axis[index - 1] if index else 0


def complaints(
    config: KernelConfig,
    operands: GemmOperands,
    hardware: Hardware,
    problem: GemmProblem | None = None,
) -> Iterator[tuple[Rule | ProblemRule, str]]:
    """Every rule that a config breaks, with the numbers.

    With ``problem``, its rules are asked too. Rules behind ``axes`` are only asked once that one
    holds.
    """
    for rule in RULES + MEASURED_RULES:
        text = rule.complaint(config, operands, hardware)
        if text:
            yield rule, text
            if rule.name == "axes":
                return
    if problem is None:
        return
    columns = ConfigColumns.of((config,))
    for rule in PROBLEM_RULES:
        (value,), (limit,) = rule.sides(columns, problem, hardware)
        if value > limit:
            yield rule, f"{rule.quantity} is {value:.4g}, allowed up to {limit:.4g}"


def points() -> int:
    """How many points the axes span before any rule is asked."""
    axes = (TILE_M, TILE_N, TILE_K, CLUSTERS, STAGES, WARP_GROUPS, CTAS_PER_SM, RASTERS, SWIZZLES)
    total = 2  # swap_ab
    for axis in axes:
        total *= len(axis)
    return total


@lru_cache(maxsize=16)
def valid_configs(operands: GemmOperands, hardware: Hardware) -> tuple[KernelConfig, ...]:
    """The space: every config that no rule excludes for these operands on this GPU, sorted."""
    shapes = (
        KernelConfig(tm, tn, tk, cm, cn, 2, groups, ctas, *SCHEDULES[0], swap_ab=swap)
        for tm, tn, tk, (cm, cn), groups, ctas, swap in itertools.product(
            TILE_M, TILE_N, TILE_K, CLUSTERS, WARP_GROUPS, CTAS_PER_SM, (False, True)
        )
    )
    space = []
    for shape in shapes:
        # The schedule rule is asked with the depths that are tried; no other looks at them.
        most = most_stages(shape, operands, hardware)
        deepest = replace(shape, stages=most)
        if most in STAGES and not any(True for _ in complaints(deepest, operands, hardware)):
            space += [replace(shape, stages=stages) for stages in _stages_tried(most)]
            space += [replace(deepest, raster=r, swizzle=s) for r, s in SCHEDULES[1:]]
    return tuple(sorted(space))


@lru_cache(maxsize=16)
def _columns(operands: GemmOperands, hardware: Hardware) -> ConfigColumns:
    return ConfigColumns.of(valid_configs(operands, hardware))


@lru_cache(maxsize=4096)
def candidates(problem: GemmProblem, hardware: Hardware) -> tuple[KernelConfig, ...]:
    """The configs worth measuring for a problem: in the space and not excluded; sorted."""
    import numpy as np

    columns = _columns(problem.operands, hardware)
    kept = np.ones(len(columns.tile_m), bool)
    for rule in PROBLEM_RULES:
        value, limit = rule.sides(columns, problem, hardware)
        kept &= value <= limit
    space = valid_configs(problem.operands, hardware)
    return tuple(space[index] for index in np.flatnonzero(kept))
