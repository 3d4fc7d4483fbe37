"""The kernel families that there are, and what is asked of all of them at once."""

from __future__ import annotations

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.kernels.cutlass_sm90.family import CutlassSm90
from tilecast.kernels.family import KernelFamily
from tilecast.kernels.quack_sm90.family import QuackSm90

FAMILIES: dict[str, KernelFamily] = {family.name: family for family in (CutlassSm90(), QuackSm90())}
"""Every family by its name, in the order in which their candidates are listed."""
UNTRAINED = frozenset({"cutlass_sm90"})
"""Those that no shipped data and no model knows yet: candidates only for who names them."""


def trained() -> tuple[str, ...]:
    """The families whose configs are every problem's candidates."""
    return tuple(name for name in FAMILIES if name not in UNTRAINED)


def family_of(config: KernelConfig) -> KernelFamily:
    """The family of a config."""
    return FAMILIES[config.family]


def parse_config(name: str) -> KernelConfig:
    """Read a config back from its name.

    Raises:
        TilecastError: no family has a config of this name.
    """
    for family in FAMILIES.values():
        config = family.parse(name)
        if config is not None:
            return config
    raise TilecastError(
        f"config {name[:100]!r} is not a config name; allowed: names such as "
        "128x256x64_c2x1_s4_w2_o1_rm1; `tilecast space --list` lists them"
    )
