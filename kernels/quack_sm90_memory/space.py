"""The candidate space of a split of k through memory on SM90: few tiles and a long k.

How each part is multiplied is as `tilecast.kernels.quack_sm90.space` has it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilecast.heuristics.config import Geometry
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import MATRIX, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.quack.parts import parts_of
from tilecast.kernels.quack_sm90 import space
from tilecast.kernels.quack_sm90.axes import SWIZZLE, Axes
from tilecast.kernels.rules import (
    HARDWARE,
    INVARIANT,
    PROBLEM,
    Broken,
    Rule,
    extents,
    idle_rules,
    l2_traffic,
    rule,
    tiles,
)
from tilecast.kernels.stages import tile_ks

AXES = Axes(
    tile_m=(64, 128, 192, 256),
    tile_n=tuple(range(16, 257, 16)),
    clusters=((1, 1), (1, 2), (2, 1)),
    splits=tuple(range(2, 9)),
    ctas_per_sm=(1,),
    schedules=("coop",),
    rasters=("m",),
)
LEAST_FILL = 0.7
"""Share of the SMs that a split has to occupy: chosen so that few candidates are left where those
of few CTAs have rivals whose parts never leave the chip. Not measured."""
_NARROWER = 32
"""Two steps of tile_n, as some tiles have every other one alone."""
LEAST_BYTES = 2048
"""Of a row along k for each part: sixteen stages. A pipeline full of them, and the second kernel,
are what a part takes beside its products. Not measured."""


@rule(
    HARDWARE,
    "the kernel that adds up reads no matrices and pairs no columns, and knows no groups; parts "
    "are float32, which holds no whole sums of int8, of operands of one width that have no "
    "stretches of k of their own",
)
def _summed(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    return bool(
        operands.a.dtype.accumulator == "int32"
        or operands.converted
        or operands.gate
        or operands.groups
        or operands.stretches > 1
        or any(extra.kind == MATRIX for extra in operands.extras)
    )


@rule(HARDWARE, "a CTA has one tile: warp groups take no turns, and there is no order to choose")
def _one_tile(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    return c.ping_pong | ~c.raster_m


@rule(HARDWARE, "the least deep stages cut k most evenly")
def _even_parts(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    return c.tile_k != tile_ks(operands)[0]


@rule(HARDWARE, "of CTAs that share loads those along the tile's longer side save most")
def _longer_side(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    shorter = (c.cluster_m > 1) != (c.tile_n >= c.tile_m)
    return (c.cluster_m * c.cluster_n > 1) & shorter


def _of_parts(one: Rule[GemmOperands]) -> Rule[GemmOperands]:
    """A rule of the products that nobody splits, asked about the product of each part."""

    def breaks(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
        return one.breaks(replace(c, split_k=np.ones_like(c.split_k)), parts_of(operands), hardware)

    return replace(one, breaks=breaks)


CONFIG_RULES: tuple[Rule[GemmOperands], ...] = (
    space.OPERANDS_RULE,
    _summed,
    AXES.rule(),
    _one_tile,
    _even_parts,
    _longer_side,
    *map(_of_parts, space.TILE_RULES),
)
"""What makes a config compile and run, and what a pilot left of that."""


@rule(
    PROBLEM,
    f"all CTAs run at once, and on at least {LEAST_FILL} of the SMs: more tiles fill the GPU "
    "without a split, and fewer CTAs find room as clusters",
)
def _one_wave(c: Geometry, problem: GemmProblem, hardware: Hardware) -> Broken:
    rows, columns = tiles(c, problem)
    ctas = np.ceil(rows / c.cluster_m) * c.cluster_m * np.ceil(columns / c.cluster_n) * c.cluster_n
    waves = ctas * problem.products * c.split_k / (hardware.sm_count * c.ctas_per_sm)
    return (waves > 1) | (waves < LEAST_FILL)


@rule(PROBLEM, f"as many CTAs do less with tiles {_NARROWER} columns narrower")
def _wide_tile(c: Geometry, problem: GemmProblem, hardware: Hardware) -> Broken:
    columns = extents(c, problem)[1]
    narrower = np.maximum(c.tile_n - _NARROWER, 1)
    return np.ceil(columns / narrower) == np.ceil(columns / c.tile_n)


@rule(PROBLEM, "the second kernel takes as long as some stages of each part")
def _long_parts(c: Geometry, problem: GemmProblem, hardware: Hardware) -> Broken:
    return problem.operands.a.dtype.bytes(problem.k) < LEAST_BYTES * c.split_k


PROBLEM_RULES: tuple[Rule[GemmProblem], ...] = (
    _long_parts,
    _one_wave,
    _wide_tile,
    *idle_rules(AXES.tile_m, AXES.tile_n, AXES.rasters[0], SWIZZLE),
    l2_traffic,
)
"""What arithmetic excludes for one problem, and first what leaves nothing of most problems."""


@rule(INVARIANT, "CTAs that split k round where their parts end")
def _other_parts(c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
    return True


INVARIANT_RULES: tuple[Rule[GemmOperands], ...] = (_other_parts,)
"""All of them split k."""


def points(operands: GemmOperands, hardware: Hardware) -> Geometry:
    """Every point of the axes with the deepest pipeline that fits, valid or not."""
    return AXES.points(parts_of(operands), hardware)


def stock_configs(operands: GemmOperands, hardware: Hardware) -> tuple[()]:
    """None: ``cutlass.operators`` splits no k."""
    return ()
