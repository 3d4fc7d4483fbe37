"""What a config takes from an SM.

How the result is stored is QuACK's choice, repeated here and held to it by
tests/slow/kernels/test_sm100.py.
"""

from __future__ import annotations

import numpy as np

from tilecast.heuristics.config import ConfigColumns, Geometry
from tilecast.heuristics.operands import BLOCK, COLUMN, GROUP_ROWS, ROW, GemmOperands
from tilecast.kernels.quack_sm100.config import Sm100Config

MOST_N = 256
"""Columns of one instruction (PTX ISA, tcgen05.mma). Wider tiles take two of them, and leave no
room for a second accumulator."""
ALIGNMENT = 1024
"""Bytes: the 128-byte swizzle of TMA repeats so often; barriers take one such piece."""
REGISTERS = 128
"""Per thread: more than any of 300 compiled configs takes."""
_PIECE = 4096
"""Elements of the result that are stored at once."""

Knobs = Geometry | Sm100Config
"""Many configs, or one: what is computed of them is an array [configs], or a single number."""


def pairs(c: Knobs | ConfigColumns) -> np.ndarray:
    """Whether two CTAs multiply together."""
    return np.equal(c.cluster_m % 2, 0)


def accumulators(c: Knobs, operands: GemmOperands) -> np.ndarray:
    """Accumulators of a CTA: one that is multiplied into while the other one is stored, or one.

    Scales of blocks lie beside them in tensor memory.
    """
    return np.where(c.tile_n + operands.block_scaled > MOST_N, 1, 2)


def epilogue_columns(c: Knobs) -> np.ndarray:
    """Columns of the tile that are stored at once."""
    return np.gcd(_PIECE // c.tile_m, c.tile_n)


def epilogue_stages(c: Knobs) -> np.ndarray:
    """Shared-memory buffers that storing the output goes through."""
    return np.where(epilogue_columns(c) <= 16, 4, 2)


def stage_bytes(c: Knobs, operands: GemmOperands) -> np.ndarray:
    """Shared memory of one stage of A and B; of B each CTA of a pair keeps half."""
    width = operands.a.dtype.bits // 8
    return (c.tile_m + c.tile_n // (1 + pairs(c))) * c.tile_k * width


def scale_bytes(c: Knobs, operands: GemmOperands) -> np.ndarray:
    """Shared memory of the scales of blocks in all stages, of 128 rows or columns together."""
    blocks = operands.block_scaled * np.multiply(c.stages, c.tile_k) // BLOCK * 128
    return _aligned(-(-c.tile_m // 128) * blocks) + _aligned(-(-c.tile_n // 128) * blocks)


def smem_bytes(c: Knobs, operands: GemmOperands) -> np.ndarray:
    """Shared memory of one CTA: barriers, what the epilogue stores and reads, the stages.

    Where k is split it stores float32, and reads nothing.
    """
    split = np.greater(c.split_k, 1)
    columns = epilogue_columns(c) // operands.columns_for_one
    piece = c.tile_m * columns * np.where(split, 4, operands.out.dtype.bits // 8)
    kinds = [extra.kind for extra in operands.extras]
    along_n, along_m = kinds.count(ROW) + kinds.count(GROUP_ROWS), kinds.count(COLUMN)
    along_n, along_m = (
        np.where(c.swap_ab, one, other) for one, other in ((along_m, along_n), (along_n, along_m))
    )
    # No element of a vector is wider than 4 bytes.
    vectors = ~split * 4 * (along_n * c.tile_n + along_m * c.tile_m)
    buffers = _aligned(epilogue_stages(c) * piece) + _aligned(vectors)
    stages = c.stages * stage_bytes(c, operands) + scale_bytes(c, operands)
    return ALIGNMENT + buffers + stages


def _aligned(size: np.ndarray) -> np.ndarray:
    return -(-size // ALIGNMENT) * ALIGNMENT
