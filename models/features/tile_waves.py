"""How the tiles of a problem are handed out to a GPU's SMs, wave by wave."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilecast.heuristics.config import ConfigColumns
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.features.group_tiles import expected, group_tiles
from tilecast.models.features.tile_numbers import TileNumbers


@dataclass(frozen=True, eq=False)
class Waves:
    """How the tiles of a problem are handed out to the SMs, for each config."""

    extent_m: np.ndarray
    """The problem's extent along the kernel's rows."""
    extent_n: np.ndarray
    """The same along its columns."""
    tiles_m: np.ndarray
    """Tiles along the kernel's rows."""
    tiles_n: np.ndarray
    """Tiles along its columns."""
    k_steps: np.ndarray
    """Pipeline steps of a CTA for a tile."""
    cluster: np.ndarray
    """CTAs of a cluster."""
    clusters: np.ndarray
    """Clusters in all: tiles are handed out in whole ones. Of groups [draws, configs], for each
    of the `group_tiles`; what follows is the mean over these."""
    slots: np.ndarray
    """Clusters that the GPU holds at once."""
    count: np.ndarray
    """Waves, with the part of one at the end."""
    whole: np.ndarray
    """Waves, with that part as one."""
    rows: np.ndarray
    """Tile rows that one wave touches: it walks a band of `swizzle` clusters, along the raster."""
    columns: np.ndarray
    """Tile columns that it touches."""
    ctas_on_sm: np.ndarray
    """CTAs that a busy SM holds."""
    busy_sms: np.ndarray
    """SMs that have a tile at all."""

    @classmethod
    def of(
        cls,
        problem: GemmProblem,
        config: ConfigColumns,
        tile: TileNumbers,
        hardware: Hardware,
    ) -> Waves:
        """How each of some configs covers a problem on a GPU."""
        swapped, along_m, band = config.swap_ab > 0, config.raster_m > 0, config.swizzle
        rows, columns = float(problem.rows), float(problem.n)  # integers are divided far slower
        extent_m = np.where(swapped, columns, rows)
        extent_n = np.where(swapped, rows, columns)
        tiles_n = np.ceil(extent_n / config.tile_n)
        clusters_n = np.ceil(tiles_n / config.cluster_n)
        tiles_m = _along_rows(problem, extent_m, config.tile_m)
        clusters_m = _along_rows(problem, extent_m, config.tile_m * config.cluster_m)
        cluster = tile.cluster
        for_a_tile = config.cluster_m * config.cluster_n * config.split_k / cluster
        clusters = clusters_m * clusters_n * for_a_tile
        tiles_m = expected(tiles_m) / problem.products
        clusters_m = expected(clusters_m) / problem.products
        slots = np.take(hardware.clusters_at_once, cluster.astype(int)) * config.ctas_per_sm
        length = np.where(along_m, clusters_m, clusters_n)
        held = np.minimum(slots, clusters_m * clusters_n)
        along = np.minimum(length, np.ceil(held / band))
        across = band * np.ceil(held / (length * band))
        count = clusters / slots
        resident = np.minimum(clusters, slots) * cluster
        busy_sms = np.minimum(resident, hardware.sm_count)
        return cls(
            extent_m,
            extent_n,
            tiles_m,
            tiles_n,
            np.ceil(np.ceil(problem.k / config.tile_k) / config.split_k),
            cluster,
            clusters,
            slots,
            expected(count),
            expected(np.ceil(count)),
            np.where(along_m, along, across) * config.cluster_m,
            np.where(along_m, across, along) * config.cluster_n,
            expected(resident / busy_sms),
            expected(busy_sms),
        )


def _along_rows(problem: GemmProblem, extent: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Steps that cover the kernel's rows in all products together; of groups for each draw."""
    if not problem.operands.groups:
        return np.ceil(extent / step) * problem.products
    steps, of = np.unique(step.astype(int), return_inverse=True)
    drawn = [group_tiles(problem.m, problem.batch, one) for one in steps.tolist()]
    return np.transpose(drawn)[:, of]
