"""How near WGMMA comes to the tensor cores' rate."""

from __future__ import annotations

import numpy as np

from tilecast.heuristics.config import ConfigColumns
from tilecast.heuristics.operands import GemmOperands

# Fitted with those of `tilecast.models.features.analytic_time`.
MMA_CYCLES_PER_COLUMN = 0.5
"""Cycles of one SM's tensor cores for 64 rows x 1 column x 32 bytes of depth."""
SMEM_ROWS_PER_CYCLE = 4.0
"""Rows of 32 bytes that shared memory feeds the tensor cores in a cycle (128 bytes)."""
INSTRUCTION_BYTES = 32
"""Depth of one instruction of the tensor cores."""
CONVERSION_CYCLES = 32.0
"""Cycles that an SM takes to convert 64 rows x 32 bytes of depth: 4 of 128 lanes an element."""
PROMOTION_CYCLES = 0.67
"""Cycles that it takes to add 64 rows x 1 column to more exact sums, after each stage."""


def mma_efficiency(config: ConfigColumns, operands: GemmOperands) -> np.ndarray:
    """See `tilecast.kernels.family.KernelFamily`."""
    a, b = operands.a.dtype.bytes(1), operands.b.dtype.bytes(1)
    row_width = np.where(config.swap_ab > 0, b, a)
    cycles = config.tile_n * MMA_CYCLES_PER_COLUMN
    taken = np.maximum(cycles, (64 + config.tile_n) / SMEM_ROWS_PER_CYCLE)
    taken += CONVERSION_CYCLES * operands.converted
    if operands.promoted:
        # Where warp groups share a tile, one adds while another multiplies.
        unshared = config.warp_groups == 1 + config.ping_pong
        instructions = row_width * config.tile_k / INSTRUCTION_BYTES
        taken += PROMOTION_CYCLES * unshared * config.tile_n / instructions
    return cycles / taken
