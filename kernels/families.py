"""The kernel families that there are, and what is asked of all of them at once."""

from __future__ import annotations

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.kernels.family import KernelFamily
from tilecast.kernels.quack_sm90.family import QUACK_SM90
from tilecast.kernels.quack_sm90_memory.family import QUACK_SM90_MEMORY
from tilecast.kernels.quack_sm100.family import QUACK_SM100

FAMILIES: dict[str, KernelFamily] = {
    family.name: family for family in (QUACK_SM90, QUACK_SM90_MEMORY, QUACK_SM100)
}
"""Every family by its name, in the order in which their candidates are listed."""
UNSTATED = frozenset({QUACK_SM90.name, QUACK_SM100.name})
"""What a model learned from whose manifest states no families: those that there were then."""


def same_code(one: str, other: str) -> bool:
    """Whether GPUs of two architectures run the same kernels, as a family has them."""
    return any({one, other} <= set(family.runs_on) for family in FAMILIES.values())


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
        "128x256x64_c2x1x1_s4_coop_o1_rm8; `tilecast space --list` lists them"
    )
