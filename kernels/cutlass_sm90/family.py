"""The tunable kernel on ``cutlass.operators`` as a kernel family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from tilecast.heuristics.config import Geometry, Resources
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.cutlass_sm90 import space
from tilecast.kernels.cutlass_sm90.config import Sm90Config
from tilecast.kernels.cutlass_sm90.resources import (
    accumulator_registers,
    mma_registers,
    smem_bytes,
)
from tilecast.kernels.rules import RuledFamily

if TYPE_CHECKING:
    from tilecast.kernels.spec import KernelSpec


@dataclass(frozen=True)
class CutlassSm90(RuledFamily):
    """See `tilecast.kernels.family.KernelFamily`."""

    name: ClassVar[str] = Sm90Config.family
    arch: ClassVar[str] = "sm_90a"
    packages: ClassVar[tuple[str, ...]] = (
        "nvidia-cutlass-dsl",
        "nvidia-cutlass-operators",
        "apache-tvm-ffi",
    )
    sources: ClassVar[tuple[Path, ...]] = tuple(
        Path(__file__).parent / name for name in ("kernel.py", "resources.py", "../gemm_object.py")
    )
    config_rules = space.CONFIG_RULES
    problem_rules = space.PROBLEM_RULES

    def parse(self, name: str) -> Sm90Config | None:
        """The config of a name; None where the name is not one of this family's."""
        return Sm90Config.parse(name)

    def points(self, operands: GemmOperands) -> Iterator[Sm90Config]:
        """Every point that the axes span."""
        return space.points(operands)

    def configs(self, operands: GemmOperands, hardware: Hardware) -> Sequence[Sm90Config]:
        """The space, sorted."""
        return space.valid_configs(operands, hardware)

    def geometry(self, config: Sm90Config) -> Geometry:
        """The common view of a config."""
        return Geometry(
            config.tile_m,
            config.tile_n,
            config.tile_k,
            config.cluster_m,
            config.cluster_n,
            config.stages,
            config.warp_groups,
            config.ctas_per_sm,
            config.raster == "m",
            config.swizzle,
            config.swap_ab,
        )

    def resources(self, config: Sm90Config, operands: GemmOperands) -> Resources:
        """What a config takes from an SM."""
        return Resources(
            smem_bytes(config, operands), mma_registers(config), accumulator_registers(config)
        )

    def preload(self) -> None:
        """Import the DSL, which takes longer than compiling a kernel."""
        import tilecast.kernels.cutlass_sm90.kernel  # noqa: F401

    def compile(self, spec: KernelSpec) -> bytes:
        """Compile a kernel into an object file that exports ``spec.symbol``."""
        import cutlass

        from tilecast.kernels.cutlass_sm90.kernel import TunableGemmKernel
        from tilecast.kernels.gemm_object import compile_gemm

        config = cast("Sm90Config", spec.config)
        acc = getattr(cutlass, spec.operands.acc.cutlass)
        return compile_gemm(TunableGemmKernel(config, acc), spec)

    def launcher(
        self, function: Callable[..., object], spec: KernelSpec, device: int
    ) -> Callable[..., object]:
        """``launch(a, b, out)`` with as many CTAs as the device holds at once."""
        from tilecast.kernels.launch import max_active_clusters

        config = cast("Sm90Config", spec.config)
        clusters = max_active_clusters(config.cluster_m * config.cluster_n, device)
        grid = clusters * config.ctas_per_sm
        return lambda a, b, out: function(a, b, out, grid)
