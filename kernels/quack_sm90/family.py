"""QuACK's SM90 GEMM as a kernel family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from tilecast.heuristics.config import Geometry
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.occupancy import max_active_clusters
from tilecast.kernels.quack_sm90 import resources, space
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.quack_sm90.space import stock_configs
from tilecast.kernels.rules import Rule
from tilecast.kernels.spec import KernelSpec


@dataclass(frozen=True)
class QuackSm90:
    """See `tilecast.kernels.families.KernelFamily`."""

    name: ClassVar[str] = QuackConfig.family
    arch: ClassVar[str] = "sm_90a"
    packages: ClassVar[tuple[str, ...]] = ("nvidia-cutlass-dsl", "quack-kernels", "apache-tvm-ffi")
    compiler: ClassVar[str] = "tilecast.kernels.quack_sm90.compiler"
    # The GPU that the DSL is to take for this host's. Into one that kernels are for it would load
    # each that it compiles; with none named it asks the driver, which makes it unfit to be forked.
    environment: ClassVar[Mapping[str, str]] = {"CUTE_DSL_ARCH": "sm_100a"}
    config_rules: ClassVar[tuple[Rule[GemmOperands], ...]] = space.CONFIG_RULES
    problem_rules: ClassVar[tuple[Rule[GemmProblem], ...]] = space.PROBLEM_RULES

    def parse(self, name: str) -> QuackConfig | None:
        """The config of a name; None where the name is not one of this family's."""
        return QuackConfig.parse(name)

    def points(self, operands: GemmOperands) -> Geometry:
        """Every point that the axes span, in the order of `QuackConfig`s."""
        return space.points(operands)

    def configs(self, geometry: Geometry) -> list[QuackConfig]:
        """The config of each row."""
        knobs = ("tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n", "split_k", "stages")
        numbers = (getattr(geometry, name).tolist() for name in (*knobs, "ctas_per_sm", "swizzle"))
        flags = (geometry.ping_pong, geometry.raster_m, geometry.swap_ab)
        rows = zip(*numbers, *(flag.astype(bool).tolist() for flag in flags), strict=True)
        return [
            QuackConfig(
                *tile,
                schedule="pong" if pong else "coop",
                ctas_per_sm=ctas,
                raster="m" if along_m else "n",
                swizzle=swizzle,
                swap_ab=swap_ab,
            )
            for *tile, ctas, swizzle, pong, along_m, swap_ab in rows
        ]

    def geometry(self, configs: Sequence[QuackConfig]) -> Geometry:
        """The common view of some configs."""
        numbers = {
            name: np.array([getattr(config, name, 0) for config in configs])
            for name in Geometry.__dataclass_fields__
        }
        return space.with_warp_groups(Geometry(**numbers))

    def resources(
        self, geometry: Geometry, operands: GemmOperands
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Shared memory of a CTA, registers per MMA thread, and accumulators among these."""
        return (
            resources.smem_bytes(geometry, operands),
            resources.registers(geometry, operands)[1],
            resources.accumulator_registers(geometry, operands),
        )

    def stock(self, operands: GemmOperands, hardware: Hardware) -> Sequence[QuackConfig]:
        """The configs that stand for the kernels of ``cutlass.operators``, in its order."""
        return stock_configs(operands, hardware)

    def rehearse(self) -> None:
        """Compile a small kernel."""
        self.compile(KernelSpec(QuackConfig(64, 16, 64), LINEAR_BF16), "rehearsal")

    def compile(self, spec: KernelSpec, symbol: str) -> bytes:
        """Compile a kernel into an object file that exports ``symbol``."""
        from tilecast.kernels.quack_sm90.compiler import compile_kernel

        return compile_kernel(spec, self.arch, symbol)

    def launcher(
        self, function: Callable[..., object], spec: KernelSpec, device: int
    ) -> Callable[..., object]:
        """``launch(a, b, out, *extras)`` with as many CTAs as the device holds at once."""
        config = cast("QuackConfig", spec.config)
        clusters = 1  # where k is split every tile has a cluster of its own, however many fit
        if config.split_k == 1:
            clusters = max_active_clusters(config.cluster_m * config.cluster_n, device)
        grid = clusters * config.ctas_per_sm
        if spec.operands.extras:
            return lambda a, b, out, *extras: function(a, b, out, extras, grid)
        return lambda a, b, out: function(a, b, out, grid)
