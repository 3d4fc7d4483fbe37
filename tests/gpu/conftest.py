"""Kernels that the GPU tests share: a spread over the space, compiled once per session."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from compiled_kernels import Kernels
from joblib import cpu_count

from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.kernels.builder import compile_all
from tilecast.kernels.cutlass_sm90.config import Sm90Config
from tilecast.kernels.cutlass_sm90.space import valid_configs
from tilecast.kernels.object_cache import ObjectCache
from tilecast.kernels.spec import KernelSpec

PLAIN = Sm90Config(128, 128, 64, stages=4, warp_groups=2)
WIDE = ("bf16:rrr", "bf16:ccc", "fp16:rcr", "bf16:rcr>fp32")
NARROW = ("e4m3:rcr>bf16", "e5m2:rcr>fp16", "int8:rcr>int32")
"""Operands of 16 and of 8 bits; a stage is as deep in bytes for both."""


def spread() -> tuple[Sm90Config, ...]:
    """A config for each cluster, number of CTAs per SM and swap_ab, and one for each tile_n."""
    configs = list(valid_configs(LINEAR_BF16, hardware("H200")))
    random.Random(0).shuffle(configs)
    by_cluster = {(c.cluster_m, c.cluster_n, c.ctas_per_sm, c.swap_ab): c for c in configs}
    by_tile = {c.tile_n: c for c in (*configs, *by_cluster.values())}
    return tuple(sorted({*by_cluster.values(), *by_tile.values()}))


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    configs = spread()
    others = tuple(KernelSpec(PLAIN, GemmOperands.parse(text)) for text in WIDE)
    deep = replace(PLAIN, tile_k=128)
    others += tuple(KernelSpec(deep, GemmOperands.parse(text)) for text in NARROW)
    batched = tuple(KernelSpec(c, LINEAR_BF16, batched=True) for c in (PLAIN, configs[-1]))
    objects = ObjectCache(tmp_path_factory.mktemp("objects"))
    specs = [*(KernelSpec(config, LINEAR_BF16) for config in (PLAIN, *configs)), *others, *batched]
    assert len(specs) <= 44
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
