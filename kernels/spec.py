"""One kernel to compile: nothing in it depends on m, n or k."""

from __future__ import annotations

from dataclasses import dataclass

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.operands import GemmOperands


@dataclass(frozen=True)
class KernelSpec:
    """A config for given operands, with what else its code depends on."""

    config: KernelConfig
    """Tile, cluster, pipeline and schedule."""
    operands: GemmOperands
    """Dtypes and majors."""
    batched: bool = False
    """Whether all operands carry a leading batch extent; B of groups always has one."""
    any_rows: bool = False
    """Whether rows of out may begin anywhere, not only at multiples of 16 bytes; not of groups."""

    def __str__(self) -> str:
        """Config and operands."""
        return f"{self.config} for {self.operands}"
