"""QuACK's space: valid configs against arithmetic done again here, and every rule seen.

The numbers below are written out from NVIDIA's documents instead of imported, so that a slip in
`tilecast.kernels.quack_sm90.resources` cannot hide.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilecast.heuristics.config import Candidates
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import GPUS
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels import candidates as asking
from tilecast.kernels.candidates import broken_rules, config_table, family_space
from tilecast.kernels.families import parse_config
from tilecast.kernels.quack_sm90 import resources
from tilecast.kernels.quack_sm90.axes import STAGES, SWIZZLE
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.quack_sm90.family import QUACK_SM90
from tilecast.kernels.quack_sm90.space import AXES
from tilecast.kernels.rules import HARDWARE

H200 = GPUS[0]
FAMILY = QUACK_SM90
space = partial(asking.space, families=(FAMILY.name,))
candidates = partial(asking.candidates, families=(FAMILY.name,))
MIXED = GemmOperands.parse("bf16xint8:rcr:column-scales")
SPACE: tuple[Any, ...] = space(LINEAR_BF16, H200).configs


def _point(draw: random.Random) -> QuackConfig:
    return QuackConfig(
        draw.choice(AXES.tile_m),
        draw.choice(AXES.tile_n),
        draw.choice((64, 128)),
        *draw.choice(AXES.clusters),
        draw.choice(AXES.splits),
        draw.choice(STAGES),
        draw.choice(("coop", "pong")),
        draw.choice(AXES.ctas_per_sm),
        draw.choice(AXES.rasters),
        SWIZZLE,
        swap_ab=draw.random() < 0.5,
    )


def _broken(
    config: QuackConfig, problem: GemmProblem | None = None, operands: GemmOperands = LINEAR_BF16
) -> list[str]:
    return [rule.name for rule in broken_rules(config, operands, H200, problem)]


_draw = random.Random(0)
SAMPLE = [_point(_draw) for _ in range(4_000)]


@pytest.fixture(scope="module")
def runnable() -> Candidates:
    """The space, and points that run though a pilot left them out."""
    points = FAMILY.geometry(SAMPLE)
    broken = np.zeros(len(SAMPLE), bool)
    for rule in FAMILY.config_rules:
        if rule.kind == HARDWARE:
            broken |= rule.broken(points, LINEAR_BF16, H200)
    more = [config for config, out in zip(SAMPLE, broken, strict=True) if not out]
    assert len(more) > 50
    return config_table(dict.fromkeys((*SPACE, *more)), LINEAR_BF16).all()


def _groups(c: Any) -> tuple[np.ndarray, np.ndarray]:
    """MMA warp groups that share a tile, and those of a CTA."""
    of_192 = np.where(c.tile_n <= 128, 3, 2)
    coop = np.select([c.tile_m == 64, c.tile_m == 192], [1, of_192], 2)
    return np.where(c.ping_pong, 1, coop), np.where(c.ping_pong, 2, coop)


def test_what_runs_fits_the_sm_and_the_instructions(runnable: Candidates) -> None:
    c = runnable.columns
    shared, groups = _groups(c)
    threads = (groups + 1) * 128
    assert (threads * c.ctas_per_sm <= 2048).all()
    assert (c.tile_m * c.tile_n / (shared * 128) == c.accumulator_registers).all()
    assert (c.accumulator_registers < c.mma_registers).all() and c.mma_registers.max() <= 240
    # 24 are the least that setmaxnreg leaves a warp group, the one that loads.
    at_launch = 65_536 // (threads * c.ctas_per_sm) // 8 * 8
    assert ((groups * c.mma_registers + 24) * 128 <= at_launch * threads).all()

    stages = c.stages * (c.tile_m + c.tile_n) * c.tile_k * 2
    # At least one piece of 64 rows and 16 columns is stored from there, and two barriers a stage.
    assert (c.smem_bytes >= stages + 64 * 16 * 2 + 2 * 8 * c.stages).all()
    assert c.smem_bytes.max() <= 227 * 1024
    assert ((c.smem_bytes + 1024) * c.ctas_per_sm <= 228 * 1024).all()

    # Eight everywhere, 16 on Hopper (CUDA programming guide, thread block clusters).
    ctas = c.cluster_m * c.cluster_n * c.split_k
    assert (ctas <= np.where(c.split_k == 1, 4, 16)).all()
    assert (c.tile_m % (8 * c.cluster_n) == 0).all() and (c.tile_n % (8 * c.cluster_m) == 0).all()
    assert (c.tile_m * c.tile_n % (shared * 64 * 8) == 0).all()

    # CTAs that split k share loads of one side, and each of the others sends its share of a tile.
    split = c.split_k > 1
    assert not c.ping_pong[split].any() and np.minimum(c.cluster_m, c.cluster_n)[split].max() == 1
    received = (c.split_k - 1) * c.tile_m * c.tile_n * 4 / c.split_k
    assert (received <= stages)[split].all()


@pytest.mark.parametrize(
    "name, rule",
    [
        ("128x128x64_c2x2x2_s6_coop_o1_rm8", "split"),
        ("128x128x64_c4x1x6_s6_coop_o1_rm8", "split"),
        ("128x128x64_c2x1x2_s6_pong_o1_rm8", "split"),
        ("128x96x64_c2x1x2_s7_coop_o1_rm8", "split-sharing"),
        ("128x128x64_c1x1x1_s5_coop_o1_rm8", "depth"),
        ("256x256x64_c1x1x1_s2_coop_o1_rm8", "registers"),
        ("swap_128x128x64_c3x1x1_s6_coop_o1_rm8", "axes"),
    ],
)
def test_what_is_left_out_breaks_a_rule(name: str, rule: str) -> None:
    assert rule in [found.name for found in broken_rules(parse_config(name), LINEAR_BF16, H200)]


def test_the_space_is_the_points_that_break_no_rule() -> None:
    assert list(SPACE) == sorted(set(SPACE)) and 1_000 <= len(SPACE) <= 10_000
    assert len({config.name for config in SPACE}) == len(SPACE)
    inside = set(SPACE)
    for config in (*SAMPLE[:500], *SPACE[::50]):
        assert (config in inside) == (not _broken(config)), config
    assert {config.split_k for config in SPACE} == set(AXES.splits)
    assert {config.schedule for config in SPACE} == {"coop", "pong"}
    shapes = {(c.cluster_m, c.cluster_n) for c in SPACE if c.split_k > 1}
    assert shapes == {cluster for cluster in AXES.clusters if 1 in cluster}


def test_points_are_configs_in_their_order_and_back() -> None:
    points = FAMILY.points(LINEAR_BF16, H200)
    assert len(points) == 92_160
    part = points.at(np.arange(0, len(points), 503))
    configs = FAMILY.configs(part)
    assert configs == sorted(configs)
    for column, again in zip(
        vars(part).values(), vars(FAMILY.geometry(configs)).values(), strict=True
    ):
        np.testing.assert_array_equal(column, again)


@pytest.mark.parametrize("rule", [r.name for r in FAMILY.config_rules if r.name != "axes"])
def test_every_rule_takes_something_away(rule: str) -> None:
    """Something that no other rule of its kind does."""
    texts = {
        "operands": "int8:rrr>int32",
        "warp-group-tile": "bf16:rrr",
        "conversion": str(MIXED),
        "gate": "bf16:rcr:silu-mul",
        "groups": "bf16:rcr:row-groups",
        "stretches": "bf16:rcr@4xfp32",
    }
    operands = GemmOperands.parse(texts.get(rule, "bf16:rcr"))
    points = FAMILY.geometry(SAMPLE)
    broken = {r.name: r.broken(points, operands, H200) for r in FAMILY.config_rules}
    kinds = {r.name: r.kind for r in FAMILY.config_rules}
    others = [broken[n] for n in broken if n != rule and kinds[n] == kinds[rule]]
    if rule == "operands":
        assert broken[rule].all()
    else:
        assert (broken[rule] & ~np.logical_or.reduce(others)).any()


@pytest.mark.parametrize("rule", [r.name for r in FAMILY.problem_rules])
def test_every_problem_rule_alone_drops_a_candidate(rule: str) -> None:
    columns = space(LINEAR_BF16, H200).columns
    alone = 0
    for problem in (
        GemmProblem(40, 48, 64),
        GemmProblem(512, 512, 512),
        GemmProblem(4096, 4096, 4096),
    ):
        broken = {r.name: r.broken(columns, problem, H200) for r in FAMILY.problem_rules}
        others = np.logical_or.reduce([broken[name] for name in broken if name != rule])
        (rows,) = np.nonzero(broken[rule] & ~others)
        alone += len(rows)
        if len(rows):
            assert _broken(SPACE[rows[0]], problem) == [rule]
            assert SPACE[rows[0]] not in candidates(problem, H200)
    assert alone, f"no config breaks {rule} and nothing else: it drops nothing"


@pytest.mark.parametrize(
    "text",
    [
        *("bf16:rcr", "bf16:rrr", "bf16:crr", "fp16:rcr>fp32", "e4m3:rcr>bf16", "int8:rcr>int32"),
        *("bf16xint8:rcr:column-scales", "bf16xint8:rcr:fp32-column-scales+bias"),
    ],
)
def test_every_operands_that_it_multiplies_have_a_space(text: str) -> None:
    found = space(GemmOperands.parse(text), H200)
    assert len(found.configs) > 1_000
    assert set(found.columns.split_k > 1) == {False, True}


@pytest.mark.parametrize(
    "text",
    [
        *("fp16xint8:rcr", "bf16xfp16:rcr", "bf16:rcr:row-scales", "bf16xint8:rcr:row-scales"),
        *("e4m3:rcr>bf16:out-row-scales", "int8:rcr>bf16:column-scales", "int8:rcr>int32:bias"),
        *("bf16xint8:rrr", "e4m3:rcr>bf16@fp16", "int8:ccr>int32", "int8:rcr>bf16"),
        *("bf16:rcr>int32", "e4m3:rcr", "bf16:crr:row-groups", "bf16:rcc:row-groups"),
        *("bf16:rcr:row-groups+bias", "bf16:rcr>fp32:row-groups", "e4m3:rcr>bf16:row-groups"),
        *("e4m3:rcr>bf16:row-groups+tensor-scales", "int8:rcr>bf16:row-groups+row-scales"),
        *("e4m3:rcr>bf16:row-groups+row-scales+bias", "e4m3:rcr>fp32:row-groups+row-scales"),
        *("e4m3:rcr>bf16:row-groups+row-scales+silu-mul", "e4m3:crr>bf16:k-groups+row-scales"),
        *("bf16:rcr:k-groups", "bf16:rrr:k-groups", "bf16:crr:k-groups+bias"),
    ],
)
def test_some_operands_have_no_space(text: str) -> None:
    operands = GemmOperands.parse(text)
    assert family_space(FAMILY, operands, H200).configs == ()
    assert next(broken_rules(SPACE[0], operands, H200)).name == "operands"
    with pytest.raises(TilecastError, match="^no kernel multiplies .* on H200; allowed: "):
        candidates(GemmProblem(64, 64, 64, operands=operands), H200)


@given(st.sampled_from(SAMPLE))
def test_a_name_is_read_back(config: QuackConfig) -> None:
    assert parse_config(config.name) == config


@pytest.mark.parametrize(
    "name",
    [
        "",
        "128x256x64",
        "128x256x64_c2x1x1_s4_coop_o1_rk1",
        "128x256x64_c2x1x1_s4_coop_o1_rm8_k4",
        "１28x256x64_c2x1x1_s4_coop_o1_rm8",
        "9" * 5000 + "x256x64_c2x1x1_s4_coop_o1_rm8",
        "128x256x64_c2x1x1_s4_coop_o1_rm8\n",
        "128x-256x64_c2x1x1_s4_coop_o1_rm8",
        "torch.mm",
    ],
)
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(TilecastError, match="is not a config name; allowed: names such as"):
        parse_config(name)


def test_off_the_axes_no_further_rule_is_asked() -> None:
    huge = 10**9 - 1
    for odd in (QuackConfig(100, 7, 3, cluster_m=5, stages=1), QuackConfig(huge, huge, huge)):
        assert _broken(odd, GemmProblem(40, 48, 64)) == ["axes"]


# ---- candidates of a problem

problems = st.builds(
    GemmProblem,
    m=st.integers(1, 20_000),
    n=st.integers(1, 4_000).map(lambda x: 8 * x),
    k=st.integers(1, 4_000).map(lambda x: 8 * x),
)


@pytest.mark.parametrize("problem", ["1x8x8", "16x6144x4096", "16384x28672x8192", "48x64x512x64"])
def test_candidates_break_no_rule_of_their_problem(problem: str) -> None:
    read = GemmProblem.parse(problem)
    found = set(candidates(read, H200))
    for config in SPACE[::23]:
        assert (config in found) == (not _broken(config, read))


@given(problems)
def test_candidates_waste_no_tile_or_cluster_and_have_an_order_where_there_is_one(
    problem: GemmProblem,
) -> None:
    found = candidates(problem, H200)
    assert len(found) and (np.diff(found.rows) > 0).all()
    assert found.table is space(LINEAR_BF16, H200)
    c = found.columns
    rows = np.where(c.swap_ab, problem.n, problem.m)
    columns = np.where(c.swap_ab, problem.m, problem.n)
    assert (c.cluster_m <= -(-rows // c.tile_m)).all()
    assert (c.cluster_n <= -(-columns // c.tile_n)).all()
    for axis, tile, extent in ((AXES.tile_m, c.tile_m, rows), (AXES.tile_n, c.tile_n, columns)):
        covering = [value for value in axis if value >= extent.min()]
        assert not covering or (tile[extent <= covering[0]] <= covering[0]).all()
    assert ((c.split_k == 1) | (c.split_k * 512 <= 2 * problem.k)).all()
    tiles = -(-rows // c.tile_m) * -(-columns // c.tile_n)
    chosen = (c.raster_m == 0) | (c.swizzle != SWIZZLE)
    assert (tiles > H200.sm_count * c.ctas_per_sm)[chosen].all()
    assert (c.split_k[chosen] == 1).all()


def test_a_converted_operand_is_the_kernels_own_a_and_each_row_of_one_warp_group() -> None:
    c = space(MIXED, H200).columns
    assert len(c) and c.swap_ab.all()
    assert not ((c.tile_m == 320) | ((c.tile_m == 192) & (_groups(c)[0] == 2))).any()
    assert set(c.split_k) == set(AXES.splits)


# ---- resources, by hand


@pytest.mark.parametrize(
    "text",
    [
        *("bf16:rcr:row-groups", "fp16:rrr:row-groups+silu", "bf16:crr:k-groups"),
        *("e4m3:rcr>bf16:row-groups+row-scales", "e4m3:rcr>bf16@fp32:row-groups+row-scales+silu"),
    ],
)
def test_groups_take_the_kernels_of_a_product_that_run_along_rows_and_split_no_k(text: str) -> None:
    grouped = GemmOperands.parse(text)
    plain = space(replace(grouped, groups=""), H200)
    kept = (plain.columns.swap_ab == 0) & (plain.columns.split_k == 1)
    configs = tuple(plain.configs[row] for row in np.flatnonzero(kept))
    assert space(grouped, H200).configs == configs


def test_a_tile_may_cover_groups_of_four_times_their_share() -> None:
    problem = GemmProblem.parse("8x256x2048x2048", GemmOperands.parse("bf16:rcr:row-groups"))
    assert set(candidates(problem, H200).columns.tile_m) == {64, 128}


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


def test_a_tile_behind_a_gate_is_stored_half_as_wide() -> None:
    gated = GemmOperands.parse("bf16:rcr:bias+silu-mul")
    columns = space(gated, H200).columns
    assert len(columns.tile_n) > 500
    assert not columns.swap_ab.any() and set(columns.split_k) == {1}
    assert (columns.tile_n % 32 == 0).all() and (
        columns.tile_n % (16 * columns.cluster_m) == 0
    ).all()
    assert not ((columns.tile_m == 192) & (columns.tile_n > 128) & (columns.ping_pong == 0)).any()
    config: Any = parse_config("128x96x64_c1x1x1_s6_coop_o1_rm8")
    assert resources.epilogue_tile(config, gated) == (128, 16)
    stages, epilogue, bias = 6 * (128 + 96) * 64 * 2, 3 * 128 * 16 * 2, 1024
    assert resources.smem_bytes(config, gated) == 1024 + stages + epilogue + bias
    assert resources.accumulator_registers(config, gated) == 48
    with pytest.raises(TilecastError, match="^no kernel multiplies .* on H200; allowed: "):
        candidates(GemmProblem(64, 64, 64, operands=GemmOperands.parse("bf16:rrr:silu-mul")), H200)


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


@pytest.mark.parametrize(
    ("text", "splits", "depths"),
    [
        ("bf16:rcr", {1}, {64, 128}),
        ("bf16:rcr@4xfp32", {1, 4}, {64, 128}),
        ("e4m3:rcr>bf16:row-scales", {1}, {128, 256}),
        ("e4m3:rcr>bf16@fp32:row-scales", {1}, {128}),
        ("int8:rcr>bf16:row-scales", {1}, {128, 256}),
        ("int8:rcr>int32", set(AXES.splits), {128, 256}),
    ],
)
def test_invariant_candidates_are_those_that_add_up_alike(
    text: str, splits: set[int], depths: set[int]
) -> None:
    operands, found = GemmOperands.parse(text), set()
    for m in (1, 40, 700, 16384):
        for n, k in ((16, 2048), (48, 28672), (1024, 8192), (128256, 4096)):
            problem = GemmProblem(m, n, k, operands=operands)
            left = candidates(problem, H200, invariant=True)
            assert left
            assert set(left) <= set(candidates(problem, H200))
            found.update(left)
    assert {config.split_k for config in found} == splits
    assert {config.tile_k for config in found} == depths


@pytest.mark.parametrize("text", ["bf16:rcr", "fp16:rrr", "e4m3:rcr>bf16:row-scales"])
def test_few_columns_and_a_long_k_are_added_up_in_stretches_for_any_m(text: str) -> None:
    operands = GemmOperands.parse(text)
    for n, k in ((256, 7168), (2112, 7168), (1024, 2048), (16, 16384), (256, 7168 + 16)):
        for m, batch in ((1, 1), (4096, 1), (16, 7)):
            posed = GemmProblem(m, n, k, batch, operands).invariant()
            assert posed.operands == replace(operands, stretches=4)
            assert (posed.m, posed.n, posed.k, posed.batch) == (m, n, k, batch)
            assert posed.invariant() == posed
    for n, k in ((4096, 4096), (2128, 7168), (1040, 2048), (256, 1024)):
        problem = GemmProblem(16, n, k, operands=operands)
        assert problem.invariant() == problem


@pytest.mark.parametrize(
    "text",
    [
        *("int8:rcr>int32", "int8:rcr>bf16:row-scales", "e4m3:rcr>bf16@fp32:row-scales"),
        *("bf16xint8:rcr:column-scales", "bf16:rcr:row-groups"),
    ],
)
def test_what_no_stretches_help_is_added_up_as_ever(text: str) -> None:
    problem = GemmProblem(16, 256, 8192, operands=GemmOperands.parse(text))
    assert problem.invariant() == problem


def test_stretches_are_taken_by_one_cta_or_by_as_many() -> None:
    operands = GemmOperands.parse("bf16:rcr@4xfp32")
    left = candidates(GemmProblem(16, 256, 8192, operands=operands), H200)
    assert not candidates(GemmProblem(16, 256, 256, operands=operands), H200)
    assert {getattr(config, "split_k", None) for config in left} == {1, 4}


def test_stretches_that_one_cta_adds_up_take_twice_the_accumulators() -> None:
    plain, stretched = map(GemmOperands.parse, ("bf16:rcr", "bf16:rcr@4xfp32"))
    for name, times in (
        ("128x128x64_c1x1x1_s4_coop_o1_rm8", 2),
        ("128x128x64_c1x1x4_s4_coop_o1_rm8", 1),
    ):
        config = cast(QuackConfig, parse_config(name))
        found = [int(resources.accumulator_registers(config, one)) for one in (plain, stretched)]
        assert found[1] == times * found[0]
