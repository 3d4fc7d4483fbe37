"""What the loads of a tile cost the L2: more than their bytes where they cut its lines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilecast.heuristics.config import ConfigColumns
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.features.tile_numbers import TileNumbers, log_alignment

# Fitted with those of `tilecast.models.features.analytic_time`.
SECTOR_BYTES = 32.0
"""What the L2 hands out at once, whole."""
SECTOR_COST = 2.0
"""Bytes that a piece of a load costs for each byte by which rows are aligned worse than sectors: it
ends within one, and mostly in another line."""


@dataclass(frozen=True, eq=False)
class Loads:
    """How the operands of a problem are loaded into tiles, for each config."""

    rows_alignment: np.ndarray
    """log2 of the bytes, up to a line, that what the tile's rows are read from is aligned to."""
    columns_alignment: np.ndarray
    """The same of what its columns are read from."""
    step_bytes: np.ndarray
    """What a CTA loads in a pipeline step as the L2 feels it, in bytes of whole lines."""

    @classmethod
    def of(cls, problem: GemmProblem, config: ConfigColumns, tile: TileNumbers) -> Loads:
        """How each of some configs loads a problem's operands."""
        operands, swapped = problem.operands, config.swap_ab > 0
        a_row = operands.a.dtype.bytes(problem.k if operands.a.major == "row" else problem.m)
        b_row = operands.b.dtype.bytes(problem.k if operands.b.major == "col" else problem.n)
        a, b = (float(log_alignment(int(row))) for row in (a_row, b_row))
        cut_a, cut_b = (SECTOR_COST * max(0.0, SECTOR_BYTES - 2**log) for log in (a, b))
        return cls(
            np.where(swapped, b, a),
            np.where(swapped, a, b),
            tile.step_loads + cut_a * tile.a_pieces + cut_b * tile.b_pieces,
        )
