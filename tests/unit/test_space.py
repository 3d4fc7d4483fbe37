"""The candidate space: valid configs against arithmetic done again here, and every rule seen.

The numbers below are written out from NVIDIA's documents instead of imported, so that a slip in
`tilecast.kernels.cutlass_sm90.resources` cannot hide.
"""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import GPUS, Hardware
from tilecast.heuristics.problem import INPUT_DTYPES, LINEAR_BF16, GemmOperands, GemmProblem
from tilecast.kernels.cutlass_sm90 import space

H200 = GPUS[0]
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}

points = st.builds(
    lambda cluster, **axes: KernelConfig(cluster_m=cluster[0], cluster_n=cluster[1], **axes),
    cluster=st.sampled_from(space.CLUSTERS),
    tile_m=st.sampled_from(space.TILE_M),
    tile_n=st.sampled_from(space.TILE_N),
    tile_k=st.sampled_from(space.TILE_K),
    stages=st.sampled_from(space.STAGES),
    warp_groups=st.sampled_from(space.WARP_GROUPS),
    ctas_per_sm=st.sampled_from(space.CTAS_PER_SM),
    raster=st.sampled_from(space.RASTERS),
    swizzle=st.sampled_from(space.SWIZZLES),
    swap_ab=st.booleans(),
)
"""Every point that the axes span, in the space or not."""

problems = st.builds(
    lambda m, n8, k8: GemmProblem(m, 8 * n8, 8 * k8),
    st.one_of(st.integers(1, 64), st.integers(1, 16384)),
    st.integers(1, 4096),
    st.integers(1, 4096),
)


def _sample(count: int) -> list[KernelConfig]:
    """Points of the axes and just beside them, the same ones every time."""
    draw = random.Random(0)
    sample = []
    for _ in range(count):
        config = KernelConfig(
            draw.choice(space.TILE_M),
            draw.choice(space.TILE_N),
            draw.choice(space.TILE_K),
            *draw.choice(space.CLUSTERS),
            draw.choice(space.STAGES),
            draw.choice(space.WARP_GROUPS),
            draw.choice(space.CTAS_PER_SM),
            draw.choice(space.RASTERS),
            draw.choice(space.SWIZZLES),
            swap_ab=draw.random() < 0.5,
        )
        off = draw.choice([{}, {}, {}, {"split_k": 3}, {"tile_n": 8}, {"stages": 99}])
        sample.append(dataclasses.replace(config, **off))
    return sample


def _broken(config: KernelConfig, problem: GemmProblem | None = None) -> list[str]:
    return [rule.name for rule, _ in space.complaints(config, LINEAR_BF16, H200, problem)]


HARDWARE_RULES = {rule.name for rule in space.RULES}
SPACE = space.valid_configs(LINEAR_BF16, H200)
SAMPLE = _sample(5_000)
RUNNABLE = [*SPACE, *(c for c in SAMPLE if not HARDWARE_RULES & set(_broken(c)))]
"""Configs that compile and run, whether or not the pilot left them in the space."""

runnable = st.sampled_from(RUNNABLE)


# ---- what runs fits the hardware


