"""The toy as a `tilecast.kernels.families.KernelFamily`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilecast.heuristics.config import Geometry, KernelConfig
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.rules import PROBLEM, Conditions, Rule


def _one_product(c: Geometry, problem: GemmProblem, hardware: Hardware) -> Conditions:
    yield problem.batch > 1, f"batch is {problem.batch}"


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
    config_rules: ClassVar[tuple[Rule[GemmOperands], ...]] = ()
    problem_rules: ClassVar[tuple[Rule[GemmProblem], ...]] = (
        Rule("toy-batch", PROBLEM, "the toy multiplies two matrices", _one_product),
    )

    def parse(self, name: str) -> ToyConfig | None:
        match = re.fullmatch(r"toy_(\d+)x(\d+)", name)
        return ToyConfig(int(match[1]), int(match[2])) if match else None

    def points(self, operands) -> Geometry:
        return self.geometry((ToyConfig(8, 32), ToyConfig(16, 16)))

    def configs(self, geometry: Geometry) -> list[ToyConfig]:
        tiles = zip(geometry.tile_m.tolist(), geometry.tile_n.tolist(), strict=True)
        return [ToyConfig(rows, columns) for rows, columns in tiles]

    def geometry(self, configs) -> Geometry:
        one, no = np.ones(len(configs), int), np.zeros(len(configs), bool)
        rows = np.array([config.rows for config in configs], int)
        columns = np.array([config.columns for config in configs], int)
        return Geometry(rows, columns, one, one, one, one, one, one, no, one, no, one, no)

    def resources(self, geometry: Geometry, operands) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        one = np.ones(len(geometry))
        return 1024 * one, 32 * one, one

    def stock(self, operands, hardware) -> tuple[ToyConfig, ...]:
        return ()

    def rehearse(self) -> None:
        pass

    def compile(self, spec, symbol) -> bytes:
        from toy_family.kernel import compile_object

        return compile_object(spec, self.arch, symbol)

    def launcher(self, function, spec, device):
        return function
