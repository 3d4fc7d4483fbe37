"""Kernels that the GPU tests share: a spread over the space, compiled once per session."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
from joblib import cpu_count

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import LINEAR_BF16, GemmOperands
from tilecast.kernels.builder import compile_all
from tilecast.kernels.cutlass_sm90.space import valid_configs
from tilecast.kernels.launch import LoadedKernel, load_kernel
from tilecast.kernels.object_cache import ObjectCache
from tilecast.kernels.spec import KernelSpec

PLAIN = KernelConfig(128, 128, 64, stages=4, warp_groups=2)
OTHERS = (
    GemmOperands.from_layout("rrr"),
    GemmOperands.from_layout("ccc"),
    GemmOperands("float16", "float16"),
    GemmOperands(out_dtype="float32"),
)


def spread() -> tuple[KernelConfig, ...]:
    """A config for each cluster, number of CTAs per SM and swap_ab, and one for each tile_n."""
    configs = list(valid_configs(LINEAR_BF16, hardware("H200")))
    random.Random(0).shuffle(configs)
    by_cluster = {(c.cluster_m, c.cluster_n, c.ctas_per_sm, c.swap_ab): c for c in configs}
    by_tile = {c.tile_n: c for c in (*configs, *by_cluster.values())}
    return tuple(sorted({*by_cluster.values(), *by_tile.values()}))


@dataclass(frozen=True)
class Kernels:
    """What was compiled for these tests."""

    configs: tuple[KernelConfig, ...]
    """The spread; each for bf16 as ``torch.nn.Linear`` stores it."""
    others: tuple[KernelSpec, ...]
    """`PLAIN` for other operands."""
    batched: tuple[KernelSpec, ...]
    """Kernels with a batch in front."""
    objects: ObjectCache
    """Where they lie."""

    def load(self, spec: KernelSpec) -> LoadedKernel:
        """One of them, loaded once in this process."""
        return _load(spec, self.objects)

    def config(self, position: int) -> LoadedKernel:
        """The kernel of one of `configs`."""
        return self.load(KernelSpec(self.configs[position], LINEAR_BF16))


_load = cache(load_kernel)


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    configs = spread()
    others = tuple(KernelSpec(PLAIN, operands) for operands in OTHERS)
    batched = tuple(KernelSpec(c, LINEAR_BF16, batched=True) for c in (PLAIN, configs[-1]))
    objects = ObjectCache(tmp_path_factory.mktemp("objects"))
    specs = [*(KernelSpec(config, LINEAR_BF16) for config in (PLAIN, *configs)), *others, *batched]
    assert len(specs) <= 40
    results = list(compile_all(specs, objects, cpu_count()))
    assert {result.error for result in results} == {None}
    return Kernels((PLAIN, *configs), others, batched, objects)


@pytest.fixture
def relative_error() -> Callable[..., float]:
    """||out - a @ b|| / ||a @ b||, in float32; NaN where out has one."""
    import torch

    def error(out, a, b) -> float:
        reference = a.float() @ b.float()
        return (torch.linalg.norm(out.float() - reference) / torch.linalg.norm(reference)).item()

    return error