@given(runnable)
def test_threads_and_registers_fit_the_sm(config: KernelConfig) -> None:
    groups = config.warp_groups
    launched = (groups + 1) * 128
    per_thread = min(65_536 // (launched * config.ctas_per_sm) // 8 * 8, 232)
    assert launched * config.ctas_per_sm <= 2048
    # What setmaxnreg moves around: 40 stay with the load warp group.
    per_mma_thread = min((per_thread * launched - 40 * 128) // (groups * 128) // 8 * 8, 232)
    accumulators = config.tile_m * config.tile_n / (groups * 128)
    assert accumulators < per_mma_thread <= 255
    assert (groups * per_mma_thread + 40) * 128 * config.ctas_per_sm <= 65_536
    # One wgmma m64nNk16 has N / 2 accumulators per thread, and ptxas counts them at launch.
    assert config.tile_n // 2 < per_thread


@given(runnable, st.sampled_from(sorted(BYTES)))
def test_shared_memory_fits_the_sm(config: KernelConfig, out_dtype: str) -> None:
    operands = GemmOperands(out_dtype=out_dtype)
    broken = [rule.name for rule, _ in space.complaints(config, operands, H200)]
    pipeline = config.stages * (config.tile_m + config.tile_n) * config.tile_k * 2
    barriers = config.stages * 2 * 8
    # Four epilogue buffers of 64 rows per warp group and at least 16 columns.
    epilogue = 4 * config.warp_groups * 64 * 16 * BYTES[out_dtype]
    taken = pipeline + barriers + epilogue
    if taken > 227 * 1024 or (taken + 1024) * config.ctas_per_sm > 228 * 1024:
        assert "shared-memory" in broken


@given(runnable)
def test_tiles_suit_the_instructions(config: KernelConfig) -> None:
    assert config.tile_m % (64 * config.warp_groups) == 0
    assert config.tile_n % 16 == 0
    assert 16 <= config.tile_n <= 256
    assert config.tile_k % 64 == 0
    assert config.cluster_m * config.cluster_n <= 8
    # A multicast slice is whole rows of the 8-row swizzle atom.
    assert config.tile_m % (8 * config.cluster_n) == 0
    assert config.tile_n % (8 * config.cluster_m) == 0
    assert config.stages >= 2
    assert config.split_k == 1


def test_the_configs_that_hung_the_gpu_are_out() -> None:
    """Three MMA warp groups of 232 registers beside 40 are more than an SM has."""
    assert 3 * 128 * 232 + 128 * 40 > 65_536
    assert _broken(KernelConfig(192, 128, 64, stages=4, warp_groups=3))


# ---- the space is what the rules leave, and each of them takes something away


@given(points)
def test_the_space_is_what_no_rule_complains_about(config: KernelConfig) -> None:
    assert (config in SPACE) == (not _broken(config))


def test_no_rule_complains_about_the_space() -> None:
    assert not [config for config in SPACE if _broken(config)]


@pytest.mark.parametrize("rule", space.RULES, ids=lambda rule: rule.name)
def test_every_hardware_rule_alone_keeps_a_config_out(rule: space.Rule) -> None:
    # The pilot measured only what runs, so its rules may well complain of the others, too.
    alone = [config for config in SAMPLE if HARDWARE_RULES & set(_broken(config)) == {rule.name}]
    assert alone, f"no config breaks {rule.name} and no other: it takes nothing away"
    assert not set(SPACE) & set(alone)


@pytest.mark.parametrize("rule", space.MEASURED_RULES, ids=lambda rule: rule.name)
def test_every_rule_of_the_pilot_alone_keeps_a_config_out(rule: space.Rule) -> None:
    alone = [config for config in SAMPLE if _broken(config) == [rule.name]]
    assert alone, f"no config breaks {rule.name} and no other: it takes nothing away"
    assert not set(SPACE) & set(alone)


@pytest.mark.parametrize("rule", space.PROBLEM_RULES, ids=lambda rule: rule.name)
def test_every_problem_rule_alone_drops_a_candidate(rule: space.ProblemRule) -> None:
    alone = [
        (problem, config)
        for problem in (GemmProblem(40, 48, 64), GemmProblem(4096, 4096, 4096))
        for config in SPACE
        if _broken(config, problem) == [rule.name]
    ]
    assert alone, f"no config breaks {rule.name} and nothing else: it drops nothing"
    for problem, config in alone:
        assert config not in space.candidates(problem, H200)


@given(points)
def test_complaints_carry_the_numbers_in_one_line(config: KernelConfig) -> None:
    for rule, text in space.complaints(config, LINEAR_BF16, H200, GemmProblem(40, 48, 64)):
        assert rule.reason
        assert any(character.isdigit() for character in text)
        assert "\n" not in text


def test_off_the_axes_no_further_rule_is_asked() -> None:
    odd = KernelConfig(100, 7, 3, cluster_m=5, stages=1, warp_groups=0, raster="z")
    assert _broken(odd, GemmProblem(40, 48, 64)) == ["axes"]


# ---- the space as a whole


def test_space_has_some_thousand_configs_sorted_and_distinct() -> None:
    assert 500 <= len(SPACE) <= 5_000
    assert list(SPACE) == sorted(set(SPACE))
    assert space.points() > 50 * len(SPACE)


def test_space_is_the_same_every_time() -> None:
    space.valid_configs.cache_clear()
    assert space.valid_configs(LINEAR_BF16, H200) == SPACE


def test_names_are_distinct_and_parse_back() -> None:
    names = {config.name for config in SPACE}
    assert len(names) == len(SPACE)
    assert {KernelConfig.parse(name) for name in names} == set(SPACE)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("tile_m", space.TILE_M),
        ("tile_n", space.TILE_N),
        ("tile_k", space.TILE_K),
        ("stages", space.STAGES),
        ("warp_groups", space.WARP_GROUPS),
        ("ctas_per_sm", space.CTAS_PER_SM),
        ("raster", space.RASTERS),
        ("swap_ab", (False, True)),
    ],
)
def test_every_value_of_an_axis_is_in_use(field: str, values: tuple) -> None:
    assert {getattr(config, field) for config in SPACE} == set(values)


