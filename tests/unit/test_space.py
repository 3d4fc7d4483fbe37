"""The candidate space: valid configs against arithmetic done again here, and every rule seen.

The numbers below are written out from NVIDIA's documents instead of imported, so that a slip in
`tilecast.kernels.cutlass_sm90.resources` cannot hide.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import GPUS, Hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.kernels.cutlass_sm90 import family, space
from tilecast.kernels.cutlass_sm90.config import Sm90Config
from tilecast.kernels.family import HARDWARE
from tilecast.kernels.rules import ProblemRule

H200 = GPUS[0]
TILE_K = space.tile_ks(LINEAR_BF16)
FAMILY = family.CutlassSm90()
CONFIG_RULES = {rule.name: rule for rule in space.CONFIG_RULES}

points = st.builds(
    lambda cluster, **axes: Sm90Config(cluster_m=cluster[0], cluster_n=cluster[1], **axes),
    cluster=st.sampled_from(space.CLUSTERS),
    tile_m=st.sampled_from(space.TILE_M),
    tile_n=st.sampled_from(space.TILE_N),
    tile_k=st.sampled_from(TILE_K),
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


def _sample(count: int) -> list[Sm90Config]:
    """Points of the axes and just beside them, the same ones every time."""
    draw = random.Random(0)
    sample = []
    for _ in range(count):
        config = Sm90Config(
            draw.choice(space.TILE_M),
            draw.choice(space.TILE_N),
            draw.choice(TILE_K),
            *draw.choice(space.CLUSTERS),
            draw.choice(space.STAGES),
            draw.choice(space.WARP_GROUPS),
            draw.choice(space.CTAS_PER_SM),
            draw.choice(space.RASTERS),
            draw.choice(space.SWIZZLES),
            swap_ab=draw.random() < 0.5,
        )
        off = draw.choice([{}, {}, {}, {"swizzle": 3}, {"tile_n": 8}, {"stages": 99}])
        sample.append(dataclasses.replace(config, **off))
    return sample


def _broken(config: Sm90Config, problem: GemmProblem | None = None) -> list[str]:
    return [v.rule.name for v in FAMILY.violations(config, LINEAR_BF16, H200, problem)]


HARDWARE_RULES = {rule.name for rule in FAMILY.rules if rule.kind == HARDWARE}
SPACE = space.valid_configs(LINEAR_BF16, H200)
SAMPLE = _sample(5_000)
RUNNABLE = [*SPACE, *(c for c in SAMPLE if not HARDWARE_RULES & set(_broken(c)))]
"""Configs that compile and run, whether or not the pilot left them in the space."""

runnable = st.sampled_from(RUNNABLE)


# ---- what runs fits the hardware


@given(runnable)
def test_threads_and_registers_fit_the_sm(config: Sm90Config) -> None:
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


@given(runnable, st.sampled_from([("bf16:rcr", 2), ("fp16:rcr", 2), ("bf16:rcr>fp32", 4)]))
def test_shared_memory_fits_the_sm(config: Sm90Config, out: tuple[str, int]) -> None:
    text, out_bytes = out
    operands = GemmOperands.parse(text)
    broken = [v.rule.name for v in FAMILY.violations(config, operands, H200)]
    pipeline = config.stages * (config.tile_m + config.tile_n) * config.tile_k * 2
    barriers = config.stages * 2 * 8
    # Four epilogue buffers of 64 rows per warp group and at least 16 columns.
    epilogue = 4 * config.warp_groups * 64 * 16 * out_bytes
    taken = pipeline + barriers + epilogue
    if taken > 227 * 1024 or (taken + 1024) * config.ctas_per_sm > 228 * 1024:
        assert "shared-memory" in broken


@given(runnable)
def test_tiles_suit_the_instructions(config: Sm90Config) -> None:
    assert config.tile_m % (64 * config.warp_groups) == 0
    assert config.tile_n % 16 == 0
    assert 16 <= config.tile_n <= 256
    assert config.tile_k % 64 == 0
    assert config.cluster_m * config.cluster_n <= 8
    # A multicast slice is whole rows of the 8-row swizzle atom.
    assert config.tile_m % (8 * config.cluster_n) == 0
    assert config.tile_n % (8 * config.cluster_m) == 0
    assert config.stages >= 2


def test_the_configs_that_hung_the_gpu_are_out() -> None:
    """Three MMA warp groups of 232 registers beside 40 are more than an SM has."""
    assert 3 * 128 * 232 + 128 * 40 > 65_536
    assert _broken(Sm90Config(192, 128, 64, stages=4, warp_groups=3))


# ---- the space is what the rules leave, and each of them takes something away


@given(points)
def test_the_space_is_what_no_rule_complains_about(config: Sm90Config) -> None:
    assert (config in SPACE) == (not _broken(config))


def test_no_rule_complains_about_the_space() -> None:
    assert not [config for config in SPACE if _broken(config)]


@pytest.mark.parametrize("rule", sorted(HARDWARE_RULES - {"operands"}))
def test_every_hardware_rule_alone_keeps_a_config_out(rule: str) -> None:
    # The pilot measured only what runs, so its rules may well complain of the others, too.
    alone = [config for config in SAMPLE if HARDWARE_RULES & set(_broken(config)) == {rule}]
    assert alone, f"no config breaks {rule} and no other: it takes nothing away"
    assert not set(SPACE) & set(alone)


@pytest.mark.parametrize("rule", sorted(set(CONFIG_RULES) - HARDWARE_RULES))
def test_every_rule_of_the_pilot_alone_keeps_a_config_out(rule: str) -> None:
    alone = [config for config in SAMPLE if _broken(config) == [rule]]
    assert alone, f"no config breaks {rule} and no other: it takes nothing away"
    assert not set(SPACE) & set(alone)


@pytest.mark.parametrize("rule", space.PROBLEM_RULES, ids=lambda rule: rule.name)
def test_every_problem_rule_alone_drops_a_candidate(rule: ProblemRule) -> None:
    alone = [
        (problem, config)
        for problem in (GemmProblem(40, 48, 64), GemmProblem(4096, 4096, 4096))
        for config in SPACE
        if _broken(config, problem) == [rule.name]
    ]
    assert alone, f"no config breaks {rule.name} and nothing else: it drops nothing"
    for problem, config in alone:
        assert config not in candidates(problem, H200)


@given(points)
def test_complaints_carry_the_numbers_in_one_line(config: Sm90Config) -> None:
    for violation in FAMILY.violations(config, LINEAR_BF16, H200, GemmProblem(40, 48, 64)):
        assert violation.rule.reason
        assert any(character.isdigit() for character in violation.text)
        assert "\n" not in violation.text


def test_off_the_axes_no_further_rule_is_asked() -> None:
    odd = Sm90Config(100, 7, 3, cluster_m=5, stages=1, warp_groups=0, raster="z")
    assert _broken(odd, GemmProblem(40, 48, 64)) == ["axes"]


# ---- the space as a whole


def test_space_has_some_thousand_configs_sorted_and_distinct() -> None:
    assert 500 <= len(SPACE) <= 5_000
    assert list(SPACE) == sorted(set(SPACE))
    assert sum(1 for _ in space.points(LINEAR_BF16)) > 50 * len(SPACE)


def test_space_is_the_same_every_time() -> None:
    space.valid_configs.cache_clear()
    assert space.valid_configs(LINEAR_BF16, H200) == SPACE


def test_names_are_distinct_and_parse_back() -> None:
    names = {config.name for config in SPACE}
    assert len(names) == len(SPACE)
    assert {FAMILY.parse(name) for name in names} == set(SPACE)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("tile_m", space.TILE_M),
        ("tile_n", space.TILE_N),
        ("tile_k", TILE_K),
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
@pytest.mark.parametrize(
    "text", ["bf16:rcr", "fp16:ccc", "bf16:rcr>fp32", "e4m3:rcr>bf16", "int8:rcr>int32"]
)
def test_every_gpu_has_a_space_for_what_the_kernel_multiplies(gpu: Hardware, text: str) -> None:
    assert len(space.valid_configs(GemmOperands.parse(text), gpu)) > 500


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("bf16xint8:rcr", "A is bf16 and B int8"),
        ("bf16:rcr:bias", "bf16:rcr:bias fuses more than a product"),
        ("e4m3:rcr>bf16:row-scales", "e4m3:rcr>bf16:row-scales fuses more than a product"),
        ("e4m3:rcr>bf16@fp16", "accumulates in fp16"),
        ("int8:ccr>int32", "layout ccr: wgmma reads 8-bit operands along k only"),
        ("int8:rcr", "int8 into int8"),
        ("bf16:rcr>int32", "bf16 into int32"),
        ("e4m3:rcr", "e4m3 into e4m3"),
    ],
)
def test_other_operands_have_no_space_and_a_reason(text: str, reason: str) -> None:
    operands = GemmOperands.parse(text)
    assert space.valid_configs(operands, H200) == ()
    first = next(FAMILY.violations(SPACE[0], operands, H200))
    assert (first.rule.name, first.text) == ("operands", reason)
    with pytest.raises(TilecastError, match="^no kernel multiplies .* on H200; allowed: "):
        candidates(GemmProblem(64, 64, 64, operands=operands), H200)


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
    assert list(candidates(problem, H200)) == expected


@given(problems)
def test_every_problem_has_candidates_in_the_space(problem: GemmProblem) -> None:
    found = candidates(problem, H200)
    assert len(found)
    assert list(found) == sorted(set(found))
    assert set(found) <= set(SPACE)


@given(problems)
def test_candidates_waste_no_whole_tile_or_cluster(problem: GemmProblem) -> None:
    config: Any
    for config in candidates(problem, H200):
        rows, columns = (problem.n, problem.m) if config.swap_ab else (problem.m, problem.n)
        assert config.cluster_m <= -(-rows // config.tile_m)
        assert config.cluster_n <= -(-columns // config.tile_n)
        assert all(tile >= config.tile_m for tile in space.TILE_M if tile >= rows)
        assert all(tile >= config.tile_n for tile in space.TILE_N if tile >= columns)


@given(problems)
def test_orders_differ_only_where_there_is_an_order(problem: GemmProblem) -> None:
    config: Any
    for config in candidates(problem, H200):
        if (config.raster, config.swizzle) != ("m", 1):
            rows, columns = (problem.n, problem.m) if config.swap_ab else (problem.m, problem.n)
            tiles = -(-rows // config.tile_m) * -(-columns // config.tile_n)
            assert tiles > H200.sm_count * config.ctas_per_sm
