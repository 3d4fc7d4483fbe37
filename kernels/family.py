"""What a kernel family is: kernels of one source with one set of knobs, behind one contract.

A family is a folder of this package and one line in `tilecast.kernels.families`. Nothing else has
to know it: candidates, features, compilation, launch and the hook ask through this contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from tilecast.heuristics.config import Geometry, KernelConfig, Resources
from tilecast.heuristics.config_table import ConfigColumns
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.spec import KernelSpec

HARDWARE, MEASURED, PROBLEM = "hardware", "measured", "problem"
"""Kinds of rules: what does not compile or run; what a pilot showed never to be near the best; what
arithmetic excludes for one m, n, k."""


@dataclass(frozen=True)
class Rule:
    """Why configs are left out of a space."""

    name: str
    """Short key, used by ``tilecast space``."""
    kind: str
    """`HARDWARE`, `MEASURED` or `PROBLEM`."""
    reason: str
    """Why such a config cannot run, or cannot pay."""


@dataclass(frozen=True)
class Violation:
    """A rule that a config breaks."""

    rule: Rule
    """The rule."""
    text: str
    """What is wrong, with the numbers."""


class KernelFamily(Protocol):
    """Kernels of one source with one set of knobs; it is asked about configs of its own alone.

    Validity is stated here once, each rule with its reason; collector, ranker and hook ask.
    """

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

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Its rules, in the order in which they are asked."""
        ...

    def parse(self, name: str) -> KernelConfig | None:
        """The config of a name; None where the name is not one of this family's."""
        ...

    def points(self, operands: GemmOperands) -> Iterator[KernelConfig]:
        """Every point that the axes span for operands, valid or not."""
        ...

    def configs(self, operands: GemmOperands, hardware: Hardware) -> Sequence[KernelConfig]:
        """The space: what no rule about hardware or pilot excludes, in a fixed order."""
        ...

    def excluded(
        self, problem: GemmProblem, columns: ConfigColumns, hardware: Hardware
    ) -> np.ndarray:
        """What rules about the problem exclude of the space; bool [configs]."""
        ...

    def violations(
        self,
        config: Any,
        operands: GemmOperands,
        hardware: Hardware,
        problem: GemmProblem | None = None,
    ) -> Iterator[Violation]:
        """The rules that one config breaks, in order; those about a problem if one is given."""
        ...

    def geometry(self, config: Any) -> Geometry:
        """The common view of a config, from which features are computed."""
        ...

    def resources(self, config: Any, operands: GemmOperands) -> Resources:
        """What a config takes from an SM."""
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
