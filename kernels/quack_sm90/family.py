"""QuACK's SM90 GEMM as a kernel family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

from tilecast.heuristics.config import Geometry, Resources
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.kernels.occupancy import max_active_clusters
from tilecast.kernels.quack_sm90 import resources, space
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.rules import RuledFamily
from tilecast.kernels.spec import KernelSpec


@dataclass(frozen=True)
class QuackSm90(RuledFamily):
    """See `tilecast.kernels.family.KernelFamily`."""

    name: ClassVar[str] = QuackConfig.family
    arch: ClassVar[str] = "sm_90a"
    packages: ClassVar[tuple[str, ...]] = ("nvidia-cutlass-dsl", "quack-kernels", "apache-tvm-ffi")
    compiler: ClassVar[str] = "tilecast.kernels.quack_sm90.compiler"
    # The GPU that the DSL is to take for this host's. Into one that kernels are for it would load
    # each that it compiles; with none named it asks the driver, which makes it unfit to be forked.
    environment: ClassVar[Mapping[str, str]] = {"CUTE_DSL_ARCH": "sm_100a"}
    config_rules = space.CONFIG_RULES
    problem_rules = space.PROBLEM_RULES

    def parse(self, name: str) -> QuackConfig | None:
        """The config of a name; None where the name is not one of this family's."""
        return QuackConfig.parse(name)

    def points(self, operands: GemmOperands) -> Iterator[QuackConfig]:
        """Every point that the axes span."""
        return space.points(operands)

    def configs(self, operands: GemmOperands, hardware: Hardware) -> Sequence[QuackConfig]:
        """The space, sorted."""
        return space.valid_configs(operands, hardware)

    def geometry(self, config: QuackConfig) -> Geometry:
        """The common view of a config."""
        return Geometry(
            config.tile_m,
            config.tile_n,
            config.tile_k,
            config.cluster_m,
            config.cluster_n,
            config.stages,
            resources.mma_warp_groups(config),
            config.ctas_per_sm,
            config.raster == "m",
            config.swizzle,
            config.swap_ab,
            config.split_k,
            config.schedule == "pong",
        )

    def resources(self, config: QuackConfig, operands: GemmOperands) -> Resources:
        """What a config takes from an SM."""
        return Resources(
            resources.smem_bytes(config, operands),
            resources.registers(config, operands)[1],
            resources.accumulator_registers(config, operands),
        )

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
