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

from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.cutlass_sm90.config import Sm90Config


@dataclass(frozen=True)
class Exclusion:
    """Two values that together were never near the best."""

    values: dict[str, object]
    """Field of the config, ``cluster`` for (cluster_m, cluster_n) or ``tile_k_bytes``, and its
    value."""
    margin: float
    """How far behind its best config was, as a share of the best, where it came closest."""

    def matches(self, config: Sm90Config, operands: GemmOperands) -> bool:
        """Whether a config has both values."""
        return all(_field(config, operands, name) == value for name, value in self.values.items())

    def __str__(self) -> str:
        """The two values."""
        return " with ".join(f"{name} {value}" for name, value in self.values.items())


def _field(config: Sm90Config, operands: GemmOperands, name: str) -> object:
    if name == "cluster":
        return (config.cluster_m, config.cluster_n)
    if name == "tile_k_bytes":
        return operands.a.dtype.bytes(config.tile_k)
    return getattr(config, name)


@dataclass(frozen=True)
class Pilot:
    """What one pilot showed."""

    gpu: str
    """The GPU model that it ran on."""
    operands: str
    """What it multiplied."""
    exclusions: tuple[Exclusion, ...]
    """Pairs of values that were never near the best, in the order in which they were found; a
    later one counts what the earlier ones left."""
    schedules: tuple[tuple[str, int], ...]
    """Raster and swizzle that are tried."""
    deep: int
    """A pipeline that holds this many stages is worth trying with fewer, too."""


PILOTS = (
    Pilot(
        "H200",
        "bf16:rcr",
        exclusions=(
            Exclusion({"tile_n": 64, "swap_ab": False}, 0.020),
            Exclusion({"tile_m": 256, "ctas_per_sm": 2}, 0.042),
            Exclusion({"cluster": (2, 2), "ctas_per_sm": 2}, 0.065),
            Exclusion({"tile_m": 128, "tile_n": 48}, 0.022),
            Exclusion({"tile_n": 48, "ctas_per_sm": 2}, 0.030),
            Exclusion({"tile_k_bytes": 256, "cluster": (4, 1)}, 0.022),
            Exclusion({"tile_n": 48, "warp_groups": 2}, 0.022),
            Exclusion({"tile_m": 256, "tile_n": 48}, 0.045),
            Exclusion({"cluster": (4, 1), "ctas_per_sm": 2}, 0.028),
            Exclusion({"tile_m": 64, "tile_n": 64}, 0.026),
            Exclusion({"tile_n": 160, "tile_k_bytes": 256}, 0.030),
            Exclusion({"tile_n": 32, "cluster": (2, 2)}, 0.031),
            Exclusion({"tile_n": 32, "cluster": (4, 1)}, 0.028),
            Exclusion({"tile_n": 32, "cluster": (1, 4)}, 0.065),
            Exclusion({"tile_n": 64, "cluster": (2, 2)}, 0.102),
            Exclusion({"tile_n": 64, "cluster": (1, 2)}, 0.024),
            Exclusion({"tile_n": 64, "cluster": (1, 4)}, 0.026),
            Exclusion({"tile_n": 256, "tile_k_bytes": 256}, 0.028),
            Exclusion({"tile_n": 224, "tile_k_bytes": 256}, 0.028),
            Exclusion({"tile_n": 160, "ctas_per_sm": 2}, 0.036),
            Exclusion({"tile_n": 128, "cluster": (4, 1)}, 0.054),
            Exclusion({"tile_n": 128, "cluster": (1, 4)}, 0.035),
            Exclusion({"tile_n": 128, "cluster": (2, 2)}, 0.046),
            Exclusion({"tile_n": 160, "cluster": (2, 2)}, 0.067),
            Exclusion({"tile_n": 160, "cluster": (4, 1)}, 0.060),
            Exclusion({"tile_n": 192, "ctas_per_sm": 2}, 0.038),
        ),
        # With all stages measured, these three lose 0.014% against all eight orders (0.5% at most);
        # the first alone loses 0.12% (2.4% at most).
        schedules=(("m", 1), ("n", 1), ("n", 4)),
        deep=6,
    ),
)
"""Every pilot so far."""


def pilot_for(operands: GemmOperands, hardware: Hardware) -> Pilot:
    """The pilot of operands on a GPU; where none ran, the first stands in."""
    asked = (hardware.name, operands.text)
    return next((p for p in PILOTS if (p.gpu, p.operands) == asked), PILOTS[0])
