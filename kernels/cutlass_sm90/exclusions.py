"""What a pilot on an H200 excluded from the space; `benchmarks/space_pruning.py` derives it.

The pilot timed every config that runs, with the deepest pipeline that fits, on 41 problems of the
training suite, and the other stages and raster orders of those near the best. A pair of values is
excluded if no config that has both came within 2% of the best on any pilot problem in any power
regime. Derived on three quarters of the pilot and scored on the fourth, in turn, such an exclusion
costs 0.2% (geomean; 2.8% at most); no single value loses everywhere, and excluding triples, too,
would cost the same and leave 398 tiles and clusters instead of 656.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilecast.heuristics.config import KernelConfig


@dataclass(frozen=True)
class Loser:
    """Two values that together were never near the best."""

    values: dict[str, object]
    """Field of the config, or ``cluster`` for (cluster_m, cluster_n), and its value."""
    margin: float
    """How far behind its best config was, as a share of the best, where it came closest."""

    def matches(self, config: KernelConfig) -> bool:
        """Whether a config has both values."""
        return all(_field(config, name) == value for name, value in self.values.items())


def describe(loser: Loser) -> str:
    """The two values as text."""
    return " with ".join(f"{name} {value}" for name, value in loser.values.items())


def _field(config: KernelConfig, name: str) -> object:
    if name == "cluster":
        return (config.cluster_m, config.cluster_n)
    return getattr(config, name)


NEVER_NEAR = (
    Loser({"tile_n": 64, "swap_ab": False}, 0.020),
    Loser({"tile_m": 256, "ctas_per_sm": 2}, 0.042),
    Loser({"cluster": (2, 2), "ctas_per_sm": 2}, 0.065),
    Loser({"tile_m": 128, "tile_n": 48}, 0.022),
    Loser({"tile_n": 48, "ctas_per_sm": 2}, 0.030),
    Loser({"tile_k": 128, "cluster": (4, 1)}, 0.022),
    Loser({"tile_n": 48, "warp_groups": 2}, 0.022),
    Loser({"tile_m": 256, "tile_n": 48}, 0.045),
    Loser({"cluster": (4, 1), "ctas_per_sm": 2}, 0.028),
    Loser({"tile_m": 64, "tile_n": 64}, 0.026),
    Loser({"tile_n": 160, "tile_k": 128}, 0.030),
    Loser({"tile_n": 32, "cluster": (2, 2)}, 0.031),
    Loser({"tile_n": 32, "cluster": (4, 1)}, 0.028),
    Loser({"tile_n": 32, "cluster": (1, 4)}, 0.065),
    Loser({"tile_n": 64, "cluster": (2, 2)}, 0.102),
    Loser({"tile_n": 64, "cluster": (1, 2)}, 0.024),
    Loser({"tile_n": 64, "cluster": (1, 4)}, 0.026),
    Loser({"tile_n": 256, "tile_k": 128}, 0.028),
    Loser({"tile_n": 224, "tile_k": 128}, 0.028),
    Loser({"tile_n": 160, "ctas_per_sm": 2}, 0.036),
    Loser({"tile_n": 128, "cluster": (4, 1)}, 0.054),
    Loser({"tile_n": 128, "cluster": (1, 4)}, 0.035),
    Loser({"tile_n": 128, "cluster": (2, 2)}, 0.046),
    Loser({"tile_n": 160, "cluster": (2, 2)}, 0.067),
    Loser({"tile_n": 160, "cluster": (4, 1)}, 0.060),
    Loser({"tile_n": 192, "ctas_per_sm": 2}, 0.038),
)
"""In the order in which they were found; a later one counts what the earlier ones left."""

SCHEDULES = (("m", 1), ("n", 1), ("n", 4))
"""Raster and swizzle that are tried. With all stages measured, these three lose 0.014% against all
eight orders (0.5% at most); the first alone loses 0.12% (2.4% at most)."""
