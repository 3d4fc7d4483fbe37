"""What a config takes from an SM: threads, registers, shared memory.

The kernel is built from these numbers and the space is pruned by them, so they are stated once.
"""

from __future__ import annotations

from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.cutlass_sm90.config import Sm90Config

EPILOGUE_STAGES = 4
"""Shared-memory buffers that the store of the output tile cycles through."""
REGISTERS_PER_SM = 65_536
"""32-bit registers of an SM90 multiprocessor (CUDA programming guide, compute capability 9.0)."""
LOAD_REGISTERS = 40
"""Registers per thread kept by the load warp group."""
MMA_REGISTERS = 232
"""Registers per thread that an MMA warp group asks for when the SM has them."""
ADDRESSING_REGISTERS = 32
"""Registers per MMA thread beside its accumulators: descriptors, barriers, epilogue addresses."""
WARP_GROUP = 128
"""Threads of a warp group."""
WGMMA_M = 64
"""Rows that one warp group's instruction covers."""
BARRIER_BYTES = 1024
"""Room for the pipeline barriers, rounded up to the alignment of the buffers behind them."""


def epilogue_tile(config: Sm90Config) -> tuple[int, int]:
    """Rows and columns of the output that are stored at once."""
    return WGMMA_M * config.warp_groups, 32 if config.tile_n % 32 == 0 else 16


def threads(config: Sm90Config) -> int:
    """Threads of one CTA: the MMA warp groups and one that loads."""
    return (config.warp_groups + 1) * WARP_GROUP


def launch_registers(config: Sm90Config) -> int:
    """Registers per thread that the CTA is launched with: its share of the SM, in steps of 8."""
    share = REGISTERS_PER_SM // (threads(config) * config.ctas_per_sm)
    return min(share // 8 * 8, MMA_REGISTERS)


def mma_registers(config: Sm90Config) -> int:
    """Registers per MMA thread once the load warp group has given its own back, in steps of 8.

    ``setmaxnreg.inc`` waits for ever for registers that the CTA was not launched with (PTX ISA,
    setmaxnreg), so the demand of all warp groups must fit into the launch allocation.
    """
    pool = launch_registers(config) * threads(config) - LOAD_REGISTERS * WARP_GROUP
    return min(MMA_REGISTERS, pool // (config.warp_groups * WARP_GROUP) // 8 * 8)


def accumulator_registers(config: Sm90Config) -> int:
    """fp32 accumulators per MMA thread."""
    return config.tile_m * config.tile_n // (config.warp_groups * WARP_GROUP)


def smem_bytes(config: Sm90Config, operands: GemmOperands) -> int:
    """Shared memory of one CTA: barriers, the A and B pipeline, the epilogue buffers."""
    a, b = operands.a.dtype, operands.b.dtype
    if config.swap_ab:
        a, b = b, a
    stage = a.bytes(config.tile_m * config.tile_k) + b.bytes(config.tile_n * config.tile_k)
    rows, columns = epilogue_tile(config)
    epilogue = operands.out.dtype.bytes(rows * columns * EPILOGUE_STAGES)
    return int(BARRIER_BYTES + config.stages * stage + epilogue)
