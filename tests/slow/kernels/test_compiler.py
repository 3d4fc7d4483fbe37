"""Ahead-of-time compilation, for real: configs spread over the space, built with no GPU."""

from __future__ import annotations

import dataclasses
import random
from typing import Any, cast

import pytest

from tilecast.heuristics.hardware import GPUS
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.kernels import candidates
from tilecast.kernels.build.builder import CompileResult, compile_all
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.quack_sm90 import resources, space
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

AXES = ("tile_m", "tile_n", "tile_k", "split_k", "stages", "ctas_per_sm", "raster")
OTHER_OPERANDS = (
    GemmOperands.parse("fp16:rcr"),
    GemmOperands.parse("bf16:rcr>fp32"),
    GemmOperands.parse("bf16:rrr"),
    GemmOperands.parse("bf16:ccc"),
)
ENOUGH = 22
WORKERS = 2

SPACE: Any = candidates.space(LINEAR_BF16, GPUS[0]).configs


def _facts(config: QuackConfig) -> set[object]:
    """What a sample must show at least once: each axis value, and swap_ab beside each cluster."""
    return {
        *((axis, getattr(config, axis)) for axis in AXES),
        (config.swap_ab, config.cluster_m, config.cluster_n),
        (config.schedule, config.ctas_per_sm),
    }


def _spread(configs: tuple[QuackConfig, ...]) -> list[QuackConfig]:
    """Configs that show every fact, found greedily in an order that is always the same."""
    shuffled = random.Random(0).sample(configs, min(2_000, len(configs)))
    missing = set().union(*map(_facts, shuffled))
    chosen: list[QuackConfig] = []
    while missing:
        best = max(shuffled, key=lambda config: len(_facts(config) & missing))
        chosen.append(best)
        missing -= _facts(best)
    others = [config for config in shuffled if config not in chosen]
    return [*chosen, *others[: max(0, ENOUGH - len(chosen))]]


def _specs() -> list[KernelSpec]:
    configs = _spread(SPACE)
    specs = [KernelSpec(config, LINEAR_BF16) for config in configs]
    plain = QuackConfig(128, 128, 64, stages=3)
    specs += [KernelSpec(plain, operands) for operands in OTHER_OPERANDS]
    specs.append(KernelSpec(plain, LINEAR_BF16, batched=True))
    specs += [KernelSpec(config, LINEAR_BF16, any_rows=True) for config in (plain, *configs[::4])]
    return specs


@dataclasses.dataclass(frozen=True)
class Built:
    """What one run of the pool left."""

    specs: list[KernelSpec]
    cache: ObjectCache
    results: list[CompileResult]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    cache = ObjectCache(tmp_path_factory.mktemp("objects"))
    specs = _specs()
    return Built(specs, cache, list(compile_all(specs, cache, WORKERS)))


def test_at_least_twenty_configs_over_all_axes(built: Built) -> None:
    configs = {cast("QuackConfig", spec.config) for spec in built.specs}
    assert len(configs) >= 20
    # The pilot left none of 320 rows.
    assert {config.tile_m for config in configs} == set(space.TILE_M) - {320}
    assert {config.tile_n for config in configs} == set(space.TILE_N)
    assert {(config.cluster_m, config.cluster_n) for config in configs} == set(space.CLUSTERS)
    assert {config.ctas_per_sm for config in configs} == set(space.CTAS_PER_SM)
    assert {config.split_k for config in configs} == set(space.SPLITS)
    assert {config.schedule for config in configs} == set(space.SCHEDULES)
    assert {config.swap_ab for config in configs} == {False, True}


def test_every_spec_compiles(built: Built) -> None:
    assert {result.error for result in built.results} == {None}
    assert {result.spec for result in built.results} == set(built.specs)
    assert len(built.results) == len(built.specs)
    assert all(result.seconds > 0 for result in built.results)


def test_warp_groups_get_no_more_registers_than_are_launched_with_and_nothing_spills(
    built: Built,
) -> None:
    """``setmaxnreg`` would wait for ever for those that are missing."""
    for spec in built.specs:
        config, facts = cast("QuackConfig", spec.config), built.cache.resources(spec)
        assert facts is not None, config
        assert facts.registers <= resources.launch_registers(config), config
        groups = resources.mma_warp_groups(config)
        load, mma = resources.registers(config, spec.operands)
        assert load + groups * mma <= facts.registers * (groups + 1), config
        assert facts.spill_bytes == 0, config
