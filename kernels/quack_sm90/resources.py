"""What a config takes from an SM: threads, registers, shared memory.

The kernel is built from these numbers and the space is pruned by them, so they are stated once.
How warp groups share a tile is QuACK's choice, repeated here and held to it by
tests/unit/kernels/test_quack_contract.py.
"""

from __future__ import annotations

from math import gcd

from tilecast.heuristics.operands import COLUMN, MATRIX, ROW, GemmOperands
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


def warp_groups(config: QuackConfig) -> tuple[int, int]:
    """MMA warp groups along m and along n that share one tile."""
    if config.schedule == "pong":
        return 1, 1
    if config.tile_m == 320 or (config.tile_m == 192 and config.tile_n > 128):
        return 1, 2
    return {64: 1, 128: 2, 192: 3}.get(config.tile_m, 2), 1


def mma_warp_groups(config: QuackConfig) -> int:
    """MMA warp groups of one CTA; one that loads comes on top."""
    along_m, along_n = warp_groups(config)
    return along_m * along_n * (2 if config.schedule == "pong" else 1)


def epilogue_tile(config: QuackConfig, operands: GemmOperands) -> tuple[int, int]:
    """Rows and columns of the output that are stored at once."""
    along_m, _ = warp_groups(config)
    for rows in (128, 192):
        if config.tile_m % rows == 0 and along_m > 1:
            return rows, gcd(32, config.tile_n)
    return WGMMA_M, gcd(64 if operands.out.dtype.bits == 8 else 32, config.tile_n)


def epilogue_stages(config: QuackConfig, operands: GemmOperands) -> tuple[int, int]:
    """Shared-memory buffers that storing the output goes through, and loading a matrix like it."""
    rows, columns = epilogue_tile(config, operands)
    pieces = config.tile_m * config.tile_n // (rows * columns)
    loads = any(extra.kind == MATRIX for extra in operands.extras)
    return min(pieces, 4 if columns <= 16 else 2), min(pieces, 4) if loads else 0


def accumulator_registers(config: QuackConfig, operands: GemmOperands) -> int:
    """32-bit accumulators per MMA thread."""
    along_m, along_n = warp_groups(config)
    once = config.tile_m * config.tile_n // (along_m * along_n * WARP_GROUP)
    return 2 * once if operands.promoted else once


def fragment_registers(config: QuackConfig, operands: GemmOperands) -> int:
    """32-bit registers per MMA thread that a converted operand takes on its way.

    A stage of it in the type that is multiplied, and two blocks of 16 columns as stored, a pair of
    numbers each.
    """
    rows = config.tile_m // warp_groups(config)[0]
    return operands.converted * rows * (config.tile_k + 2 * 16) // (2 * WARP_GROUP)


def launch_registers(config: QuackConfig) -> int:
    """Registers per thread that the CTA is launched with: its share of the SM, in steps of 8."""
    threads = (mma_warp_groups(config) + 1) * WARP_GROUP
    return min(REGISTERS_PER_SM // (threads * config.ctas_per_sm) // 8 * 8, 248)


def mma_registers(config: QuackConfig, operands: GemmOperands) -> int:
    """Registers per thread that an MMA warp group needs."""
    needed = accumulator_registers(config, operands) + fragment_registers(config, operands)
    return needed + ADDRESSING_REGISTERS


def registers(config: QuackConfig, operands: GemmOperands) -> tuple[int, int]:
    """Registers per thread of the load warp group and of the MMA warp groups, in steps of 8.

    ``setmaxnreg.inc`` waits for ever for registers that the CTA was not launched with (PTX ISA,
    setmaxnreg), so the demand of all warp groups must fit into the launch allocation.
    """
    groups = mma_warp_groups(config)
    pool = launch_registers(config) * (groups + 1)
    wanted = mma_registers(config, operands)
    # The load warp group keeps more where the others have enough, as QuACK has it.
    for load, most in ((40, 232), (32, 160), (24, 240)):
        mma = min(most, (pool - load) // groups // 8 * 8)
        if mma >= wanted:
            return load, mma
    return load, mma


def stage_bytes(config: QuackConfig, operands: GemmOperands) -> int:
    """Shared memory of one stage of A and B."""
    a, b = operands.a.dtype, operands.b.dtype
    if config.swap_ab:
        a, b = b, a
    return int(a.bytes(config.tile_m * config.tile_k) + b.bytes(config.tile_n * config.tile_k))


def smem_bytes(config: QuackConfig, operands: GemmOperands) -> int:
    """Shared memory of one CTA: barriers, what the epilogue stores and loads, the stages."""
    rows, columns = epilogue_tile(config, operands)
    piece = int(operands.out.dtype.bytes(rows * columns))
    buffers = sum(_aligned(stages * piece) for stages in epilogue_stages(config, operands))
    lengths = {ROW: config.tile_n, COLUMN: config.tile_m}
    if config.swap_ab:
        lengths = {ROW: config.tile_m, COLUMN: config.tile_n}
    # No element of a vector is wider than 4 bytes; warp groups that take turns have their own.
    turns = 2 if config.schedule == "pong" else 1
    vectors = _aligned(turns * sum(4 * lengths.get(extra.kind, 0) for extra in operands.extras))
    return ALIGNMENT + buffers + vectors + config.stages * stage_bytes(config, operands)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def exchange_bytes(config: QuackConfig, operands: GemmOperands) -> int:
    """What a CTA receives of the others' sums when ``split_k`` of them share a tile.

    Each finishes every ``split_k``-th piece of the tile that is stored at once, so it receives
    that piece from all others; accumulators have 4 bytes.
    """
    rows, columns = epilogue_tile(config, operands)
    pieces = config.tile_m * config.tile_n // (rows * columns)
    return -(-pieces // config.split_k) * (config.split_k - 1) * rows * columns * 4
