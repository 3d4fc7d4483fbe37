"""Rules of a space: why configs are left out, each written once for many configs at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from tilecast.heuristics.config import Geometry
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem

HARDWARE, MEASURED, PROBLEM = "hardware", "measured", "problem"
"""Kinds of rules: what does not compile or run; what a pilot showed never to be near the best; what
arithmetic excludes for one m, n, k."""

L2_SLACK = 3.5
"""How many times the problem's floor a config may take for its loads from L2. On the pilot no
config within 5% of the best took more than 3.21 times."""
FLOOR_SECONDS = 3e-6
"""Added to the roofline: launch and first load, which no small problem escapes."""
TILE_K_BYTES = (128, 256)
TMA_ROWS = 8
"""Rows of the shared-memory swizzle atom; a multicast slice cannot cut through one."""

Conditions = Iterator[tuple[Any, ...]]
"""Each is what breaks a rule, a bool for each config or one for all; what is wrong, in words; and
the numbers that fill the braces of the words, one for each config or one for all."""
Subject = TypeVar("Subject", GemmOperands, GemmProblem)


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """Why configs are left out of a space."""

    name: str
    """Short key, used by ``tilecast space``."""
    kind: str
    """`HARDWARE`, `MEASURED` or `PROBLEM`."""
    reason: str
    """Why such a config cannot run, or cannot pay."""
    conditions: Callable[[Geometry, Subject, Hardware], Conditions]
    """What breaks it, of some configs for operands, or for a problem, on a GPU."""

    def broken(self, configs: Geometry, subject: Subject, hardware: Hardware) -> np.ndarray:
        """Which configs break it; bool [configs]."""
        broken = np.zeros(len(configs), bool)
        for found, *_ in self.conditions(configs, subject, hardware):
            broken |= found
        return broken

    def violation(self, config: Geometry, subject: Subject, hardware: Hardware) -> str | None:
        """What is wrong with a single config, with the numbers; None where it keeps the rule."""
        for found, text, *numbers in self.conditions(config, subject, hardware):
            if np.all(found):
                return text.format(*(np.ravel(number)[0] for number in numbers))
        return None


def rule(kind: str, reason: str) -> Callable[[Callable[..., Conditions]], Rule[Any]]:
    """Make a rule of its conditions, with the name of the function that states them."""

    def make(conditions: Callable[..., Conditions]) -> Rule[Any]:
        name = conditions.__name__.strip("_").replace("_", "-")
        return Rule(name, kind, reason, conditions)

    return make


def tile_ks(operands: GemmOperands) -> tuple[int, ...]:
    """Depths of a stage in elements of A: once or twice the 128 bytes of TMA's swizzle."""
    return tuple(size * 8 // operands.a.dtype.bits for size in TILE_K_BYTES)


def off_axis(name: str, value: np.ndarray, allowed: Sequence[int]) -> tuple[Any, ...]:
    """The condition that a value is none of those that a family was written for."""
    return ~np.isin(value, allowed), f"{name} is {{}}, allowed {tuple(allowed)}", value


@rule(
    HARDWARE,
    "each CTA of a cluster loads an equal slice of the shared tile, in whole swizzle atoms",
)
def multicast_slice(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Conditions:
    """Slices of a tile that CTAs share."""
    for name, extent, sharers in (
        ("tile_m", c.tile_m, c.cluster_n),
        ("tile_n", c.tile_n, c.cluster_m),
    ):
        text = f"{name} {{}} does not split into {{}} slices of whole {TMA_ROWS} rows"
        yield extent % (sharers * TMA_ROWS) != 0, text, extent, sharers


def extents(c: Geometry, problem: GemmProblem) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel's own m and n run over: the problem's n and m under swap_ab."""
    exchange = (problem.n - problem.m) * c.swap_ab
    return problem.m + exchange, problem.n - exchange


def tiles(c: Geometry, problem: GemmProblem) -> tuple[np.ndarray, np.ndarray]:
    """Tiles along the kernel's own m and n."""
    rows, columns = extents(c, problem)
    return np.ceil(rows / c.tile_m), np.ceil(columns / c.tile_n)


def above(quantity: str, value: np.ndarray, limit: Any) -> tuple[Any, ...]:
    """The condition that a quantity exceeds its limit."""
    return value > limit, f"{quantity} is {{:.4g}}, allowed up to {{:.4g}}", value, limit


@rule(
    PROBLEM,
    "small tiles load the same operands so often that L2 alone takes longer than a better "
    "tile needs for everything",
)
def l2_traffic(c: Geometry, problem: GemmProblem, hardware: Hardware) -> Conditions:
    """Loads from L2."""
    dtype = problem.operands.a.dtype
    rows, columns = tiles(c, problem)
    a, b = dtype.bytes(1), problem.operands.b.dtype.bytes(1)
    exchange = (b - a) * c.swap_ab
    loaded = c.tile_m / c.cluster_n * (a + exchange)
    loaded = loaded + c.tile_n / c.cluster_m * (b - exchange)
    traffic = rows * columns * problem.batch * loaded * problem.k
    floor = hardware.roofline_seconds(problem.flops, problem.min_bytes, dtype) + FLOOR_SECONDS
    taken = traffic / hardware.l2_bytes_per_second * 1e6
    yield above(
        "microseconds of loads from L2, multicast counted once", taken, L2_SLACK * floor * 1e6
    )


def _next_smaller(axis: tuple[int, ...]) -> np.ndarray:
    """For each value of an axis the next smaller one, 0 for the smallest; as a table by value."""
    table = np.zeros(axis[-1] + 1)
    table[list(axis)] = (0, *axis[:-1])
    return table


def idle_rules(tile_m: tuple[int, ...], tile_n: tuple[int, ...]) -> tuple[Rule[GemmProblem], ...]:
    """Rules against tiles and clusters that cover nothing, for a family with these tiles."""
    smaller_m, smaller_n = _next_smaller(tile_m), _next_smaller(tile_n)

    covers = "a smaller tile that already covers the whole extent leaves fewer {} of nothing"
    idles = "a CTA of a cluster that has no tile along {} takes an SM and multiplies nothing"

    @rule(PROBLEM, covers.format("rows"))
    def idle_rows(c: Geometry, problem: GemmProblem, _: Hardware) -> Conditions:
        rows, _columns = extents(c, problem)
        yield above("the next smaller tile_m", smaller_m[c.tile_m.astype(int)], rows - 1)

    @rule(PROBLEM, covers.format("columns"))
    def idle_columns(c: Geometry, problem: GemmProblem, _: Hardware) -> Conditions:
        _rows, columns = extents(c, problem)
        yield above("the next smaller tile_n", smaller_n[c.tile_n.astype(int)], columns - 1)

    @rule(PROBLEM, idles.format("m"))
    def idle_cluster_m(c: Geometry, problem: GemmProblem, _: Hardware) -> Conditions:
        yield above("cluster_m", c.cluster_m, tiles(c, problem)[0])

    @rule(PROBLEM, idles.format("n"))
    def idle_cluster_n(c: Geometry, problem: GemmProblem, _: Hardware) -> Conditions:
        yield above("cluster_n", c.cluster_n, tiles(c, problem)[1])

    return idle_rows, idle_columns, idle_cluster_m, idle_cluster_n


def idle_order_rule(raster: str, swizzle: int) -> Rule[GemmProblem]:
    """The rule against orders of tiles other than a family's first where there is none to choose.

    Where k is split every tile has a cluster of its own, so that there is none either.
    """

    @rule(
        PROBLEM,
        "when one wave holds all tiles, or they form one row, there is no order to choose",
    )
    def idle_order(c: Geometry, problem: GemmProblem, hardware: Hardware) -> Conditions:
        rows, columns = tiles(c, problem)
        waves = rows * columns * problem.batch / (hardware.sm_count * c.ctas_per_sm)
        choice = (waves > 1) & (rows > 1) & (columns > 1) & (c.split_k == 1)
        reordered = (c.raster_m != (raster == "m")) | (c.swizzle != swizzle)
        yield reordered & ~choice, f"the order is not {raster}{swizzle}, and makes no difference"

    return idle_order
