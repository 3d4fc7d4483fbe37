"""What a config takes from an SM: threads, registers, shared memory.

The kernel is built from these numbers and the space is pruned by them, so they are stated once:
for one config, or for the columns of many. How warp groups share a tile is QuACK's choice, repeated
here and held to it by tests/slow/kernels/test_quack_contract.py.
"""

from __future__ import annotations

import numpy as np

from tilecast.heuristics.config import Geometry
from tilecast.heuristics.operands import COLUMN, GROUP_ROWS, MATRIX, ROW, GemmOperands
from tilecast.kernels.quack_sm90.config import QuackConfig

REGISTERS_PER_SM = 65_536
"""32-bit registers of an SM90 multiprocessor (CUDA programming guide, compute capability 9.0)."""
ADDRESSING_REGISTERS = 32
"""Registers per MMA thread beside its accumulators: descriptors, barriers, epilogue addresses."""
WARP_GROUP = 128
"""Threads of a warp group."""
WGMMA_M = 64
"""Rows that one warp group's instruction covers."""
ALIGNMENT = 1024
"""Bytes: the 128-byte swizzle of TMA and WGMMA repeats so often; barriers take one such piece."""

Knobs = Geometry | QuackConfig
"""Many configs, or one: what is computed of them is an array [configs], or a single number."""
Pair = tuple[np.ndarray, np.ndarray]


def warp_groups(c: Knobs) -> Pair:
    """MMA warp groups along m and along n that share one tile."""
    wide = (c.tile_m == 320) | ((c.tile_m == 192) & (c.tile_n > 128))
    along_n = np.where(np.logical_not(c.ping_pong) & wide, 2, 1)
    one = c.ping_pong | (along_n == 2) | (c.tile_m == 64)
    return np.where(one, 1, np.where(np.equal(c.tile_m, 192), 3, 2)), along_n


def mma_warp_groups(c: Knobs) -> np.ndarray:
    """MMA warp groups of one CTA; one that loads comes on top."""
    along_m, along_n = warp_groups(c)
    return along_m * along_n * (1 + c.ping_pong)


