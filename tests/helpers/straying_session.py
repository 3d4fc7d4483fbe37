"""A session one of whose kernels writes where nothing is, and takes the CUDA context with it.

Worker processes import this module by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import cuda.bindings.driver as driver
import torch

from tilecast.data_collection.timing.gpu_session import GpuSession
from tilecast.data_collection.timing.protocol import Entrant
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.spec import KernelSpec

_PTX = b"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry stray() {
    .reg .u64 %address;
    .reg .u32 %value;
    mov.u64 %address, 16;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
\0"""


class StrayingSession(GpuSession):
    """Of which one config's kernel strays in a stage: ``check``, or ``time`` once it is checked."""

    def __init__(
        self,
        objects: ObjectCache,
        config: KernelConfig,
        stage: str,
        announce: Callable[[KernelSpec | None], None],
    ):
        super().__init__(objects, 0, announce)
        self._stray = config, stage

    def check(self, spec: KernelSpec) -> str | None:
        if self._stray == (spec.config, "check"):
            self.announce(spec)
            stray()
            self.finish(spec)
        return super().check(spec)

    def launcher(self, entrant: Entrant, problem: GemmProblem) -> Callable[..., object]:
        return stray if self._stray == (entrant, "time") else super().launcher(entrant, problem)


def stray(*tensors: torch.Tensor) -> None:
    """Launch a kernel that writes where nothing is."""
    stream = torch.cuda.current_stream().cuda_stream
    _told(driver.cuLaunchKernel(_function(), 1, 1, 1, 1, 1, 1, 0, stream, None, 0))


@cache
def _function() -> Any:
    return _told(driver.cuModuleGetFunction(_told(driver.cuModuleLoadData(_PTX)), b"stray"))


def _told(answer: tuple) -> Any:
    """What a call of the driver returned, beside its status, which is an error or none."""
    status, *values = answer
    if status.value:
        raise RuntimeError(f"CUDA driver: {status.name}")
    return values[0] if values else None
