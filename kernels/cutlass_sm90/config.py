"""The knobs of the tunable kernel on ``cutlass.operators``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from tilecast.heuristics.config import KernelConfig

_NAME = re.compile(
    r"(?P<swap_ab>swap_)?(?P<tile_m>[1-9]\d{0,8})x(?P<tile_n>[1-9]\d{0,8})x(?P<tile_k>[1-9]\d{0,8})"
    r"_c(?P<cluster_m>[1-9]\d{0,8})x(?P<cluster_n>[1-9]\d{0,8})_s(?P<stages>[1-9]\d{0,8})"
    r"_w(?P<warp_groups>[1-9]\d{0,8})_o(?P<ctas_per_sm>[1-9]\d{0,8})"
    r"_r(?P<raster>[mn])(?P<swizzle>[1-9]\d{0,8})",
    re.ASCII,
)


@dataclass(frozen=True, order=True)
class Sm90Config(KernelConfig):
    """The tile, cluster, pipeline and schedule of a GEMM kernel; it says nothing about m, n, k."""

    family: ClassVar[str] = "cutlass_sm90"

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
    stages: int = 2
    """Stages of the A and B pipeline in shared memory."""
    warp_groups: int = 1
    """MMA warp groups of 128 threads that split the tile along m; one that loads comes on top."""
    ctas_per_sm: int = 1
    """CTAs that share one SM, its shared memory and registers."""
    raster: str = "m"
    """Extent along which consecutive tiles are handed out."""
    swizzle: int = 1
    """Width in clusters of the band that the raster walks; 1 is no swizzle."""
    swap_ab: bool = False
    """Solve out^T = B^T A^T: the tile's m runs along the problem's n."""

    @property
    def name(self) -> str:
        """A stable, readable key, such as ``128x256x64_c2x1_s4_w2_o1_rm1``; `parse` reads it."""
        return (
            f"{'swap_' if self.swap_ab else ''}{self.tile_m}x{self.tile_n}x{self.tile_k}"
            f"_c{self.cluster_m}x{self.cluster_n}_s{self.stages}_w{self.warp_groups}"
            f"_o{self.ctas_per_sm}_r{self.raster}{self.swizzle}"
        )

    @classmethod
    def parse(cls, name: str) -> Sm90Config | None:
        """Read a config back from its name; None where it is not one of these."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        fields = match.groupdict()
        swap_ab, raster = bool(fields.pop("swap_ab")), fields.pop("raster")
        return cls(**{k: int(v) for k, v in fields.items()}, raster=raster, swap_ab=swap_ab)
