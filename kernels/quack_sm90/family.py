"""QuACK's SM90 GEMM as a kernel family."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np

from tilecast.heuristics.config import Geometry
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.family import KernelFamily
from tilecast.kernels.occupancy import max_active_clusters
from tilecast.kernels.quack.family import (
    ENVIRONMENT,
    PACKAGES,
    columns_of,
    configs_of,
    launch_with,
)
from tilecast.kernels.quack_sm90 import resources, space
from tilecast.kernels.quack_sm90.axes import with_warp_groups
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.quack_sm90.efficiency import mma_efficiency
from tilecast.kernels.spec import KernelSpec


def _resources(
    geometry: Geometry, operands: GemmOperands
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shared memory of a CTA, registers per MMA thread, and accumulators among these."""
    return (
        resources.smem_bytes(geometry, operands),
        resources.registers(geometry, operands)[1],
        resources.accumulator_registers(geometry, operands),
    )


def _launcher(
    function: Callable[..., object], spec: KernelSpec, device: int
) -> Callable[..., object]:
    """What launches as many CTAs as the device holds at once."""
    config = cast("QuackConfig", spec.config)
    clusters = 1  # where k is split every tile has a cluster of its own, however many fit
    if config.split_k == 1:
        clusters = max_active_clusters(config.cluster_m * config.cluster_n, device)
    return launch_with(function, spec, clusters * config.ctas_per_sm)


QUACK_SM90 = KernelFamily(
    name=QuackConfig.family,
    arch="sm_90a",
    runs_on=("sm_90a",),
    packages=PACKAGES,
    compiler="tilecast.kernels.quack_sm90.fused",
    environment=ENVIRONMENT,
    rehearsal=QuackConfig(64, 16, 64),
    config_rules=space.CONFIG_RULES,
    problem_rules=space.PROBLEM_RULES,
    invariant_rules=space.INVARIANT_RULES,
    parse=QuackConfig.parse,
    points=space.AXES.points,
    configs=partial(configs_of, QuackConfig),
    geometry=lambda configs: with_warp_groups(columns_of(configs)),
    resources=_resources,
    mma_efficiency=mma_efficiency,
    splits_apart=False,
    stock=space.stock_configs,
    launcher=_launcher,
)