def test_every_cluster_is_in_use() -> None:
    assert {(config.cluster_m, config.cluster_n) for config in SPACE} == set(space.CLUSTERS)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("dtype", INPUT_DTYPES)
def test_every_gpu_and_dtype_has_a_space(gpu: Hardware, dtype: str) -> None:
    assert space.valid_configs(GemmOperands(dtype, dtype), gpu)


# ---- candidates of a problem


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(1, 8, 8),
        GemmProblem(16, 6144, 4096),
        GemmProblem(100, 1000, 520),
        GemmProblem(4096, 4096, 4096),
        GemmProblem(16384, 28672, 8192),
        GemmProblem(64, 512, 64, batch=48),
    ],
    ids=str,
)
def test_candidates_are_what_no_rule_complains_about(problem: GemmProblem) -> None:
    """Candidates are found for all configs at once, complaints one by one: they must agree."""
    expected = [config for config in SPACE if not _broken(config, problem)]
    assert list(space.candidates(problem, H200)) == expected


@given(problems)
def test_every_problem_has_candidates_in_the_space(problem: GemmProblem) -> None:
    found = space.candidates(problem, H200)
    assert found
    assert list(found) == sorted(set(found))
    assert set(found) <= set(SPACE)


@given(problems)
def test_candidates_waste_no_whole_tile_or_cluster(problem: GemmProblem) -> None:
    for config in space.candidates(problem, H200):
        rows, columns = (problem.n, problem.m) if config.swap_ab else (problem.m, problem.n)
        assert config.cluster_m <= -(-rows // config.tile_m)
        assert config.cluster_n <= -(-columns // config.tile_n)
        assert all(tile >= config.tile_m for tile in space.TILE_M if tile >= rows)
        assert all(tile >= config.tile_n for tile in space.TILE_N if tile >= columns)


@given(problems)
def test_orders_differ_only_where_there_is_an_order(problem: GemmProblem) -> None:
    candidates = space.candidates(problem, H200)
    for config in candidates:
        if (config.raster, config.swizzle) != ("m", 1):
            rows, columns = (problem.n, problem.m) if config.swap_ab else (problem.m, problem.n)
            tiles = -(-rows // config.tile_m) * -(-columns // config.tile_n)
            assert tiles > H200.sm_count * config.ctas_per_sm
