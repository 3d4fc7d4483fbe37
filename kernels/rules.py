"""Rules of a space: why configs are left out, each written once for many configs at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np

from tilecast.heuristics.config import Geometry
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import EPILOGUES, K_GROUPS, ROW_GROUPS, GemmOperands
from tilecast.heuristics.problem import GemmProblem

HARDWARE, MEASURED, PROBLEM = "hardware", "measured", "problem"
"""Kinds of rules: what does not compile or run; what a pilot showed never to be near the best; what
arithmetic excludes for one m, n, k."""
INVARIANT = "invariant"
"""Rules against what would give a row of the result other bits in another batch."""

L2_SLACK = 3.5
"""How many times the problem's floor a config may take for its loads from L2. On the pilot no
config within 5% of the best took more than 3.21 times."""
FLOOR_SECONDS = 3e-6
"""Added to the roofline: launch and first load, which no small problem escapes."""
TMA_ROWS = 8
"""Rows of the shared-memory swizzle atom; a multicast slice cannot cut through one."""

GROUP_SKEW = 4
"""How many times its share of the rows a group may have that a tile should cover."""

SPLIT_WAVES = 2
"""A split pays while all CTAs run at once, or nearly: most waves that it may make."""
SPLIT_K_BYTES = 512
"""Least stretch of k of one CTA of a split: four stages of the smallest size."""

Broken = np.ndarray | bool
"""Which of some configs break a rule: a bool for each config, or one for all."""
Subject = TypeVar("Subject", GemmOperands, GemmProblem)


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """Why configs are left out of a space."""

    name: str
    """Short key, used by ``tilecast space``."""
    kind: str
    """`HARDWARE`, `MEASURED`, `PROBLEM` or `INVARIANT`."""
    reason: str
    """Why such a config cannot run, or cannot pay."""
    breaks: Callable[[Geometry, Subject, Hardware], Broken]
    """What breaks it, of some configs for operands, or for a problem, on a GPU."""

    def broken(self, configs: Geometry, subject: Subject, hardware: Hardware) -> np.ndarray:
        """Which configs break it; bool [configs]."""
        return np.broadcast_to(self.breaks(configs, subject, hardware), len(configs))


def rule(kind: str, reason: str) -> Callable[[Callable[..., Broken]], Rule[Any]]:
    """Make a rule of what breaks it, with the name of the function that says so."""

    def make(breaks: Callable[..., Broken]) -> Rule[Any]:
        name = breaks.__name__.strip("_").replace("_", "-")
        return Rule(name, kind, reason, breaks)

    return make


def off_axes(
    c: Geometry,
    axes: Iterable[tuple[np.ndarray, Sequence[int]]],
    clusters: Iterable[tuple[int, int]],
) -> np.ndarray:
    """Which configs have a value that is not on its axis, or none of some clusters; bool [configs].

    Args:
        c: the configs.
        axes: the values of a knob, and those that are allowed.
        clusters: those that are allowed, along m and along n.
    """
    known = [np.isin(value, allowed) for value, allowed in axes]
    shaped = [(c.cluster_m == m) & (c.cluster_n == n) for m, n in clusters]
    return ~np.logical_and.reduce([*known, np.logical_or.reduce(shaped)])


@rule(
    HARDWARE,
    "each CTA of a cluster loads an equal slice of the shared tile, in whole swizzle atoms of "
    f"{TMA_ROWS} rows",
)
def multicast_slice(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    """Slices of a tile that CTAs share."""
    cut_m = c.tile_m % (c.cluster_n * TMA_ROWS) != 0
    cut_n = c.tile_n % (c.cluster_m * TMA_ROWS) != 0
    return cut_m | cut_n


def groups_as_stored(operands: GemmOperands) -> bool:
    """Whether kernels read groups as these operands have them, or there are none.

    They have 16 bits and no scales, or are fp8 scaled by rows and not gated; nothing is added, and
    what they share is stored one after the other.
    """
    a, b = operands.a.dtype, operands.b.dtype
    if not operands.groups:
        return True
    one_after_the_other = operands.layout[::2] == "rr"
    if operands.groups == K_GROUPS:
        one_after_the_other = operands.layout == "crr"
    alone = not any(EPILOGUES[step].extras for step in operands.epilogue)
    scaled = operands.scales == "row-scales" and a.accumulator == "fp22" and not operands.gate
    narrow = operands.out.dtype.bits == 16 and (scaled or a.bits == b.bits == 16)
    return one_after_the_other and alone and narrow


@rule(
    HARDWARE,
    "where groups end is known on the device alone, which hands out tiles of rows along its own m "
    "and each with all of a group's k",
)
def groups(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    """What groups do not go with."""
    return bool(operands.groups) & ((c.swap_ab == 1) | (c.split_k > 1))


@rule(PROBLEM, "a split of k pays by filling the GPU, which more tiles fill without it")
def split_waves(c: Geometry, problem: GemmProblem, hardware: Hardware) -> Broken:
    """Splits of many tiles."""
    rows, columns = tiles(c, problem)
    ctas = rows * columns * problem.products * c.split_k * (c.split_k > 1)
    return ctas / (hardware.sm_count * c.ctas_per_sm) > SPLIT_WAVES


@rule(PROBLEM, "each CTA of a split, and each stretch of k, needs some stages to multiply")
def split_stretch(c: Geometry, problem: GemmProblem, hardware: Hardware) -> Broken:
    """Splits of a short k."""
    most = problem.operands.a.dtype.bytes(problem.k) / SPLIT_K_BYTES
    stretches = problem.operands.stretches
    return (c.split_k * (c.split_k > 1) > most) | (stretches > max(most, 1))


@rule(HARDWARE, "its instructions are those of another architecture than this GPU's")
def architecture(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    """Breaks every kernel, on a GPU that its family does not run on."""
    return True


def extents(c: Geometry, problem: GemmProblem) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel's own m and n run over: the problem's n and m under swap_ab."""
    exchange = (problem.n - problem.rows) * c.swap_ab
    return problem.rows + exchange, problem.n - exchange


