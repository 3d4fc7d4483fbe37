"""QuACK's SM90 GEMM with a split of k through memory, as a kernel family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np

from tilecast.heuristics.config import Geometry
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.quack.family import configs_of
from tilecast.kernels.quack.parts import launch_with_room, parts_of
from tilecast.kernels.quack_sm90.family import QUACK_SM90
from tilecast.kernels.quack_sm90_memory import space
from tilecast.kernels.quack_sm90_memory.config import MemoryConfig
from tilecast.kernels.spec import KernelSpec


def _resources(
    geometry: Geometry, operands: GemmOperands
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Those of the product of a part."""
    return QUACK_SM90.resources(geometry, parts_of(operands))


def _launcher(
    function: Callable[..., object], spec: KernelSpec, device: int
) -> Callable[..., object]:
    """What launches a cluster for every tile of each part."""
    return launch_with_room(function, spec, cast("MemoryConfig", spec.config).split_k)


QUACK_SM90_MEMORY = replace(
    QUACK_SM90,
    name=MemoryConfig.family,
    compiler="tilecast.kernels.quack_sm90_memory.kernel",
    rehearsal=MemoryConfig(64, 16, 64, split_k=2),
    config_rules=space.CONFIG_RULES,
    problem_rules=space.PROBLEM_RULES,
    invariant_rules=space.INVARIANT_RULES,
    parse=MemoryConfig.parse,
    points=space.points,
    configs=partial(configs_of, MemoryConfig),
    resources=_resources,
    splits_apart=True,
    stock=space.stock_configs,
    launcher=_launcher,
)
