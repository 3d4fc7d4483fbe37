"""Ahead-of-time compilation, for real: configs spread over the space, built with no GPU."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import GPUS
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.kernels import launch
from tilecast.kernels.build import builder
from tilecast.kernels.build.builder import CompileResult, compile_all
from tilecast.kernels.families import family_of
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.objects.keys import kernel_symbol
from tilecast.kernels.quack_sm90 import family, resources, space
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.quack_sm90.family import QuackSm90
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
    configs = _spread(space.valid_configs(LINEAR_BF16, GPUS[0]))
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


def test_objects_export_names_of_their_own(built: Built) -> None:
    names = {kernel_symbol(spec) for spec in built.specs}
    assert len(names) == len(built.specs)
    for spec in built.specs:
        assert kernel_symbol(spec).encode() in built.cache.path(spec).read_bytes()


def test_objects_load_with_no_gpu(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the library reads is a file in memory that is gone afterwards."""
    monkeypatch.setattr(family, "max_active_clusters", lambda size, device: 132 // size)
    for spec in built.specs[:3]:
        kernel = launch.load_kernel(spec, built.cache)
        nothing: Any = None
        with pytest.raises(TypeError):  # loaded, and asked for tensors
            kernel(nothing, nothing, nothing)


def test_a_launch_hands_over_as_many_clusters_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family, "max_active_clusters", lambda size, device: 132 // size)
    config = QuackConfig(128, 64, 64, 2, 1, stages=3, ctas_per_sm=2)
    called: list[tuple] = []
    spec = KernelSpec(config, LINEAR_BF16)
    start = family_of(config).launcher(lambda *values: called.append(values), spec, 0)
    start("a", "b", "out")
    assert called == [("a", "b", "out", 132)]


def test_second_run_compiles_nothing(built: Built) -> None:
    before = {path: path.stat().st_mtime_ns for path in built.cache.root.iterdir()}
    again = list(compile_all([*built.specs, *built.specs], built.cache, WORKERS))
    assert [result.spec for result in again] == built.specs
    assert {(result.seconds, result.error) for result in again} == {(0.0, None)}
    assert {path: path.stat().st_mtime_ns for path in built.cache.root.iterdir()} == before


def test_damaged_object_is_rebuilt_and_a_bad_config_stops_nobody(built: Built) -> None:
    damaged = built.specs[0]
    path = built.cache.path(damaged)
    path.write_bytes(path.read_bytes()[:1000])
    # Invalid on purpose: the space never proposes a tile that WGMMA has no instruction for.
    bad = KernelSpec(QuackConfig(100, 100, 64), LINEAR_BF16)
    results = {r.spec: r for r in compile_all([bad, damaged], built.cache, WORKERS)}
    assert results[damaged].error is None
    assert results[damaged].seconds > 0
    assert built.cache.resources(damaged) is not None
    error = results[bad].error
    assert error
    assert "\n" not in error
    assert built.cache.resources(bad) is None


def test_cache_that_cannot_be_written_is_told(
    object_file: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        QuackSm90, "compile", staticmethod(lambda spec, symbol: object_file(168, 0))
    )
    spec = KernelSpec(QuackConfig(128, 128, 64), LINEAR_BF16)
    with pytest.raises(TilecastError, match="cannot write /proc/tilecast"):
        builder.compile_into(spec, ObjectCache(Path("/proc/tilecast")))
