"""One point of a tuning space: how a kernel is cut up, whatever it multiplies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, order=True)
class KernelConfig:
    """What every family's configs have in common; a family adds its knobs as fields.

    Configs of one family are ordered by their fields, and a name belongs to one config of one
    family.
    """

    family: ClassVar[str]
    """Name of the kernel family."""

    @property
    def name(self) -> str:
        """A stable, readable key, which `tilecast.kernels.families.parse_config` reads."""
        raise NotImplementedError

    def __str__(self) -> str:
        """The name."""
        return self.name


@dataclass(frozen=True)
class Geometry:
    """What features see of a config, whatever its family calls it."""

    tile_m: int
    """Rows of the output tile of one CTA."""
    tile_n: int
    """Columns of the output tile of one CTA."""
    tile_k: int
    """Depth of one pipeline stage, in elements."""
    cluster_m: int
    """CTAs along m that share loads of B by multicast."""
    cluster_n: int
    """CTAs along n that share loads of A by multicast."""
    stages: int
    """Stages of the A and B pipeline in shared memory."""
    warp_groups: int
    """MMA warp groups that split the tile."""
    ctas_per_sm: int
    """CTAs that share one SM."""
    raster_m: bool
    """Whether consecutive tiles are handed out along m."""
    swizzle: int
    """Width in clusters of the band that the raster walks; 1 is no swizzle."""
    swap_ab: bool
    """Whether out^T = B^T A^T is solved: the tile's m runs along the problem's n."""
    split_k: int = 1
    """CTAs that share one tile of the output, a stretch of k each."""
    ping_pong: bool = False
    """Whether two warp groups take tiles in turn, one multiplying while the other stores."""


@dataclass(frozen=True)
class Resources:
    """What a config takes from an SM."""

    smem_bytes: int
    """Shared memory of one CTA."""
    mma_registers: int
    """Registers per MMA thread."""
    accumulator_registers: int
    """Registers per MMA thread that accumulators take of these."""
