"""The kernel families: their contract, and those that there are.

A family is kernels of one source with one set of knobs: a folder of this package and one line here.
Nothing else has to know it: candidates, features, compilation, launch and the hook ask through the
contract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from tilecast.heuristics.config import Geometry, KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.quack_sm90.family import QuackSm90
from tilecast.kernels.rules import Rule
from tilecast.kernels.spec import KernelSpec


class KernelFamily(Protocol):
    """Kernels of one source with one set of knobs; it is asked about configs of its own alone."""

    name: ClassVar[str]
    """Short key; the folder's name."""
    arch: ClassVar[str]
    """Target of the compiler that its kernels are written for."""
    packages: ClassVar[tuple[str, ...]]
    """Distributions whose versions decide what a config compiles to."""
    compiler: ClassVar[str]
    """Module that compiles: its text decides that, too, and the text of all that it imports."""
    environment: ClassVar[Mapping[str, str]]
    """Variables of the environment in which it compiles."""
    config_rules: ClassVar[tuple[Rule[GemmOperands], ...]]
    """What makes a config compile and run, and what a pilot left of that, in the order in which
    they are asked. Where a config breaks the one named ``axes``, the others are not asked."""
    problem_rules: ClassVar[tuple[Rule[GemmProblem], ...]]
    """What arithmetic excludes for one problem."""

    def parse(self, name: str) -> KernelConfig | None:
        """The config of a name; None where the name is not one of this family's."""
        ...

    def points(self, operands: GemmOperands) -> Geometry:
        """Every point that the axes span for operands, valid or not, in the order of the space."""
        ...

    def configs(self, geometry: Geometry) -> Sequence[KernelConfig]:
        """The config of each row."""
        ...

    def geometry(self, configs: Sequence[Any]) -> Geometry:
        """The common view of some configs."""
        ...

    def resources(
        self, geometry: Geometry, operands: GemmOperands
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What `ConfigColumns` has beside the geometry, in its order."""
        ...

    def stock(self, operands: GemmOperands, hardware: Hardware) -> Sequence[KernelConfig]:
        """The configs that stand for the kernels of ``cutlass.operators``, in its order."""
        ...

    def rehearse(self) -> None:
        """Compile a small kernel, for all that a process does with its first one alone.

        Called in a process that others are forked from, which has neither threads nor a GPU and
        gets none.
        """
        ...

    def compile(self, spec: KernelSpec, symbol: str) -> bytes:
        """Compile a kernel into an object file that exports ``symbol``; needs no GPU.

        Called in a builder process, from one thread.
        """
        ...

    def launcher(
        self, function: Callable[..., object], spec: KernelSpec, device: int
    ) -> Callable[..., object]:
        """What launches a loaded kernel as ``launch(a, b, out, *extras)`` on the current stream.

        Args:
            function: what the object exports.
            spec: what it was compiled from.
            device: the CUDA device that it will run on.
        """
        ...


FAMILIES: dict[str, KernelFamily] = {family.name: family for family in (QuackSm90(),)}
"""Every family by its name, in the order in which their candidates are listed."""


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
