"""The candidate space of QuACK's SM100 GEMM; tests/slow/kernels/test_sm100.py compiles some."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import broken_rules, candidates, space
from tilecast.kernels.families import FAMILIES, parse_config, same_code
from tilecast.kernels.quack_sm100 import resources
from tilecast.kernels.quack_sm100.config import Sm100Config
from tilecast.kernels.quack_sm100.space import SPLITS, STAGES
from tilecast.models.features.features import featurize
from tilecast.models.features.tile_numbers import SUMMING_TIME, TileNumbers, tile_table
from tilecast.models.features.tile_waves import Waves
from tilecast.models.runtime.unmeasured import AnalyticOrder

B200 = hardware("B200")
FAMILY = FAMILIES["quack_sm100"]
PAIR = Sm100Config(128, 256, 64, cluster_m=2, stages=6)
SPLIT = replace(PAIR, split_k=4)
FP8_GROUPS = "e4m3:rcr>bf16:row-groups+row-scales"
GROUPED = replace(PAIR, tile_k=128)
MX, MX_TEXT = Sm100Config(128, 192, 128, cluster_m=2, stages=7), "e4m3:rcr>bf16:block-scales"


@pytest.mark.parametrize("text", ["bf16:rcr", "fp16:rrr", "e4m3:rcr>bf16:row-scales"])
def test_what_breaks_no_rule_is_in_the_space_and_nothing_else(text: str) -> None:
    operands = GemmOperands.parse(text)
    configs = space(operands, B200).configs
    assert len(configs) == len(set(configs)) == 1160 + len(SPLITS[1:]) * 290
    assert {type(config) for config in configs} == {Sm100Config}
    assert all(parse_config(config.name) == config for config in configs)
    assert not any(
        rule for config in configs[::29] for rule in broken_rules(config, operands, B200)
    )
    assert list(configs) == FAMILY.configs(FAMILY.geometry(configs))


@pytest.mark.parametrize(
    ("config", "text", "rule"),
    [
        (PAIR, "int8:rcr>int32", "operands"),
        (PAIR, "bf16xint8:rcr:column-scales", "operands"),
        (PAIR, "e4m3:crr>bf16", "operands"),
        (PAIR, "bf16:rcr:c", "operands"),
        (PAIR, "bf16:rrr:silu-mul", "operands"),
        (PAIR, "bf16:rcc:silu-mul", "operands"),
        (PAIR, "bf16:rcr>fp32:silu-mul", "operands"),
        (MX, "e4m3:rcr>bf16:block-scales+silu-mul", "operands"),
        (PAIR, "e4m3:rcr>bf16:row-groups+row-scales+silu-mul", "operands"),
        (replace(PAIR, swap_ab=True), "bf16:rcr:silu-mul", "gate"),
        (SPLIT, "bf16:rcr:silu-mul", "gate"),
        (Sm100Config(64, 256, 64, stages=5), "bf16:rcr:silu-mul", "gate"),
        (Sm100Config(128, 16, 64, stages=12), "bf16:rcr:silu-mul", "gate"),
        (PAIR, "bf16:rcr@4xfp32", "operands"),
        (PAIR, "bf16:rcr:row-groups+bias", "operands"),
        (PAIR, "bf16:ccr:row-groups", "operands"),
        (replace(PAIR, swap_ab=True), "bf16:rcr:row-groups", "groups"),
        (SPLIT, "bf16:rcr:row-groups", "groups"),
        (SPLIT, "bf16:crr:k-groups", "groups"),
        (replace(SPLIT, raster="n"), "bf16:rcr", "split"),
        (replace(SPLIT, tile_k=128, stages=3), "bf16:rcr", "split"),
        (replace(SPLIT, split_k=5), "bf16:rcr", "axes"),
        (replace(MX, split_k=2), MX_TEXT, "split"),
        (PAIR, "bf16:rcr:block-scales", "operands"),
        (replace(MX, tile_n=96), MX_TEXT, "blocks"),
        (replace(MX, tile_m=64), MX_TEXT, "blocks"),
        (replace(MX, tile_n=512, cluster_n=1), MX_TEXT, "blocks"),
        (replace(PAIR, tile_n=48), "bf16:rcr", "axes"),
        (replace(PAIR, cluster_m=4, cluster_n=4), "bf16:rcr", "axes"),
        (replace(PAIR, tile_n=512, cluster_m=1), "bf16:rcr", "wide"),
        (replace(PAIR, tile_n=16, cluster_m=4), "bf16:rcr", "multicast-slice"),
        (replace(PAIR, stages=7), "bf16:rcr", "shared-memory"),
        (replace(PAIR, stages=5), "bf16:rcr", "depth"),
    ],
)
def test_a_rule_says_why_a_config_is_left_out(config: Sm100Config, text: str, rule: str) -> None:
    broken = [one.name for one in broken_rules(config, GemmOperands.parse(text), B200)]
    assert rule in broken
    assert not any(list(broken_rules(one, LINEAR_BF16, B200)) for one in (PAIR, SPLIT))


def test_a_kernel_of_another_architecture_is_no_candidate() -> None:
    """And no other rule is asked."""
    hopper = space(LINEAR_BF16, hardware("H200")).configs[0]
    for config, gpu in ((PAIR, hardware("H200")), (hopper, B200)):
        assert [one.name for one in broken_rules(config, LINEAR_BF16, gpu)] == ["architecture"]


def test_a_pair_keeps_half_of_b_each() -> None:
    """Of 227 KB: 6 stages of (128 x 64 + 128 x 64) x 2 bytes, two pieces of 8 KB, barriers."""
    (smem,) = space(LINEAR_BF16, B200).all().select([PAIR]).columns.smem_bytes
    assert smem == 6 * 32768 + 2 * 8192 + 1024
    alone = Sm100Config(128, 256, 64, stages=4)
    (smem,) = space(LINEAR_BF16, B200).all().select([alone]).columns.smem_bytes
    assert smem == 4 * 49152 + 2 * 8192 + 1024


def test_scales_of_blocks_take_room_in_every_stage_and_beside_the_accumulators() -> None:
    """A stage is 128 + 192 / 2 rows of 128 bytes; 4 bytes for each of 128 rows, and of 256."""
    operands = GemmOperands.parse(MX_TEXT)
    table = space(operands, B200)
    (smem,) = table.all().select([MX]).columns.smem_bytes
    assert smem == 7 * 128 * 224 + 4096 + 7 * 4 * 256 + 2 * 8192 + 1024
    configs = {(config.tile_m, config.tile_n) for config in table.configs}  # type: ignore[attr-defined]
    assert configs == {(128, 64), (128, 128), (128, 192), (128, 256)}
    columns = FAMILY.geometry(table.configs)
    deeper = resources.smem_bytes(replace(columns, stages=columns.stages + 1), operands)
    assert ((deeper > B200.smem_limit(1)) | (columns.stages == STAGES[-1])).all()
    assert resources.accumulators(FAMILY.geometry([MX]), operands) == 2
    wide = FAMILY.geometry([replace(MX, tile_n=256)])
    assert resources.accumulators(wide, operands) == 1
    assert resources.accumulators(wide, GemmOperands.parse("e4m3:rcr>bf16")) == 2


def test_a_split_stores_float32_and_reads_no_vectors() -> None:
    """Two pieces of 32 columns, 16 KB each; the bias is read by the kernel that adds up."""
    for text in ("bf16:rcr", "bf16:rcr:bias+gelu"):
        (smem,) = space(GemmOperands.parse(text), B200).all().select([SPLIT]).columns.smem_bytes
        assert smem == 6 * 32768 + 2 * 16384 + 1024


def test_a_split_is_of_few_tiles_and_a_long_k() -> None:
    """Two waves of 148 CTAs at most, and 512 bytes of k for each; 2 x 2 x 4 CTAs here."""

    def broken(m: int, n: int, k: int) -> list[str]:
        problem = GemmProblem(m, n, k)
        return [one.name for one in broken_rules(SPLIT, LINEAR_BF16, B200, problem)]

    assert not broken(256, 512, 1024)
    assert "split-stretch" in broken(256, 512, 1016)
    assert not {"split-waves"} & set(broken(256, 256 * 37, 4096))
    assert "split-waves" in broken(256, 256 * 38, 4096)


def test_a_split_is_worth_its_second_kernel_where_tiles_are_few_and_k_is_long() -> None:
    """By the analytic order: one tile of 8,192 along k, and none of many tiles."""

    def first(problem: GemmProblem) -> Sm100Config:
        (found,) = AnalyticOrder(B200).rank(problem, candidates(problem, B200), limit=1)
        assert isinstance(found, Sm100Config)
        return found

    assert first(GemmProblem(64, 64, 8192)).split_k == 8
    assert first(GemmProblem(4096, 4096, 4096)).split_k == 1


def test_ctas_of_a_split_need_not_run_at_once() -> None:
    """Their clusters are those of the loads they share, four times as many as without a split."""
    problem = GemmProblem(256, 2048, 8192)
    pair = space(LINEAR_BF16, B200).all().select([PAIR, SPLIT])
    tile = TileNumbers(*tile_table(pair.table, LINEAR_BF16).numbers.take(pair.rows, axis=1))
    waves = Waves.of(problem, pair.columns, tile, B200)
    assert waves.cluster.tolist() == [2, 2] and waves.clusters.tolist() == [8, 32]
    assert waves.k_steps.tolist() == [128, 32]
    assert tile.summing[0] == 0 and tile.summing[1] > SUMMING_TIME
    assert tile.exchange.tolist() == [0, 0]
    assert tile.store_bytes[1] == 2 * tile.store_bytes[0]


def test_groups_have_candidates_on_blackwell() -> None:
    """Without an exchange of A and B or a split, but with pairs of CTAs."""
    for text in ("bf16:rcr:row-groups", "bf16:crr:k-groups", FP8_GROUPS):
        problem = GemmProblem(4096, 1536, 2048, 32, GemmOperands.parse(text))
        found = candidates(problem, B200)
        configs = [config for config in found if isinstance(config, Sm100Config)]
        assert len(configs) == len(found) > 50
        assert not any(config.swap_ab or config.split_k > 1 for config in configs)
        assert any(config.cluster_m == 2 for config in configs)
        assert np.isfinite(featurize(problem, found, B200)).all()
    (smem,) = space(GemmOperands.parse(FP8_GROUPS), B200).all().select([GROUPED]).columns.smem_bytes
    assert smem == 6 * 32768 + 2 * 8192 + 2048 + 1024  # 128 + 256 scales of 4 bytes, in KBs


def test_a_gate_stores_half_as_many_columns() -> None:
    """Two pieces of 16 columns, 4 KB each; 64 rows are a pair's, whatever the gate."""
    for text in ("bf16:rcr:silu-mul", "bf16:rcr:row-groups+mul-gelu"):
        table = space(GemmOperands.parse(text), B200)
        (smem,) = table.all().select([PAIR]).columns.smem_bytes
        assert smem == 6 * 32768 + 2 * 4096 + 1024
        paired = {(c.tile_m, c.cluster_m % 2) for c in table.configs if isinstance(c, Sm100Config)}
        assert paired == {(64, 0), (128, 0), (128, 1)}
    problem = GemmProblem(512, 28672, 4096, operands=GemmOperands.parse("bf16:rcr:silu-mul"))
    assert np.isfinite(featurize(problem, candidates(problem, B200), B200)).all()


