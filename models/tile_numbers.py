"""What holds of each config whatever the problem's extents: loads, arithmetic, layout."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tilecast.heuristics.candidates import ConfigTable
from tilecast.heuristics.operands import GemmOperands

CACHE_LINE_BYTES = 128
"""Alignment beyond which nothing is gained: the L2's line."""

# Fitted with those of `tilecast.models.analytic_time`.
EXCHANGE_TIME = 0.7
"""Microseconds that CTAs wait for each other where they share a tile, for each doubling of them."""
EXCHANGE_RATE = 20e3
"""Bytes per microsecond that a CTA receives from others of its cluster."""
MMA_CYCLES_PER_COLUMN = 0.5
"""Cycles of one SM's tensor cores for 64 rows x 1 column x 32 bytes of depth."""
SMEM_ROWS_PER_CYCLE = 4.0
"""Rows of 32 bytes that shared memory feeds the tensor cores in a cycle (128 bytes)."""


class TileNumbers(NamedTuple):
    """What holds of each config whatever the problem's extents; float64 [configs] each."""

    step_bytes: np.ndarray
    """That a CTA loads in a pipeline step."""
    step_loads: np.ndarray
    """The same as the L2 feels it: four CTAs that share a load spare it half."""
    step_flops: np.ndarray
    """Arithmetic of a pipeline step."""
    out_bytes: np.ndarray
    """Of a tile of the result."""
    exchange: np.ndarray
    """Microseconds that the CTAs of a split exchange their sums."""
    mma_efficiency: np.ndarray
    """Share of the tensor core's rate that the instruction's shape can reach."""
    log_area: np.ndarray
    """log2 of the elements of a tile."""
    rows_piece: np.ndarray
    """log2 of the bytes that shared memory swizzles together of what the tile's rows are read from:
    128 where the tile's contiguous side is a multiple of them, 32 for 48 columns of 16 bits."""
    columns_piece: np.ndarray
    """The same of what its columns are read from."""
    rows_along_m: np.ndarray
    """1 where what the tile's rows are read from is contiguous along them."""
    columns_along_n: np.ndarray
    """1 where what its columns are read from is contiguous along them."""


@lru_cache(maxsize=16)
def tile_numbers(table: ConfigTable, operands: GemmOperands) -> np.ndarray:
    """The rows of `TileNumbers` for all configs of a table."""
    config = table.columns
    a, b = operands.a.dtype.bytes(1), operands.b.dtype.bytes(1)
    a_along_m, b_along_n = operands.a.major == "col", operands.b.major == "row"
    swapped = config.swap_ab > 0
    row_bytes, column_bytes = np.where(swapped, b, a), np.where(swapped, a, b)
    rows_along_m = np.where(swapped, b_along_n, a_along_m)
    columns_along_n = np.where(swapped, a_along_m, b_along_n)
    row_side = row_bytes * np.where(rows_along_m, config.tile_m, config.tile_k)
    column_side = column_bytes * np.where(columns_along_n, config.tile_n, config.tile_k)
    area = config.tile_m * config.tile_n
    a_bytes = row_bytes * (config.tile_m * config.tile_k)
    b_bytes = column_bytes * (config.tile_n * config.tile_k)
    sums = 4 * area * (1 - 1 / config.split_k)
    cycles = config.tile_n * MMA_CYCLES_PER_COLUMN
    return np.stack(
        TileNumbers(
            step_bytes=a_bytes + b_bytes,
            step_loads=a_bytes / np.sqrt(config.cluster_n) + b_bytes / np.sqrt(config.cluster_m),
            step_flops=2 * area * config.tile_k,
            out_bytes=area * operands.out.dtype.bytes(1),
            exchange=sums / EXCHANGE_RATE + EXCHANGE_TIME * np.log2(config.split_k),
            mma_efficiency=cycles / np.maximum(cycles, (64 + config.tile_n) / SMEM_ROWS_PER_CYCLE),
            log_area=np.log2(area),
            rows_piece=log_alignment(row_side.astype(int)),
            columns_piece=log_alignment(column_side.astype(int)),
            rows_along_m=rows_along_m,
            columns_along_n=columns_along_n,
        )
    )


def log_alignment(row_bytes: int | np.ndarray) -> np.ndarray:
    """log2 of the largest power of two that divides a row of so many bytes, of each."""
    return np.log2(np.minimum(row_bytes & -row_bytes, CACHE_LINE_BYTES))
