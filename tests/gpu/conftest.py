"""Kernels that the GPU tests share: a spread over the space, compiled once per session."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from compiled_kernels import Kernels, compiled
from torch._inductor import config as inductor_config
from variants import share_ptxas

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.select.selection import shortlist
from tilecast.inductor_hook.settings import Settings
from tilecast.kernels.candidates import family_space
from tilecast.kernels.families import FAMILIES, parse_config
from tilecast.kernels.family import KernelFamily
from tilecast.kernels.spec import KernelSpec
from tilecast.models.runtime.learned import load_heuristic

share_ptxas()  # else PyTorch 2.11 compiles each choice of Triton's twice

PLAIN = {
    "quack_sm90": ("128x128x64_c1x1x1_s4_coop_o1_rm8", "128x128x128_c1x1x1_s4_coop_o1_rm8"),
}
"""A plain config of each family, and the one whose stages are as deep in bytes for 8 bits."""
WIDE = ("bf16:rrr", "bf16:ccc", "fp16:rcr", "bf16:rcr>fp32")
NARROW = ("e4m3:rcr>bf16", "e5m2:rcr>fp16", "int8:rcr>int32")
LAYERS = (
    *((1, 4096, 4096), (16, 6144, 4096), (64, 576, 7168), (100, 2112, 7168)),
    *((256, 4096, 11008), (512, 12288, 4096), (1024, 1280, 8192), (2048, 4096, 512)),
    *((4096, 4096, 4096), (8192, 7168, 2048)),
)
"""(m, n, k) of layers of all sizes, for which a model chooses kernels of many kinds."""


def spread(family: KernelFamily) -> list[KernelConfig]:
    """Configs that together show each value of each axis, and the clusters in every company."""
    configs = list(family_space(family, LINEAR_BF16, hardware("H200")).configs)
    random.Random(0).shuffle(configs)
    shown: dict[object, KernelConfig] = {}
    for config in configs:
        columns = family.geometry([config])
        g = SimpleNamespace(**{name: column.item() for name, column in vars(columns).items()})
        shown[g.cluster_m, g.cluster_n, g.ctas_per_sm, g.swap_ab] = config
        shown[g.split_k, g.swap_ab] = config
        shown[g.cluster_m, g.cluster_n, g.split_k] = config
        shown[g.tile_m, g.ping_pong] = config
        shown["tile_n", g.tile_n] = config
    return sorted(set(shown.values()))


def chosen() -> list[KernelConfig]:
    """What max-autotune offers for `LAYERS` on an H200."""
    gpu, settings = hardware("H200"), Settings(k=5)
    problems = [GemmProblem(*extents) for extents in LAYERS]
    found = {one.config for asked in problems for one in shortlist(settings, asked, gpu)}
    return sorted(found, key=str)


@pytest.fixture(scope="session", params=PLAIN)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    plain, deep = map(parse_config, PLAIN[request.param])
    configs = spread(FAMILIES[request.param])
    others = tuple(KernelSpec(plain, GemmOperands.parse(text)) for text in WIDE)
    others += tuple(KernelSpec(deep, GemmOperands.parse(text)) for text in NARROW)
    batched = tuple(KernelSpec(c, LINEAR_BF16, batched=True) for c in (plain, *configs[::12]))
    any_rows = tuple(KernelSpec(config, LINEAR_BF16, any_rows=True) for config in configs[::2])
    any_rows += tuple(replace(spec, any_rows=True) for spec in (*others, *batched))
    offered = tuple(chosen())
    assert len(offered) >= 20
    specs = [KernelSpec(config, LINEAR_BF16) for config in (plain, *configs, *offered)]
    specs += [*others, *batched, *any_rows]
    assert len(specs) <= 160
    return Kernels((plain, *configs), offered, others, batched, any_rows, compiled(specs))


@pytest.fixture
def gpu_with_a_model() -> None:
    """There is a model for this GPU, or the test is skipped; nothing was said before."""
    telemetry._told.clear()
    try:
        load_heuristic(hardware(torch.cuda.get_device_name()), LINEAR_BF16)
    except TilecastError as error:
        pytest.skip(str(error))


@pytest.fixture
def cpp_wrapper() -> Iterator[None]:
    """Inside, Inductor writes C++ instead of Python, where that can be compiled."""
    with inductor_config.patch(cpp_wrapper=True):
        try:
            torch.compile(lambda x: x + 1, fullgraph=True)(torch.ones(16, device="cuda"))
        except Exception as error:
            pytest.skip(f"no C++ wrapper can be compiled here: {error}")
        yield
