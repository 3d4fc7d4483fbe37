"""QuACK's SM100 GEMM as a kernel family."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np

from tilecast.heuristics.config import Geometry
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.family import KernelFamily
from tilecast.kernels.quack.family import ENVIRONMENT, PACKAGES, configs_of, launch_with
from tilecast.kernels.quack.parts import launch_with_room
from tilecast.kernels.quack_sm100 import resources, space
from tilecast.kernels.quack_sm100.config import Sm100Config
from tilecast.kernels.quack_sm100.efficiency import mma_efficiency
from tilecast.kernels.spec import KernelSpec


def _resources(c: Geometry, operands: GemmOperands) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shared memory of a CTA, registers of a thread, and what it loads of the accumulators."""
    loaded = c.tile_m * resources.epilogue_columns(c) // 128
    registers = np.full(len(c), resources.REGISTERS)
    return resources.smem_bytes(c, operands), registers, loaded


def _launcher(
    function: Callable[..., object], spec: KernelSpec, device: int
) -> Callable[..., object]:
    """What launches a cluster for every tile: those that run take over from those that wait."""
    splits = cast("Sm100Config", spec.config).split_k
    if splits > 1:
        return launch_with_room(function, spec, splits)
    return launch_with(function, spec, 1)


QUACK_SM100 = KernelFamily(
    name=Sm100Config.family,
    # All of Blackwell's data centre parts run it (PTX ISA, family-specific targets).
    arch="sm_100f",
    runs_on=("sm_100a", "sm_103a"),
    packages=PACKAGES,
    compiler="tilecast.kernels.quack_sm100.kernel",
    environment=ENVIRONMENT,
    rehearsal=Sm100Config(64, 16, 64),
    config_rules=space.CONFIG_RULES,
    problem_rules=space.PROBLEM_RULES,
    invariant_rules=space.INVARIANT_RULES,
    parse=Sm100Config.parse,
    points=space.points,
    configs=partial(configs_of, Sm100Config),
    geometry=space.geometry,
    resources=_resources,
    mma_efficiency=mma_efficiency,
    splits_apart=True,
    stock=space.stock_configs,
    launcher=_launcher,
)
