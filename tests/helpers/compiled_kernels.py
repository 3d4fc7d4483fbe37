"""What is compiled for the GPU tests, and from which sources kernels are compiled."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from joblib import cpu_count

from tilecast.heuristics.config import Geometry, KernelConfig
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.build.builder import compile_all
from tilecast.kernels.families import family_of
from tilecast.kernels.launch import Launch, load_kernel
from tilecast.kernels.objects.cache import ObjectCache, default_root
from tilecast.kernels.objects.keys import source_files
from tilecast.kernels.spec import KernelSpec


@dataclass(frozen=True)
class Kernels:
    """What was compiled for these tests."""

    configs: tuple[KernelConfig, ...]
    """A plain one, then the spread; each for bf16 as ``torch.nn.Linear`` stores it."""
    offered: tuple[KernelConfig, ...]
    """Those that a model chooses for layers of all sizes; for the same operands."""
    others: tuple[KernelSpec, ...]
    """The plain one, or one as deep, for other operands."""
    batched: tuple[KernelSpec, ...]
    """Kernels with a batch in front."""
    any_rows: tuple[KernelSpec, ...]
    """Kernels of an out whose rows begin anywhere: half of the spread, and all others."""
    objects: ObjectCache
    """Where they lie."""

    def geometry(self) -> Geometry:
        """What the configs look like."""
        return family_of(self.configs[0]).geometry(self.configs)

    def load(self, spec: KernelSpec) -> Launch:
        """One of them, loaded once in this process."""
        return _load(spec, self.objects)

    def config(self, position: int) -> Launch:
        """The kernel of one of `configs`."""
        return self.load(KernelSpec(self.configs[position], LINEAR_BF16))


_load = cache(load_kernel)


def compiled(specs: Iterable[KernelSpec]) -> ObjectCache:
    """The user's cache with some kernels; it is kept, as compiling takes longer than the tests."""
    objects, wanted = ObjectCache(default_root()), list(set(specs))
    random.shuffle(wanted)  # processes that test side by side begin with different ones
    assert {result.error for result in compile_all(wanted, objects, cpu_count())} == {None}
    return objects


def check_sources(compiler: str, loaded: str) -> None:
    """That what a process has loaded for a compiler alone is what keys of its kernels depend on.

    Args:
        compiler: the module.
        loaded: names of modules; PyTorch loads those of the hook by itself.
    """
    found = source_files(compiler).keys()
    ours = {name for name in loaded.split() if name.startswith("tilecast.")}
    folders = {name.rpartition(".")[0] for name in found}
    assert {name for name in ours if "inductor_hook" not in name} == found | folders
