"""What holds of each config whatever the problem's extents: loads, arithmetic, layout."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tilecast.heuristics.config import ConfigColumns, ConfigTable
from tilecast.heuristics.operands import KINDS_REMEMBERED, GemmOperands
from tilecast.kernels.candidates import mma_efficiency, split_apart

CACHE_LINE_BYTES = 128
"""Alignment beyond which nothing is gained: the L2's line."""

# Fitted with those of `tilecast.models.features.analytic_time`.
EXCHANGE_TIME = 0.7
"""Microseconds that CTAs wait for each other where they share a tile, for each doubling of them."""
EXCHANGE_RATE = 20e3
"""Bytes per microsecond that a CTA receives from others of its cluster."""
SUMMING_TIME = 0.75
"""Microseconds that a second kernel takes beside what it reads, where CTAs leave their sums in
memory. It is launched already when the first one ends. This and the next explain best how times of
12,017 such kernels differ from those of others, over some 900 problems on H200s."""
SUMMING_RATE = 34e3
"""Bytes of them per microsecond that it reads for each of the tiles."""
PIECE_COST = 0.28
"""Bytes that a piece of a load costs the L2 for each byte by which it is shorter than a line."""
STORE_COLUMNS = 32
"""Most columns of a tile that are stored at once."""
NARROW_STORE = 1.35
"""How much longer a tile takes to be stored in pieces of fewer: at each, warps wait for all."""


class TileNumbers(NamedTuple):
    """What the arithmetic needs of each config's tile; float64 [configs] each."""

    row_bytes: np.ndarray
    """Of the tile's rows, one element deep."""
    column_bytes: np.ndarray
    """The same of its columns."""
    step_bytes: np.ndarray
    """That a CTA loads in a pipeline step."""
    step_loads: np.ndarray
    """The same as the L2 feels it: four CTAs that share a load spare it half, and of pieces shorter
    than its lines each is asked for apart."""
    a_pieces: np.ndarray
    """Pieces of A among these loads, each of which shared memory swizzles together."""
    b_pieces: np.ndarray
    """The same of B."""
    step_flops: np.ndarray
    """Arithmetic of a pipeline step."""
    store_bytes: np.ndarray
    """Of a tile of the result, as many more as it takes longer to store in narrow pieces."""
    exchange: np.ndarray
    """Microseconds that the CTAs of a split exchange their sums."""
    summing: np.ndarray
    """Microseconds of a second kernel that adds them up, where they are left in memory."""
    cluster: np.ndarray
    """CTAs of a cluster."""
    mma_efficiency: np.ndarray
    """As `tilecast.kernels.family.KernelFamily.mma_efficiency`."""


TILE_FEATURES = (
    *ConfigColumns.__dataclass_fields__,
    *("tile_area", "tile_intensity", "exchange_time", "mma_efficiency"),
    *("rows_piece", "columns_piece", "rows_along_m", "columns_along_n"),
    *("store_along_rows", "store_columns"),
)
"""Names of the features that a config has whatever the problem's extents."""


@dataclass(frozen=True, eq=False)
class TileTable:
    """What holds of each config of a table whatever the problem's extents."""

    numbers: np.ndarray
    """The rows of `TileNumbers`; float64 [numbers, configs]."""
    features: np.ndarray
    """`TILE_FEATURES`; float32 [configs, features]."""


@lru_cache(maxsize=KINDS_REMEMBERED)
def tile_table(table: ConfigTable, operands: GemmOperands) -> TileTable:
    """What holds of the configs of a table for some operands."""
    config = table.columns
    a, b = operands.a.dtype.bytes(1), operands.b.dtype.bytes(1)
    a_along_m, b_along_n = operands.a.major == "col", operands.b.major == "row"
    swapped = config.swap_ab > 0
    row_width, column_width = np.where(swapped, b, a), np.where(swapped, a, b)
    rows_along_m = np.where(swapped, b_along_n, a_along_m)
    columns_along_n = np.where(swapped, a_along_m, b_along_n)
    # Of what shared memory swizzles together: 128 bytes where a tile's contiguous side is a
    # multiple of them, 32 for 48 columns of 16 bits.
    row_side = row_width * np.where(rows_along_m, config.tile_m, config.tile_k)
    column_side = column_width * np.where(columns_along_n, config.tile_n, config.tile_k)
    rows_piece = log_alignment(row_side.astype(int))
    columns_piece = log_alignment(column_side.astype(int))
    row_bytes, column_bytes = row_width * config.tile_m, column_width * config.tile_n
    row_loads = row_bytes * config.tile_k / np.sqrt(config.cluster_n)
    column_loads = column_bytes * config.tile_k / np.sqrt(config.cluster_m)
    row_pieces, column_pieces = row_loads / 2**rows_piece, column_loads / 2**columns_piece
    step_loads = (1 - PIECE_COST) * (row_loads + column_loads)
    step_loads += PIECE_COST * CACHE_LINE_BYTES * (row_pieces + column_pieces)
    area = config.tile_m * config.tile_n
    apart = split_apart(table)
    sums = np.where(apart, 0, 4 * area * (1 - 1 / config.split_k))
    waits = np.where(apart, 0, EXCHANGE_TIME * np.log2(config.split_k))
    store_columns = np.gcd(config.tile_n.astype(int), STORE_COLUMNS)
    store_bytes = area * np.where(apart, 4, operands.out.dtype.bytes(1))
    numbers = TileNumbers(
        row_bytes=row_bytes,
        column_bytes=column_bytes,
        step_bytes=(row_bytes + column_bytes) * config.tile_k,
        step_loads=step_loads,
        a_pieces=np.where(swapped, column_pieces, row_pieces),
        b_pieces=np.where(swapped, row_pieces, column_pieces),
        step_flops=2 * area * config.tile_k,
        store_bytes=store_bytes * np.where(store_columns < STORE_COLUMNS, NARROW_STORE, 1),
        exchange=sums / EXCHANGE_RATE + waits,
        summing=apart * (SUMMING_TIME + 4 * area / SUMMING_RATE),
        cluster=config.cluster_m * config.cluster_n * np.where(apart, 1, config.split_k),
        mma_efficiency=mma_efficiency(table, operands),
    )
    features = vars(config) | {
        "tile_area": np.log2(area),
        "tile_intensity": numbers.step_flops / numbers.step_bytes,
        "exchange_time": np.log2(1 + numbers.exchange + numbers.summing),
        "mma_efficiency": numbers.mma_efficiency,
        "rows_piece": rows_piece,
        "columns_piece": columns_piece,
        "rows_along_m": rows_along_m,
        "columns_along_n": columns_along_n,
        "store_along_rows": (operands.out.major == "col") != swapped,
        "store_columns": store_columns,
    }
    of_each = np.array([features[name] for name in TILE_FEATURES], np.float32)
    return TileTable(np.stack(numbers), np.ascontiguousarray(of_each.T))


def log_alignment(row_bytes: int | np.ndarray) -> np.ndarray:
    """log2 of the largest power of two that divides a row of so many bytes, of each."""
    return np.log2(np.minimum(row_bytes & -row_bytes, CACHE_LINE_BYTES))