def test_blackwell_has_candidates_of_its_own_and_they_have_features() -> None:
    for problem in (GemmProblem(4096, 4096, 4096), GemmProblem(1, 6144, 4096, batch=2)):
        found = candidates(problem, B200)
        assert len(found) > 50 and {config.family for config in found} == {FAMILY.name}
        assert np.isfinite(featurize(problem, found, B200)).all()
    assert not len(candidates(GemmProblem(64, 512, 512), B200, invariant=True))
    with pytest.raises(TilecastError, match="no kernel multiplies int8:rcr>int32 on B200"):
        space(GemmOperands.parse("int8:rcr>int32"), B200)


def test_rates_that_shapes_reach_are_those_of_the_instructions() -> None:
    """64 rows take as long as 128 unless they are half of a pair; narrow tiles wait for rows."""
    configs = (
        PAIR,
        Sm100Config(64, 256, 64),
        Sm100Config(64, 256, 64, 2),
        Sm100Config(128, 64, 64),
    )
    columns = space(LINEAR_BF16, B200).all().select([PAIR]).columns
    many = replace(columns, **vars(FAMILY.geometry(configs)))
    np.testing.assert_allclose(FAMILY.mma_efficiency(many, LINEAR_BF16), [1, 0.5, 1, 2 / 3])


def test_both_of_blackwells_data_centre_parts_run_the_same_code() -> None:
    assert same_code("sm_100a", "sm_103a") and not same_code("sm_90a", "sm_100a")
    b300 = replace(B200, name="B300", arch="sm_103a")
    assert space(LINEAR_BF16, b300).configs == space(LINEAR_BF16, B200).configs


def test_no_family_is_for_the_gpu_that_compilers_take_for_the_hosts() -> None:
    """It would load what it compiles into it; and families agree, as one process serves all."""
    for family in FAMILIES.values():
        host = family.environment["CUTE_DSL_ARCH"]
        assert not any(host in (other.arch, *other.runs_on) for other in FAMILIES.values())
    assert len({tuple(family.environment.items()) for family in FAMILIES.values()}) == 1