@lru_cache(maxsize=1)
def tiles(c: Geometry, problem: GemmProblem) -> tuple[np.ndarray, np.ndarray]:
    """Tiles along the kernel's own m and n; rules ask in turn about the same configs."""
    rows, columns = extents(c, problem)
    return np.ceil(rows / c.tile_m), np.ceil(columns / c.tile_n)


@rule(
    PROBLEM,
    "small tiles load the same operands so often that L2 alone takes longer than a better "
    "tile needs for everything",
)
def l2_traffic(c: Geometry, problem: GemmProblem, hardware: Hardware) -> Broken:
    """Loads from L2."""
    dtype = problem.operands.a.dtype
    rows, columns = tiles(c, problem)
    a, b = dtype.bytes(1), problem.operands.b.dtype.bytes(1)
    exchange = (b - a) * c.swap_ab
    loaded = c.tile_m / c.cluster_n * (a + exchange)
    loaded = loaded + c.tile_n / c.cluster_m * (b - exchange)
    traffic = rows * columns * problem.products * loaded * problem.depth
    floor = hardware.roofline_seconds(problem.flops, problem.min_bytes, dtype) + FLOOR_SECONDS
    return traffic / hardware.l2_bytes_per_second * 1e6 > L2_SLACK * floor * 1e6


def _next_smaller(axis: tuple[int, ...]) -> np.ndarray:
    """For each value of an axis the next smaller one, 0 for the smallest; as a table by value."""
    table = np.zeros(axis[-1] + 1)
    table[list(axis)] = (0, *axis[:-1])
    return table


def idle_rules(
    tile_m: tuple[int, ...], tile_n: tuple[int, ...], raster: str, swizzle: int
) -> tuple[Rule[GemmProblem], ...]:
    """Rules against what covers or decides nothing, for a family with these tiles.

    ``raster`` and ``swizzle`` are the family's first order of tiles, which is kept where there is
    none to choose. Where k is split every tile has a cluster of its own, so that there is none.
    """
    smaller_m, smaller_n = _next_smaller(tile_m), _next_smaller(tile_n)

    @rule(
        PROBLEM,
        "a smaller tile that already covers the whole extent leaves fewer rows or columns of "
        "nothing",
    )
    def idle_tile(c: Geometry, problem: GemmProblem, _: Hardware) -> Broken:
        rows, columns = extents(c, problem)
        if problem.operands.groups == ROW_GROUPS:
            rows = np.minimum(GROUP_SKEW * rows, problem.m)
        covers_rows = smaller_m[c.tile_m.astype(int)] >= rows
        return covers_rows | (smaller_n[c.tile_n.astype(int)] >= columns)

    @rule(PROBLEM, "a CTA of a cluster that has no tile takes an SM and multiplies nothing")
    def idle_cluster(c: Geometry, problem: GemmProblem, _: Hardware) -> Broken:
        rows, columns = tiles(c, problem)
        return (c.cluster_m > rows) | (c.cluster_n > columns)

    @rule(
        PROBLEM,
        "when one wave holds all tiles, or they form one row, there is no order to choose",
    )
    def idle_order(c: Geometry, problem: GemmProblem, hardware: Hardware) -> Broken:
        rows, columns = tiles(c, problem)
        waves = rows * columns * problem.products / (hardware.sm_count * c.ctas_per_sm)
        choice = (waves > 1) & (rows > 1) & (columns > 1) & (c.split_k == 1)
        reordered = (c.raster_m != (raster == "m")) | (c.swizzle != swizzle)
        return reordered & ~choice

    return idle_tile, idle_cluster, idle_order
