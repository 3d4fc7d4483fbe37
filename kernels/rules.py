"""What leaves configs out of a space: rules with reasons, asked in one way for every family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilecast.heuristics.config import Geometry, Resources
from tilecast.heuristics.config_table import ConfigColumns, ConfigTable
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.family import HARDWARE, PROBLEM, Rule, Violation

L2_SLACK = 3.5
"""How many times the problem's floor a config may take for its loads from L2. On the pilot no
config within 5% of the best took more than 3.21 times."""
FLOOR_SECONDS = 3e-6
"""Added to the roofline: launch and first load, which no small problem escapes."""


TILE_K_BYTES = (128, 256)
TMA_ROWS = 8
"""Rows of the shared-memory swizzle atom; a multicast slice cannot cut through one."""

SmemBytes = Callable[[Any, GemmOperands], int]
"""Shared memory of one CTA of a config, or of one of its stages."""


@dataclass(frozen=True)
class ConfigRule(Rule):
    """One condition on a config, whatever m, n, k."""

    violation: Callable[[Any, GemmOperands, Hardware], str | None]
    """Returns what is wrong, with the numbers, or None."""


@dataclass(frozen=True)
class ProblemRule(Rule):
    """One inequality between a config and a problem: a quantity may not exceed its limit."""

    quantity: str
    """What is limited."""
    sides: Callable[[ConfigColumns, GemmProblem, Hardware], tuple[np.ndarray, np.ndarray]]
    """Returns the quantity and its limit, an array each, one element per config."""


class RuledFamily:
    """The part of a `tilecast.kernels.family.KernelFamily` that its rules answer."""

    config_rules: ClassVar[tuple[ConfigRule, ...]]
    """What makes a config compile and run, and what a pilot left of that; one named ``axes`` ends
    the list of what is wrong with a config."""
    problem_rules: ClassVar[tuple[ProblemRule, ...]]
    """What arithmetic excludes for one problem."""
    geometry: Callable[[Any], Geometry]
    resources: Callable[[Any, GemmOperands], Resources]

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules, in the order in which they are asked."""
        return (*self.config_rules, *self.problem_rules)

    def excluded(
        self, problem: GemmProblem, columns: ConfigColumns, hardware: Hardware
    ) -> np.ndarray:
        """Where a problem rule is broken; bool [configs]."""
        broken = np.zeros(len(columns.tile_m), bool)
        for rule in self.problem_rules:
            value, limit = rule.sides(columns, problem, hardware)
            broken |= value > limit
        return broken

    def violations(
        self,
        config: Any,
        operands: GemmOperands,
        hardware: Hardware,
        problem: GemmProblem | None = None,
    ) -> Iterator[Violation]:
        """Every rule that a config breaks; none behind ``axes`` where it breaks that one."""
        for rule in self.config_rules:
            text = rule.violation(config, operands, hardware)
            if text:
                yield Violation(rule, text)
                if rule.name == "axes":
                    return
        if problem is None:
            return
        row = (config, self.geometry(config), self.resources(config, operands))
        columns = ConfigTable.of([row]).columns
        for rule in self.problem_rules:
            (value,), (limit,) = rule.sides(columns, problem, hardware)
            if value > limit:
                text = f"{rule.quantity} is {value:.4g}, allowed up to {limit:.4g}"
                yield Violation(rule, text)


