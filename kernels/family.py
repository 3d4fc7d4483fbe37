"""What a kernel family is: kernels of one source with one set of knobs, behind one contract.

A family is a folder of this package and one line in `tilecast.kernels.families`. Nothing else has
to know it: candidates, features, compilation, launch and the hook ask through this contract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from tilecast.heuristics.config import ConfigColumns, Geometry, KernelConfig
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.rules import Rule
from tilecast.kernels.spec import KernelSpec


@dataclass(frozen=True, eq=False)
class KernelFamily:
    """Kernels of one source with one set of knobs; its functions take configs of its own alone."""

    name: str
    """Short key; the folder's name."""
    arch: str
    """Target of the compiler that its kernels are written for."""
    runs_on: tuple[str, ...]
    """The `Hardware.arch` of all GPUs that run what is compiled for that target."""
    packages: tuple[str, ...]
    """Distributions whose versions decide what a config compiles to."""
    compiler: str
    """Module whose ``compile_kernel(spec, arch, symbol)`` makes an object file that exports the
    symbol, without a GPU. Its text decides that, too, and the text of all that it imports."""
    environment: Mapping[str, str]
    """Variables of the environment in which it compiles."""
    rehearsal: KernelConfig
    """A small config. It is compiled for all that a process does with its first kernel alone, in a
    process that others are forked from, which has neither threads nor a GPU and gets none."""
    config_rules: tuple[Rule[GemmOperands], ...]
    """What makes a config compile and run, and what a pilot left of that, in the order in which
    they are asked. Where a config breaks the one named ``axes``, the others are not asked."""
    problem_rules: tuple[Rule[GemmProblem], ...]
    """What arithmetic excludes for one problem."""
    invariant_rules: tuple[Rule[GemmOperands], ...]
    """What excludes kernels where a row has to have the same bits in every batch. Kernels that
    break none of these agree bit for bit: they round the same sums in the same order, whatever
    their tile, and wherever the row is in it."""
    parse: Callable[[str], KernelConfig | None]
    """The config of a name; None where the name is not one of this family's."""
    points: Callable[[GemmOperands, Hardware], Geometry]
    """Every point of the axes for operands on a GPU, with as many stages as are tried, valid or
    not, in the order of the space."""
    configs: Callable[[Geometry], Sequence[KernelConfig]]
    """The config of each row."""
    geometry: Callable[[Sequence[Any]], Geometry]
    """The common view of some configs."""
    resources: Callable[[Geometry, GemmOperands], tuple[np.ndarray, np.ndarray, np.ndarray]]
    """What `ConfigColumns` has beside the geometry, in its order."""
    mma_efficiency: Callable[[ConfigColumns, GemmOperands], np.ndarray]
    """Share of the tensor cores' rate that the shape of an instruction can reach, with what is done
    to operands and sums in between; float64 [configs]."""
    splits_apart: bool
    """Whether CTAs that split k share no cluster and leave their sums in memory, which a second
    kernel adds up."""
    stock: Callable[[GemmOperands, Hardware], Sequence[KernelConfig]]
    """The configs that stand for the kernels of ``cutlass.operators``, in its order."""
    launcher: Callable[[Callable[..., object], KernelSpec, int], Callable[..., object]]
    """What launches a loaded kernel as ``launch(a, b, out, *extras)`` on the current stream, given
    what the object exports, what it was compiled from, and the CUDA device."""

    def compile(self, spec: KernelSpec, symbol: str) -> bytes:
        """Compile a kernel; called in a builder process, from one thread."""
        return import_module(self.compiler).compile_kernel(spec, self.arch, symbol)
