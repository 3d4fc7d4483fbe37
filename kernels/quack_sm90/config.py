"""The knobs of QuACK's SM90 GEMM, and those that its subclass here adds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from tilecast.heuristics.config import KernelConfig

_NUMBER = r"[1-9]\d{0,8}"
_NAME = re.compile(
    rf"(?P<swap_ab>swap_)?(?P<tile_m>{_NUMBER})x(?P<tile_n>{_NUMBER})x(?P<tile_k>{_NUMBER})"
    rf"_c(?P<cluster_m>{_NUMBER})x(?P<cluster_n>{_NUMBER})x(?P<split_k>{_NUMBER})"
    rf"_s(?P<stages>{_NUMBER})_(?P<schedule>coop|pong)_o(?P<ctas_per_sm>{_NUMBER})"
    rf"_r(?P<raster>[mn])(?P<swizzle>{_NUMBER})",
    re.ASCII,
)


@dataclass(frozen=True, order=True)
class QuackConfig(KernelConfig):
    """The tile, cluster, pipeline and schedule of a GEMM kernel; it says nothing about m, n, k."""

    family: ClassVar[str] = "quack_sm90"

    tile_m: int
    """Rows of the output tile of one CTA."""
    tile_n: int
    """Columns of the output tile of one CTA."""
    tile_k: int
    """Depth of one pipeline stage, in elements."""
    cluster_m: int = 1
    """CTAs along m that share loads of B by multicast."""
    cluster_n: int = 1
    """CTAs along n that share loads of A by multicast."""
    split_k: int = 1
    """CTAs of a cluster that share one output tile: each multiplies a stretch of k, and they add
    up through each other's shared memory, in a fixed order."""
    stages: int = 2
    """Stages of the A and B pipeline in shared memory."""
    schedule: str = "coop"
    """``coop``: all MMA warp groups share one tile; ``pong``: two take tiles in turn, one
    multiplying while the other stores."""
    ctas_per_sm: int = 1
    """CTAs that share one SM, its shared memory and registers."""
    raster: str = "m"
    """Extent along which consecutive tiles are handed out."""
    swizzle: int = 8
    """Width in clusters of the band that the raster walks; 1 is no swizzle."""
    swap_ab: bool = False
    """Solve out^T = B^T A^T: the tile's m runs along the problem's n."""

    @property
    def ping_pong(self) -> bool:
        """Whether the schedule is ``pong``."""
        return self.schedule == "pong"

    @property
    def raster_m(self) -> bool:
        """Whether the raster runs along m."""
        return self.raster == "m"

    @property
    def name(self) -> str:
        """A stable, readable key, such as ``128x192x64_c2x1x1_s4_pong_o1_rm8``."""
        return (
            f"{'swap_' if self.swap_ab else ''}{self.tile_m}x{self.tile_n}x{self.tile_k}"
            f"_c{self.cluster_m}x{self.cluster_n}x{self.split_k}_s{self.stages}_{self.schedule}"
            f"_o{self.ctas_per_sm}_r{self.raster}{self.swizzle}"
        )

    @classmethod
    def parse(cls, name: str) -> QuackConfig | None:
        """Read a config back from its name; None where it is not one of these."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        fields = match.groupdict()
        swap_ab = bool(fields.pop("swap_ab"))
        raster, schedule = fields.pop("raster"), fields.pop("schedule")
        numbers = {name: int(value) for name, value in fields.items()}
        return cls(**numbers, raster=raster, schedule=schedule, swap_ab=swap_ab)
