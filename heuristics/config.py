"""One point of the tuning space: how a kernel is cut up, whatever it multiplies."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilecast.heuristics.errors import TilecastError

_NAME = re.compile(
    r"(?P<swap_ab>swap_)?(?P<tile_m>\d+)x(?P<tile_n>\d+)x(?P<tile_k>\d+)"
    r"_c(?P<cluster_m>\d+)x(?P<cluster_n>\d+)_s(?P<stages>\d+)_w(?P<warp_groups>\d+)"
    r"_o(?P<ctas_per_sm>\d+)_r(?P<raster>[mn])(?P<swizzle>\d+)(_k(?P<split_k>\d+))?"
)


@dataclass(frozen=True, order=True)
class KernelConfig:
    """The tile, cluster, pipeline and schedule of a GEMM kernel; it says nothing about m, n, k."""

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
    split_k: int = 1
    """CTAs that share one output tile's k range; 1 until the kernel can split."""
    swap_ab: bool = False
    """Solve out^T = B^T A^T: the tile's m runs along the problem's n."""

    @property
    def name(self) -> str:
        """A stable, readable key, such as ``128x256x64_c2x1_s4_w2_o1_rm1``; `parse` reads it."""
        return (
            f"{'swap_' if self.swap_ab else ''}{self.tile_m}x{self.tile_n}x{self.tile_k}"
            f"_c{self.cluster_m}x{self.cluster_n}_s{self.stages}_w{self.warp_groups}"
            f"_o{self.ctas_per_sm}_r{self.raster}{self.swizzle}"
            + (f"_k{self.split_k}" if self.split_k > 1 else "")
        )

    @classmethod
    def parse(cls, name: str) -> KernelConfig:
        """Read a config back from its name.

        Raises:
            TilecastError: the text is not a config name.
        """
        match = _NAME.fullmatch(name)
        if match is None:
            raise TilecastError(
                f"config {name!r} is not a config name; allowed: names such as "
                "128x256x64_c2x1_s4_w2_o1_rm1; `tilecast space` lists them"
            )
        fields = match.groupdict()
        swap_ab, raster = bool(fields.pop("swap_ab")), fields.pop("raster")
        split_k = fields.pop("split_k") or 1
        numbers = {key: int(value) for key, value in fields.items()}
        return cls(**numbers, raster=raster, split_k=int(split_k), swap_ab=swap_ab)

    def __str__(self) -> str:
        """The name."""
        return self.name
