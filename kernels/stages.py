"""How deep the stages of kernels are that are tried."""

from __future__ import annotations

from tilecast.heuristics.operands import GemmOperands

TILE_K_BYTES = (128, 256)
"""Once or twice what TMA's swizzle spans."""


def tile_ks(operands: GemmOperands) -> tuple[int, ...]:
    """The same in elements of A."""
    return tuple(size * 8 // operands.a.dtype.bits for size in TILE_K_BYTES)
