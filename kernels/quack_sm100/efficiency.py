"""How near tcgen05.mma comes to the tensor cores' rate."""

from __future__ import annotations

import numpy as np

from tilecast.heuristics.config import ConfigColumns
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.quack_sm100.resources import pairs


def mma_efficiency(c: ConfigColumns, operands: GemmOperands) -> np.ndarray:
    """See `tilecast.kernels.family.KernelFamily`.

    An SM multiplies 128 rows x 2 columns x 32 bytes in a cycle (B200 data sheet: 2.25e15 FLOP/s of
    148 SMs at 1.85 GHz). 64 rows that are no half of a pair take as long. Shared memory feeds 128
    bytes a cycle: the CTA's rows, and its columns, of which one of a pair holds half.
    """
    paired = pairs(c)
    ideal = c.tile_n * c.tile_m / 256
    issued = c.tile_n * np.where(paired, c.tile_m, 128) / 256
    fed = (c.tile_m + c.tile_n / (1 + paired)) / 4
    return ideal / np.maximum(issued, fed)
