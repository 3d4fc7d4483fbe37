"""The toy as a `tilecast.kernels.family.KernelFamily`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilecast.heuristics.config import Geometry, KernelConfig, Resources
from tilecast.kernels.family import PROBLEM, Rule, Violation

BATCH = Rule("toy-batch", PROBLEM, "the toy multiplies two matrices")


@dataclass(frozen=True, order=True)
class ToyConfig(KernelConfig):
    """Threads of a block."""

    family: ClassVar[str] = "toy"

    rows: int
    columns: int

    @property
    def name(self) -> str:
        """Such as ``toy_8x32``."""
        return f"toy_{self.rows}x{self.columns}"


@dataclass(frozen=True)
class Toy:
    """See the contract."""

    name: ClassVar[str] = "toy"
    arch: ClassVar[str] = "sm_90a"
    packages: ClassVar[tuple[str, ...]] = ("nvidia-cutlass-dsl", "apache-tvm-ffi")
    compiler: ClassVar[str] = "toy_family.kernel"
    environment: ClassVar[Mapping[str, str]] = {}
    rules: ClassVar[tuple[Rule, ...]] = (BATCH,)

    def parse(self, name: str) -> ToyConfig | None:
        match = re.fullmatch(r"toy_(\d+)x(\d+)", name)
        return ToyConfig(int(match[1]), int(match[2])) if match else None

    def points(self, operands) -> Iterator[ToyConfig]:
        return iter((ToyConfig(8, 32), ToyConfig(16, 16)))

    def configs(self, operands, hardware) -> tuple[ToyConfig, ...]:
        return tuple(self.points(operands))

    def excluded(self, problem, columns, hardware) -> np.ndarray:
        return np.full(len(columns.tile_m), problem.batch > 1)

    def violations(self, config, operands, hardware, problem=None) -> Iterator[Violation]:
        if problem is not None and problem.batch > 1:
            yield Violation(BATCH, f"batch is {problem.batch}")

    def geometry(self, config: ToyConfig) -> Geometry:
        return Geometry(config.rows, config.columns, 1, 1, 1, 1, 1, 1, False, 1, False)

    def resources(self, config: ToyConfig, operands) -> Resources:
        return Resources(1024, 32, 1)

    def rehearse(self) -> None:
        pass

    def compile(self, spec, symbol) -> bytes:
        from toy_family.kernel import compile_object

        return compile_object(spec, self.arch, symbol)

    def launcher(self, function, spec, device):
        return function