def epilogue_tile(c: Knobs, operands: GemmOperands) -> Pair:
    """Rows and columns of out that are stored at once."""
    shared = warp_groups(c)[0] > 1
    rows = np.where(shared & (c.tile_m % 192 == 0), 192, WGMMA_M)
    rows = np.where(shared & (c.tile_m % 128 == 0), 128, rows)
    widest = np.where(rows == WGMMA_M, 64 if operands.out.dtype.bits == 8 else 32, 32)
    return rows, np.gcd(widest, c.tile_n // operands.columns_for_one)


def _pieces(c: Knobs, operands: GemmOperands) -> np.ndarray:
    """Pieces of a tile that are stored at once."""
    rows, columns = epilogue_tile(c, operands)
    return c.tile_m * (c.tile_n // operands.columns_for_one) // (rows * columns)


def epilogue_stages(c: Knobs, operands: GemmOperands) -> Pair:
    """Shared-memory buffers that storing the output goes through, and loading a matrix like it."""
    pieces, columns = _pieces(c, operands), epilogue_tile(c, operands)[1]
    loads = any(extra.kind == MATRIX for extra in operands.extras)
    return np.minimum(pieces, np.where(columns <= 16, 4, 2)), np.minimum(pieces, 4 * loads)


def accumulator_registers(c: Knobs, operands: GemmOperands) -> np.ndarray:
    """32-bit accumulators per MMA thread."""
    along_m, along_n = warp_groups(c)
    once = c.tile_m * c.tile_n // (along_m * along_n * WARP_GROUP)
    # The sums so far, and what is being multiplied.
    twice = operands.promoted | ((operands.stretches > 1) & np.equal(c.split_k, 1))
    return once * np.where(twice, 2, 1)


def fragment_registers(c: Knobs, operands: GemmOperands) -> np.ndarray:
    """32-bit registers per MMA thread that a converted operand takes on its way.

    A stage of it in the type that is multiplied, and two blocks of 16 columns as stored, a pair of
    numbers each.
    """
    rows = c.tile_m // warp_groups(c)[0]
    return operands.converted * rows * (c.tile_k + 2 * 16) // (2 * WARP_GROUP)


def launch_registers(c: Knobs) -> np.ndarray:
    """Registers per thread that the CTA is launched with: its share of the SM, in steps of 8."""
    threads = (mma_warp_groups(c) + 1) * WARP_GROUP
    return np.minimum(REGISTERS_PER_SM // (threads * c.ctas_per_sm) // 8 * 8, 248)


def mma_registers(c: Knobs, operands: GemmOperands) -> np.ndarray:
    """Registers per thread that an MMA warp group needs."""
    needed = accumulator_registers(c, operands) + fragment_registers(c, operands)
    return needed + ADDRESSING_REGISTERS


def registers(c: Knobs, operands: GemmOperands) -> Pair:
    """Registers per thread of the load warp group and of the MMA warp groups, in steps of 8.

    ``setmaxnreg.inc`` waits for ever for registers that the CTA was not launched with (PTX ISA,
    setmaxnreg), so the demand of all warp groups must fit into the launch allocation.
    """
    groups = mma_warp_groups(c)
    pool = launch_registers(c) * (groups + 1)
    wanted = mma_registers(c, operands)

    def available(load: int, most: int) -> np.ndarray:
        return np.minimum(most, (pool - load) // groups // 8 * 8)

    load, mma = np.full_like(groups, 24), available(24, 240)
    # The load warp group keeps more where the others have enough, as QuACK has it.
    for more, most in ((32, 160), (40, 232)):
        enough = available(more, most) >= wanted
        load, mma = np.where(enough, more, load), np.where(enough, available(more, most), mma)
    return load, mma


def stage_bytes(c: Knobs, operands: GemmOperands) -> np.ndarray:
    """Shared memory of one stage of A and B."""
    a, b = operands.a.dtype.bits, operands.b.dtype.bits
    along_m, along_n = np.where(c.swap_ab, b, a), np.where(c.swap_ab, a, b)
    return (along_m * c.tile_m + along_n * c.tile_n) * c.tile_k // 8


def smem_bytes(c: Knobs, operands: GemmOperands) -> np.ndarray:
    """Shared memory of one CTA: barriers, what the epilogue stores and loads, the stages."""
    rows, columns = epilogue_tile(c, operands)
    piece = rows * columns * operands.out.dtype.bits // 8
    stores, loads = epilogue_stages(c, operands)
    buffers = _aligned(stores * piece) + _aligned(loads * piece)
    kinds = [extra.kind for extra in operands.extras]
    along_n, along_m = kinds.count(ROW) + kinds.count(GROUP_ROWS), kinds.count(COLUMN)
    elements = np.where(
        c.swap_ab,
        along_n * c.tile_m + along_m * c.tile_n,
        along_n * c.tile_n + along_m * c.tile_m,
    )
    # No element of a vector is wider than 4 bytes; warp groups that take turns have their own.
    vectors = _aligned(4 * (1 + c.ping_pong) * elements)
    return ALIGNMENT + buffers + vectors + c.stages * stage_bytes(c, operands)


def _aligned(size: np.ndarray) -> np.ndarray:
    return -(-size // ALIGNMENT) * ALIGNMENT


def exchange_bytes(c: Knobs, operands: GemmOperands) -> np.ndarray:
    """What a CTA receives of the others' sums when ``split_k`` of them share a tile.

    Each finishes every ``split_k``-th piece of the tile that is stored at once, so it receives
    that piece from all others; accumulators have 4 bytes.
    """
    rows, columns = epilogue_tile(c, operands)
    own = -(-_pieces(c, operands) // c.split_k)
    return own * (c.split_k - 1) * rows * columns * 4
