"""The candidate space of the SM90 kernel, and the only statement of which configs are valid.

A `Rule` is one inequality with its reason. `RULES` depend on config, operands and GPU alone; a config
that passes them compiles and runs. `PROBLEM_RULES` drop configs that cannot pay for a given m, n, k.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmOperands, GemmProblem
from tilecast.heuristics.resources import (
    ADDRESSING_REGISTERS,
    TMA_ROWS,
    WGMMA_M,
    accumulator_registers,
    launch_registers,
    mma_registers,
    smem_bytes,
    smem_limit,
)

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

@dataclass(frozen=True)
class Rule:
    """One condition on a config."""

    name: str
    """Short key, used by ``tilecast space``."""
    reason: str
    """Why the hardware asks for it."""
    complaint: Callable[..., str | None]
    """Takes config and operands and GPU (`RULES`) or config and problem (`PROBLEM_RULES`); returns what
    is wrong, or None."""


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


def _warp_group_rows(config: KernelConfig, operands: GemmOperands, hardware: Hardware) -> str | None:
    rows = config.warp_groups * WGMMA_M
    return None if config.tile_m % rows == 0 else f"{rows} rows do not divide tile_m {config.tile_m}"


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


def _multicast_slice(config: KernelConfig, operands: GemmOperands, hardware: Hardware) -> str | None:
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
        "accumulators and addresses must fit into what setmaxnreg can give, or the kernel waits for "
        "ever for registers that the SM does not have; and the operands of one wgmma into the launch "
        "allocation, or ptxas refuses (C7602)",
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


def kernel_extents(config: KernelConfig, problem: GemmProblem) -> tuple[int, int]:
    """The extents that the kernel's own m and n run over: exchanged under swap_ab."""
    return (problem.n, problem.m) if config.swap_ab else (problem.m, problem.n)


def _idle_tile(config: KernelConfig, problem: GemmProblem) -> str | None:
    rows, columns = kernel_extents(config, problem)
    for name, tile, smaller, extent in (
        ("tile_m", config.tile_m, _next_smaller(TILE_M, config.tile_m), rows),
        ("tile_n", config.tile_n, _next_smaller(TILE_N, config.tile_n), columns),
    ):
        if smaller >= extent:
            return f"{name} {tile}: {smaller} already covers all {extent}"
    return None


def _idle_cluster(config: KernelConfig, problem: GemmProblem) -> str | None:
    rows, columns = kernel_extents(config, problem)
    for name, cluster, tiles in (
        ("cluster_m", config.cluster_m, -(-rows // config.tile_m)),
        ("cluster_n", config.cluster_n, -(-columns // config.tile_n)),
    ):
        if cluster > tiles:
            return f"{name} {cluster}: only {tiles} tiles to share among"
    return None


PROBLEM_RULES = (
    Rule(
        "idle-tile",
        "a tile that a smaller one replaces whole only adds multiplications by nothing",
        _idle_tile,
    ),
    Rule(
        "idle-cluster",
        "a CTA of the cluster that has no tile takes an SM and multiplies nothing",
        _idle_cluster,
    ),
)
"""What rules a valid config out for one problem, by arithmetic."""


def _next_smaller(axis: tuple[int, ...], value: int) -> int:
    index = axis.index(value)
    return axis[index - 1] if index else 0


def complaints(
    config: KernelConfig,
    operands: GemmOperands,
    hardware: Hardware,
    problem: GemmProblem | None = None,
) -> Iterator[tuple[Rule, str]]:
    """Every rule that a config breaks, with the numbers.

    With ``problem``, the rules that depend on its extents are asked too. Rules behind ``axes`` are only
    asked once that one holds.
    """
    for rule in RULES:
        text = rule.complaint(config, operands, hardware)
        if text:
            yield rule, text
            if rule.name == "axes":
                return
    for rule in PROBLEM_RULES if problem else ():
        text = rule.complaint(config, problem)
        if text:
            yield rule, text


@lru_cache(maxsize=16)
def valid_configs(operands: GemmOperands, hardware: Hardware) -> tuple[KernelConfig, ...]:
    """Every config of the axes that compiles and runs for these operands on this GPU, sorted."""
    configs = (
        KernelConfig(tm, tn, tk, cm, cn, stages, groups, ctas, raster, swizzle, 1, swap)
        for tm, tn, tk, (cm, cn), stages, groups, ctas, raster, swizzle, swap in itertools.product(
            TILE_M, TILE_N, TILE_K, CLUSTERS, STAGES, WARP_GROUPS, CTAS_PER_SM, RASTERS, SWIZZLES,
            (False, True),
        )
    )  # fmt: skip
    return tuple(
        sorted(c for c in configs if not any(True for _ in complaints(c, operands, hardware)))
    )


@lru_cache(maxsize=4096)
def candidates(problem: GemmProblem, hardware: Hardware) -> tuple[KernelConfig, ...]:
    """The configs worth measuring for a problem, sorted: valid, and ruled out by no arithmetic."""
    return tuple(
        config
        for config in valid_configs(problem.operands, hardware)
        if not any(rule.complaint(config, problem) for rule in PROBLEM_RULES)
    )
