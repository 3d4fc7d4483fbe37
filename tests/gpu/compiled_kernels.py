"""What was compiled for the GPU tests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.cutlass_sm90.config import Sm90Config
from tilecast.kernels.launch import Launch, load_kernel
from tilecast.kernels.object_cache import ObjectCache
from tilecast.kernels.spec import KernelSpec


@dataclass(frozen=True)
class Kernels:
    """What was compiled for these tests."""

    configs: tuple[Sm90Config, ...]
    """The spread; each for bf16 as ``torch.nn.Linear`` stores it."""
    others: tuple[KernelSpec, ...]
    """`PLAIN`, or one as deep, for other operands."""
    batched: tuple[KernelSpec, ...]
    """Kernels with a batch in front."""
    objects: ObjectCache
    """Where they lie."""

    def load(self, spec: KernelSpec) -> Launch:
        """One of them, loaded once in this process."""
        return _load(spec, self.objects)

    def config(self, position: int) -> Launch:
        """The kernel of one of `configs`."""
        return self.load(KernelSpec(self.configs[position], LINEAR_BF16))


_load = cache(load_kernel)
