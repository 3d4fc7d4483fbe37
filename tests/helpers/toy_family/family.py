"""The toy as a `tilecast.kernels.family.KernelFamily`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilecast.heuristics.config import Geometry, KernelConfig
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.family import KernelFamily
from tilecast.kernels.rules import PROBLEM, Broken, Rule


def _one_product(c: Geometry, problem: GemmProblem, hardware: Hardware) -> Broken:
    return problem.batch > 1


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


def _parse(name: str) -> ToyConfig | None:
    match = re.fullmatch(r"toy_(\d+)x(\d+)", name)
    return ToyConfig(int(match[1]), int(match[2])) if match else None


def _configs(geometry: Geometry) -> list[ToyConfig]:
    tiles = zip(geometry.tile_m.tolist(), geometry.tile_n.tolist(), strict=True)
    return [ToyConfig(rows, columns) for rows, columns in tiles]


def _geometry(configs) -> Geometry:
    one, no = np.ones(len(configs), int), np.zeros(len(configs), bool)
    rows = np.array([config.rows for config in configs], int)
    columns = np.array([config.columns for config in configs], int)
    return Geometry(rows, columns, one, one, one, one, one, one, no, one, no, one, no)


def _resources(geometry: Geometry, operands) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    one = np.ones(len(geometry))
    return 1024 * one, 32 * one, one


TOY = KernelFamily(
    name="toy",
    arch="sm_90a",
    runs_on=("sm_90a",),
    packages=("nvidia-cutlass-dsl", "apache-tvm-ffi"),
    compiler="toy_family.kernel",
    environment={},
    rehearsal=ToyConfig(8, 32),
    config_rules=(),
    problem_rules=(Rule("toy-batch", PROBLEM, "the toy multiplies two matrices", _one_product),),
    invariant_rules=(),
    parse=_parse,
    points=lambda operands, hardware: _geometry((ToyConfig(8, 32), ToyConfig(16, 16))),
    configs=_configs,
    geometry=_geometry,
    resources=_resources,
    mma_efficiency=lambda columns, operands: np.ones(len(columns)),
    splits_apart=False,
    stock=lambda operands, hardware: (),
    launcher=lambda function, spec, device: function,
)
