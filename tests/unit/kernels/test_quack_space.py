"""QuACK's space: valid configs against arithmetic done again here, and every rule seen.

The numbers below are written out from NVIDIA's documents instead of imported, so that a slip in
`tilecast.kernels.quack_sm90.resources` cannot hide.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import GPUS
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.kernels.families import parse_config
from tilecast.kernels.family import HARDWARE
from tilecast.kernels.quack_sm90 import resources, space
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.quack_sm90.family import QuackSm90

H200 = GPUS[0]
FAMILY = QuackSm90()
MIXED = GemmOperands.parse("bf16xint8:rcr:column-scales")
SPACE = space.valid_configs(LINEAR_BF16, H200)
TILE_K = space.tile_ks(LINEAR_BF16)


def _point(draw: random.Random) -> QuackConfig:
    return QuackConfig(
        draw.choice(space.TILE_M),
        draw.choice(space.TILE_N),
        draw.choice(TILE_K),
        *draw.choice(space.CLUSTERS),
        draw.choice(space.SPLITS),
        draw.choice(space.STAGES),
        draw.choice(space.SCHEDULES),
        draw.choice(space.CTAS_PER_SM),
        *draw.choice(space.ORDERS),
        swap_ab=draw.random() < 0.5,
    )


def _broken(config: QuackConfig, problem: GemmProblem | None = None) -> list[str]:
    return [v.rule.name for v in FAMILY.violations(config, LINEAR_BF16, H200, problem)]


HARDWARE_RULES = {rule.name for rule in FAMILY.rules if rule.kind == HARDWARE}
_draw = random.Random(0)
SAMPLE = [_point(_draw) for _ in range(4_000)]
RUNNABLE = [*SPACE, *(c for c in SAMPLE if not HARDWARE_RULES & set(_broken(c)))]
runnable = st.sampled_from(RUNNABLE)


def _groups(config: QuackConfig) -> tuple[int, int]:
    """MMA warp groups that share a tile, and those of a CTA."""
    if config.schedule == "pong":
        return 1, 2
    shared = {64: 1, 128: 2, 192: 3 if config.tile_n <= 128 else 2, 256: 2, 320: 2}[config.tile_m]
    return shared, shared


@given(runnable)
def test_threads_and_registers_fit_the_sm(config: QuackConfig) -> None:
    shared, groups = _groups(config)
    threads = (groups + 1) * 128
    assert threads * config.ctas_per_sm <= 2048
    accumulators = config.tile_m * config.tile_n / (shared * 128)
    registers = FAMILY.resources(config, LINEAR_BF16)
    assert accumulators == registers.accumulator_registers < registers.mma_registers <= 240
    # 24 are the least that setmaxnreg leaves a warp group, the one that loads.
    at_launch = 65_536 // (threads * config.ctas_per_sm) // 8 * 8
    assert (groups * registers.mma_registers + 24) * 128 <= at_launch * threads


@given(runnable)
def test_shared_memory_fits_the_sm(config: QuackConfig) -> None:
    taken = FAMILY.resources(config, LINEAR_BF16).smem_bytes
    stages = config.stages * (config.tile_m + config.tile_n) * config.tile_k * 2
    # At least one piece of 64 rows and 16 columns is stored from there, and two barriers a stage.
    assert taken >= stages + 64 * 16 * 2 + 2 * 8 * config.stages
    assert taken <= 227 * 1024
    assert (taken + 1024) * config.ctas_per_sm <= 228 * 1024


@given(runnable)
def test_tiles_suit_the_instructions(config: QuackConfig) -> None:
    # Eight everywhere, 16 on Hopper (CUDA programming guide, thread block clusters).
    ctas = config.cluster_m * config.cluster_n * config.split_k
    assert ctas <= (4 if config.split_k == 1 else 16)
    assert config.tile_m % (8 * config.cluster_n) == 0
    assert config.tile_n % (8 * config.cluster_m) == 0
    shared, _ = _groups(config)
    assert config.tile_m * config.tile_n % (shared * 64 * 8) == 0


@given(runnable)
def test_sums_that_a_cta_receives_fit_where_its_stages_were(config: QuackConfig) -> None:
    if config.split_k == 1:
        return
    assert config.schedule == "coop"
    whole = config.tile_m * config.tile_n * 4
    stages = config.stages * (config.tile_m + config.tile_n) * config.tile_k * 2
    # Each of the others sends at least its share of the tile.
    assert (config.split_k - 1) * whole / config.split_k <= stages


@given(runnable)
def test_ctas_that_split_k_share_loads_of_one_side(config: QuackConfig) -> None:
    if config.split_k > 1:
        assert 1 in (config.cluster_m, config.cluster_n)


@pytest.mark.parametrize(
    "name, reason",
    [
        ("128x128x64_c2x2x2_s6_coop_o1_rm8", "shared along one side"),
        ("128x128x64_c4x1x6_s6_coop_o1_rm8", "a cluster of 24 CTAs, 16 are allowed"),
        ("128x128x64_c2x1x2_s6_pong_o1_rm8", "schedule pong, allowed coop"),
        ("128x96x64_c2x1x2_s7_coop_o1_rm8", "loads of the shorter side of 128x96 shared"),
    ],
)
def test_a_split_that_is_left_out_is_told_why(name: str, reason: str) -> None:
    config = QuackConfig.parse(name)
    assert config is not None
    violations = FAMILY.violations(config, LINEAR_BF16, H200)
    assert any(reason in violation.text for violation in violations)


def test_no_rule_complains_about_the_space() -> None:
    assert not [config for config in SPACE if _broken(config)]
    assert list(SPACE) == sorted(set(SPACE))
    assert {config.split_k for config in SPACE} == set(space.SPLITS)
    assert {config.schedule for config in SPACE} == set(space.SCHEDULES)
    shapes = {(c.cluster_m, c.cluster_n) for c in SPACE if c.split_k > 1}
    assert shapes == {cluster for cluster in space.CLUSTERS if 1 in cluster}


@given(st.sampled_from(SAMPLE))
def test_the_space_is_what_no_rule_complains_about(config: QuackConfig) -> None:
    assert (config in SPACE) == (not _broken(config))


@pytest.mark.parametrize("rule", [r.name for r in space.CONFIG_RULES if r.name != "axes"])
def test_every_rule_takes_something_away(rule: str) -> None:
    operands = GemmOperands.parse("bf16:rrr" if rule == "warp-group-tile" else "bf16:rcr")
    if rule == "operands":
        operands = GemmOperands.parse("int8:rrr>int32")
    if rule == "conversion":
        operands = MIXED
    kinds = {r.name: r.kind for r in FAMILY.rules}
    peers = {name for name, kind in kinds.items() if kind == kinds[rule]}
    alone = [
        config
        for config in SAMPLE
        if peers & {v.rule.name for v in FAMILY.violations(config, operands, H200)} == {rule}
        or rule == "operands"
    ]
    assert alone


@pytest.mark.parametrize("rule", [r.name for r in space.PROBLEM_RULES])
def test_every_problem_rule_alone_drops_a_candidate(rule: str) -> None:
    problems = (GemmProblem(40, 48, 64), GemmProblem(4096, 4096, 4096), GemmProblem(512, 512, 512))
    alone = [
        (problem, config)
        for problem in problems
        for config in SPACE[:: 1 + len(SPACE) // 1500]
        if _broken(config, problem) == [rule]
    ]
    assert alone, f"no config breaks {rule} and nothing else: it drops nothing"
    for problem, config in alone:
        assert config not in candidates(problem, H200)


@pytest.mark.parametrize(
    "text",
    [
        "bf16:rcr",
        "bf16:rrr",
        "bf16:crr",
        "fp16:rcr>fp32",
        "e4m3:rcr>bf16",
        "int8:rcr>int32",
        "bf16xint8:rcr:column-scales",
        "bf16xint8:rcr:fp32-column-scales+bias",
    ],
)
def test_every_operands_that_it_multiplies_have_a_space(text: str) -> None:
    found = space.valid_configs(GemmOperands.parse(text), H200)
    assert len(found) > 1_000
    assert {config.split_k > 1 for config in found} == {False, True}


@pytest.mark.parametrize(
    "text",
    [
        "e4m3:rrr>bf16",
        "bf16xfp16:rcr",
        "bf16xe4m3:rcr",
        "int8xbf16:rcr",
        "bf16xint8:rcr:row-scales",
        "e4m3:rcr>bf16:out-row-scales",
        "int8:rcr>bf16:column-scales",
        "int8:rcr>bf16:fp32-column-scales",
        "int8:rcr>bf16",
        "int8:rcr>int32:bias",
        "bf16:rcr:row-scales",
    ],
)
def test_other_operands_have_none(text: str) -> None:
    assert space.valid_configs(GemmOperands.parse(text), H200) == ()


@given(st.sampled_from(SAMPLE))
def test_a_name_is_read_back(config: QuackConfig) -> None:
    assert parse_config(config.name) == config


# ---- the space as a whole


def test_space_is_the_same_every_time_and_small_beside_what_its_axes_span() -> None:
    space.valid_configs.cache_clear()
    assert space.valid_configs(LINEAR_BF16, H200) == SPACE
    assert 1_000 <= len(SPACE) <= 10_000
    assert sum(1 for _ in space.points(LINEAR_BF16)) > 50 * len(SPACE)


def test_names_are_distinct() -> None:
    assert len({config.name for config in SPACE}) == len(SPACE)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fp16xint8:rcr", "A is fp16 and B int8"),
        ("bf16:rcr:row-scales", "bf16:rcr:row-scales scales A of bf16 and B of bf16"),
        ("bf16xint8:rrr", "layout rrr: 8-bit operands are read along k only"),
        ("e4m3:rcr>bf16@fp16", "e4m3:rcr>bf16@fp16 accumulates in fp16"),
        ("int8:ccr>int32", "layout ccr: 8-bit operands are read along k only"),
        ("int8:rcr", "int8 into int8"),
        ("bf16:rcr>int32", "bf16 into int32"),
        ("e4m3:rcr", "e4m3 into e4m3"),
    ],
)
def test_a_reason_is_given_for_operands_without_a_space(text: str, reason: str) -> None:
    operands = GemmOperands.parse(text)
    first = next(FAMILY.violations(SPACE[0], operands, H200))
    assert (first.rule.name, first.text) == ("operands", reason)
    with pytest.raises(TilecastError, match="^no kernel multiplies .* on H200; allowed: "):
        candidates(GemmProblem(64, 64, 64, operands=operands), H200)


def test_off_the_axes_no_further_rule_is_asked() -> None:
    odd = QuackConfig(100, 7, 3, cluster_m=5, stages=1, schedule="z", raster="z")
    assert _broken(odd, GemmProblem(40, 48, 64)) == ["axes"]


@given(st.sampled_from(SAMPLE))
def test_complaints_carry_the_numbers_in_one_line(config: QuackConfig) -> None:
    for violation in FAMILY.violations(config, LINEAR_BF16, H200, GemmProblem(40, 48, 64)):
        assert violation.rule.reason
        assert any(character.isdigit() for character in violation.text)
        assert "\n" not in violation.text


# ---- candidates of a problem

problems = st.builds(
    GemmProblem,
    m=st.integers(1, 20_000),
    n=st.integers(1, 4_000).map(lambda x: 8 * x),
    k=st.integers(1, 4_000).map(lambda x: 8 * x),
)


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
        assert config.split_k == 1 or config.split_k * 512 <= 2 * problem.k


@given(problems)
def test_orders_differ_only_where_there_is_an_order(problem: GemmProblem) -> None:
    config: Any
    for config in candidates(problem, H200):
        if (config.raster, config.swizzle) != space.ORDERS[0]:
            rows, columns = (problem.n, problem.m) if config.swap_ab else (problem.m, problem.n)
            tiles = -(-rows // config.tile_m) * -(-columns // config.tile_n)
            assert tiles > H200.sm_count * config.ctas_per_sm
            assert config.split_k == 1


def test_a_converted_operand_is_the_kernels_own_a_and_each_row_of_one_warp_group() -> None:
    found = space.valid_configs(MIXED, H200)
    assert found and all(config.swap_ab for config in found)
    assert not [c for c in found if c.tile_m == 320 or (c.tile_m == 192 and _groups(c)[0] == 2)]
    assert {c.split_k for c in found} == set(space.SPLITS)


# ---- resources, by hand


@pytest.mark.parametrize(
    ("name", "launch", "load", "mma"),
    [
        # One MMA warp group of the SM's two, three, four: 65,536 registers among the threads.
        ("64x128x64_c1x1x1_s9_coop_o1_rm8", 248, 40, 232),
        ("128x128x64_c1x1x1_s6_coop_o1_rm8", 168, 40, 232),
        ("192x128x64_c1x1x1_s5_coop_o1_rm8", 128, 40, 152),
        ("64x64x64_c1x1x1_s6_coop_o2_rm8", 128, 40, 216),
        ("128x128x64_c1x1x1_s3_coop_o2_rm8", 80, 40, 96),
    ],
)
def test_registers_by_hand(name: str, launch: int, load: int, mma: int) -> None:
    config: Any = parse_config(name)
    assert resources.launch_registers(config) == launch
    assert resources.registers(config, LINEAR_BF16) == (load, mma)


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        # Of bf16 64 rows x 64 columns x 2 bytes / 128 threads / 4, and two blocks of 16 columns.
        ("swap_64x16x64_c1x1x1_s12_coop_o1_rm8", 16 + 2 * 4),
        ("swap_128x16x128_c1x1x1_s11_coop_o1_rm8", 32 + 2 * 4),
        ("swap_256x64x64_c1x1x1_s8_coop_o1_rm8", 2 * (16 + 2 * 4)),
    ],
)
def test_registers_of_a_converted_operand_by_hand(name: str, taken: int) -> None:
    config: Any = parse_config(name)
    assert resources.fragment_registers(config, MIXED) == taken
    assert resources.fragment_registers(config, LINEAR_BF16) == 0


def test_shared_memory_by_hand() -> None:
    config: Any = parse_config("128x256x64_c1x1x1_s4_coop_o1_rm8")
    stages, epilogue = 4 * (128 + 256) * 64 * 2, 2 * 128 * 32 * 2
    assert resources.smem_bytes(config, LINEAR_BF16) == 1024 + stages + epilogue
    mixed: Any = parse_config("swap_128x256x64_c1x1x1_s4_coop_o1_rm8")
    scales = 1024  # 128 of them, of 2 bytes, up to where the swizzle repeats
    stages = 4 * (128 * 1 + 256 * 2) * 64
    assert resources.smem_bytes(mixed, MIXED) == 1024 + stages + epilogue + scales
    assert H200.smem_limit(1) == 227 * 1024
    assert 2 * (H200.smem_limit(2) + 1024) == 228 * 1024