def tile_ks(operands: GemmOperands) -> tuple[int, ...]:
    """Depths of a stage in elements of A: once or twice the 128 bytes of TMA's swizzle."""
    return tuple(size * 8 // operands.a.dtype.bits for size in TILE_K_BYTES)


def deepest(
    config: Any,
    operands: GemmOperands,
    hardware: Hardware,
    smem_bytes: SmemBytes,
    stage_bytes: SmemBytes,
    depths: Sequence[int],
) -> int:
    """The deepest pipeline of some depths that fits with a config's tile; 1 if none does."""
    left = hardware.smem_limit(config.ctas_per_sm) - smem_bytes(config, operands)
    fits = config.stages + left // stage_bytes(config, operands)
    return min(fits, depths[-1]) if fits >= depths[0] else 1


def registers_rule(
    taken: Callable[[Any, GemmOperands], tuple[int, int, int, int]],
) -> ConfigRule:
    """The rule that a family's warp groups get the registers that they take.

    Args:
        taken: of a config, per thread: what an MMA warp group needs and has, what one wgmma needs,
            and what the CTA is launched with.
    """

    def violation(config: Any, operands: GemmOperands, hardware: Hardware) -> str | None:
        need, have, instruction, launched = taken(config, operands)
        if need > have:
            return f"{need} registers per MMA thread, {have} to be had"
        if instruction > launched:
            return f"{instruction} registers for one wgmma, {launched} at launch"
        return None

    return ConfigRule(
        "registers",
        HARDWARE,
        "accumulators and addresses must fit into what setmaxnreg can give, or the kernel waits "
        "for ever for registers that the SM does not have; and the operands of one wgmma into the "
        "launch allocation, or ptxas refuses (C7602)",
        violation,
    )


def shared_memory_rule(smem_bytes: SmemBytes) -> ConfigRule:
    """The rule that what a family's CTA takes of shared memory is there."""

    def violation(config: Any, operands: GemmOperands, hardware: Hardware) -> str | None:
        need, have = smem_bytes(config, operands), hardware.smem_limit(config.ctas_per_sm)
        return None if need <= have else f"{need} bytes of shared memory, {have} to be had"

    return ConfigRule(
        "shared-memory",
        HARDWARE,
        "pipeline, epilogue buffers and barriers of all CTAs on an SM share its 228 KB",
        violation,
    )


def _multicast_slice(config: Any, operands: GemmOperands, hardware: Hardware) -> str | None:
    for extent, sharers, name in (
        (config.tile_m, config.cluster_n, "tile_m"),
        (config.tile_n, config.cluster_m, "tile_n"),
    ):
        if extent % (sharers * TMA_ROWS):
            return f"{name} {extent} does not split into {sharers} slices of whole {TMA_ROWS} rows"
    return None


MULTICAST_SLICE = ConfigRule(
    "multicast-slice",
    HARDWARE,
    "each CTA of a cluster loads an equal slice of the shared tile, in whole swizzle atoms",
    _multicast_slice,
)


def off_axis(name: str, value: object, allowed: tuple) -> str | None:
    """What is wrong where a value is none of those that a family was written for."""
    return None if value in allowed else f"{name} is {value}, allowed {allowed}"


def extents(columns: ConfigColumns, problem: GemmProblem) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel's own m and n run over: the problem's n and m under swap_ab."""
    exchange = (problem.n - problem.m) * columns.swap_ab
    return problem.m + exchange, problem.n - exchange


def tiles(columns: ConfigColumns, problem: GemmProblem) -> tuple[np.ndarray, np.ndarray]:
    """Tiles along the kernel's own m and n."""
    rows, columns_ = extents(columns, problem)
    return np.ceil(rows / columns.tile_m), np.ceil(columns_ / columns.tile_n)


def _l2_traffic(columns: ConfigColumns, problem: GemmProblem, hardware: Hardware):
    dtype = problem.operands.a.dtype
    rows, columns_ = tiles(columns, problem)
    a, b = dtype.bytes(1), problem.operands.b.dtype.bytes(1)
    exchange = (b - a) * columns.swap_ab
    loaded = columns.tile_m / columns.cluster_n * (a + exchange)
    loaded = loaded + columns.tile_n / columns.cluster_m * (b - exchange)
    traffic = rows * columns_ * problem.batch * loaded * problem.k
    floor = hardware.roofline_seconds(problem.flops, problem.min_bytes, dtype) + FLOOR_SECONDS
    return traffic / hardware.l2_bytes_per_second * 1e6, 0 * traffic + L2_SLACK * floor * 1e6


def _next_smaller(axis: tuple[int, ...]) -> np.ndarray:
    """For each value of an axis the next smaller one, 0 for the smallest; as a table by value."""
    table = np.zeros(axis[-1] + 1)
    table[list(axis)] = (0, *axis[:-1])
    return table


def idle_rules(tile_m: tuple[int, ...], tile_n: tuple[int, ...]) -> tuple[ProblemRule, ...]:
    """Rules against tiles and clusters that cover nothing, for a family with these tiles."""
    smaller_m, smaller_n = _next_smaller(tile_m), _next_smaller(tile_n)
    return (
        ProblemRule(
            "idle-rows",
            PROBLEM,
            "a smaller tile that already covers the whole extent leaves fewer rows of nothing",
            "the next smaller tile_m",
            lambda c, problem, _: (smaller_m[c.tile_m.astype(int)], extents(c, problem)[0] - 1),
        ),
        ProblemRule(
            "idle-columns",
            PROBLEM,
            "a smaller tile that already covers the whole extent leaves fewer columns of nothing",
            "the next smaller tile_n",
            lambda c, problem, _: (smaller_n[c.tile_n.astype(int)], extents(c, problem)[1] - 1),
        ),
        ProblemRule(
            "idle-cluster-m",
            PROBLEM,
            "a CTA of a cluster that has no tile along m takes an SM and multiplies nothing",
            "cluster_m",
            lambda c, problem, _: (c.cluster_m, tiles(c, problem)[0]),
        ),
        ProblemRule(
            "idle-cluster-n",
            PROBLEM,
            "a CTA of a cluster that has no tile along n takes an SM and multiplies nothing",
            "cluster_n",
            lambda c, problem, _: (c.cluster_n, tiles(c, problem)[1]),
        ),
    )


def idle_order_rule(first: tuple[str, int]) -> ProblemRule:
    """The rule against orders of tiles other than a family's first where there is none to choose.

    The first is a raster and a swizzle.

    Where k is split every tile has a cluster of its own, so that there is none either.
    """

    def sides(columns: ConfigColumns, problem: GemmProblem, hardware: Hardware):
        raster, swizzle = first
        reordered = (columns.raster_m != (raster == "m")) | (columns.swizzle != swizzle)
        rows, columns_ = tiles(columns, problem)
        waves = rows * columns_ * problem.batch / (hardware.sm_count * columns.ctas_per_sm)
        choice = (waves > 1) & (rows > 1) & (columns_ > 1) & (columns.split_k == 1)
        return 1.0 * reordered, 1.0 * choice

    return ProblemRule(
        "idle-order",
        PROBLEM,
        "when one wave holds all tiles, or they form one row, there is no order to choose",
        "a raster order other than the first",
        sides,
    )


L2_TRAFFIC = ProblemRule(
    "l2-traffic",
    PROBLEM,
    "small tiles load the same operands so often that L2 alone takes longer than a better "
    "tile needs for everything",
    "microseconds of loads from L2, multicast counted once",
    _l2_traffic,
)
