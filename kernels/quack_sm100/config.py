"""The knobs of QuACK's SM100 GEMM."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from tilecast.heuristics.config import KernelConfig

_NUMBER, _SEVERAL = r"[1-9]\d{0,8}", r"[2-9]|[1-9]\d{1,8}"
_NAME = re.compile(
    rf"(?P<swap_ab>swap_)?sm100_(?P<tile_m>{_NUMBER})x(?P<tile_n>{_NUMBER})x(?P<tile_k>{_NUMBER})"
    rf"_c(?P<cluster_m>{_NUMBER})x(?P<cluster_n>{_NUMBER})(x(?P<split_k>{_SEVERAL}))?"
    rf"_s(?P<stages>{_NUMBER})"
    rf"_r(?P<raster>[mn])(?P<swizzle>{_NUMBER})",
    re.ASCII,
)


@dataclass(frozen=True, order=True)
class Sm100Config(KernelConfig):
    """The tile, cluster and pipeline of a GEMM kernel; it says nothing about m, n, k.

    The hardware hands tiles out as CTAs become free (cluster launch control). With two accumulators
    in tensor memory one tile is stored while the next is multiplied.
    """

    family: ClassVar[str] = "quack_sm100"

    tile_m: int
    """Rows of the output tile of one CTA; a pair of CTAs has twice as many."""
    tile_n: int
    """Columns of the output tile of one CTA, which a pair shares."""
    tile_k: int
    """Depth of one pipeline stage, in elements."""
    cluster_m: int = 1
    """CTAs along m that share loads of B; where they are even in number, pairs multiply together
    and each CTA of a pair keeps half of B's columns."""
    cluster_n: int = 1
    """CTAs along n that share loads of A by multicast."""
    split_k: int = 1
    """Stretches of k that CTAs multiply apart. They leave their sums in memory, in float32; behind
    them a second kernel adds these up in order and finishes the product."""
    stages: int = 2
    """Stages of the A and B pipeline in shared memory."""
    raster: str = "m"
    """Extent along which consecutive tiles are handed out."""
    swizzle: int = 8
    """Width in clusters of the band that the raster walks; 1 is no swizzle."""
    swap_ab: bool = False
    """Solve out^T = B^T A^T: the tile's m runs along the problem's n."""

    @property
    def name(self) -> str:
        """A key, such as ``sm100_128x256x64_c2x1_s6_rm8``; with k split, ``_c2x1x4_``."""
        split = f"x{self.split_k}" if self.split_k > 1 else ""
        return (
            f"{'swap_' if self.swap_ab else ''}sm100_{self.tile_m}x{self.tile_n}x{self.tile_k}"
            f"_c{self.cluster_m}x{self.cluster_n}{split}_s{self.stages}_r{self.raster}{self.swizzle}"
        )

    @classmethod
    def parse(cls, name: str) -> Sm100Config | None:
        """Read a config back from its name; None where it is not one of these."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        fields = match.groupdict()
        swap_ab, raster = bool(fields.pop("swap_ab")), fields.pop("raster")
        numbers = {name: int(value or 1) for name, value in fields.items()}
        return cls(**numbers, raster=raster, swap_ab=swap_ab)
