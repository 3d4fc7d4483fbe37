"""The axes that configs of QuackConfig's knobs lie on, and every point of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tilecast.heuristics.config import Geometry
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.quack.family import with_stages
from tilecast.kernels.quack_sm90.resources import (
    Knobs,
    mma_warp_groups,
    smem_bytes,
    stage_bytes,
)
from tilecast.kernels.rules import HARDWARE, Broken, Rule, off_axes
from tilecast.kernels.stages import TILE_K_BYTES, tile_ks

STAGES = tuple(range(2, 13))
SWIZZLE = 8


@dataclass(frozen=True)
class Axes:
    """The values of each knob; tile_k, stages and swizzle have the same in every space."""

    tile_m: tuple[int, ...]
    """Rows of a tile."""
    tile_n: tuple[int, ...]
    """Columns of a tile, in even steps."""
    clusters: tuple[tuple[int, int], ...]
    """CTAs that share loads, along m and along n."""
    splits: tuple[int, ...]
    """Parts of k."""
    ctas_per_sm: tuple[int, ...]
    """CTAs that share an SM."""
    schedules: tuple[str, ...]
    """``coop`` or both."""
    rasters: tuple[str, ...]
    """``m`` or both."""

    def rule(self) -> Rule[GemmOperands]:
        """What breaks it is on no axis."""
        reason = (
            f"the kernel was written and measured for tile_m {self.tile_m}, tile_n "
            f"{self.tile_n[0]} to {self.tile_n[-1]} in steps of {self.tile_n[1] - self.tile_n[0]}, "
            f"tile_k of {TILE_K_BYTES} bytes, clusters {self.clusters}, split_k {self.splits}, "
            f"stages {STAGES[0]} to {STAGES[-1]}, ctas_per_sm {self.ctas_per_sm} and swizzle "
            f"{SWIZZLE}"
        )
        return Rule("axes", HARDWARE, reason, self._off)

    def _off(self, c: Geometry, operands: GemmOperands, hardware: Hardware) -> Broken:
        axes = (
            (c.tile_m, self.tile_m),
            (c.tile_n, self.tile_n),
            (c.tile_k, tile_ks(operands)),
            (c.split_k, self.splits),
            (c.stages, STAGES),
            (c.ctas_per_sm, self.ctas_per_sm),
            (c.swizzle, (SWIZZLE,)),
        )
        return off_axes(c, axes, self.clusters)

    def points(self, operands: GemmOperands, hardware: Hardware) -> Geometry:
        """Every point of the axes with the deepest pipeline that fits, valid or not.

        They stand in the order of `QuackConfig`s.
        """
        outer = (self.tile_m, self.tile_n, tile_ks(operands), range(len(self.clusters)))
        inner = (range(len(self.schedules)), self.ctas_per_sm, range(len(self.rasters)), (0, 1))
        axes = (*outer, self.splits, *inner)
        grid = np.meshgrid(*(np.array(axis, np.int32) for axis in axes), indexing="ij")
        tile_m, tile_n, tile_k, cluster, split_k, pong, ctas, raster, swap = map(np.ravel, grid)
        cluster_m, cluster_n = np.array(self.clusters, np.int32)[cluster].T
        none = np.zeros_like(tile_m)
        found = with_warp_groups(
            Geometry(
                *(tile_m, tile_n, tile_k, cluster_m, cluster_n, none + STAGES[0], none, ctas),
                *(raster == 0, none + SWIZZLE, swap == 1, split_k, pong == 1),
            )
        )
        stages = most_stages(found, operands, hardware)
        return with_stages(found, stages, math.prod(map(len, inner)))


def most_stages(c: Knobs, operands: GemmOperands, hardware: Hardware) -> np.ndarray:
    """The deepest pipeline within `STAGES` that fits with a config's tile; 1 if none does."""
    free = hardware.smem_limit(c.ctas_per_sm) - smem_bytes(c, operands)
    fits = c.stages + free // stage_bytes(c, operands)
    return np.where(fits >= STAGES[0], np.minimum(fits, STAGES[-1]), 1)


def with_warp_groups(c: Geometry) -> Geometry:
    """The same with the number of warp groups that follows from the rest."""
    return replace(c, warp_groups=mma_warp_groups(c))
