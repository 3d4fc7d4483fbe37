"""The candidate space of a split of k through memory on SM90; the room that any split is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import (
    broken_rules,
    candidates,
    config_table,
    families_in,
    family_space,
    space,
    split_apart,
)
from tilecast.kernels.families import FAMILIES, family_of, parse_config
from tilecast.kernels.quack_sm90 import resources
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.quack_sm90_memory.config import MemoryConfig
from tilecast.kernels.quack_sm90_memory.space import AXES
from tilecast.kernels.quack_sm100.config import Sm100Config
from tilecast.kernels.spec import KernelSpec
from tilecast.models.features.features import featurize
from tilecast.models.features.tile_numbers import SUMMING_TIME, TileNumbers, tile_table
from tilecast.models.features.tile_waves import Waves

H200 = hardware("H200")
FAMILY, OTHER = FAMILIES["quack_sm90_memory"], FAMILIES["quack_sm90"]
PLAIN = MemoryConfig(128, 192, 64, 2, 1, 5, stages=4)
BLACKWELL = Sm100Config(128, 256, 64, cluster_m=2, stages=6, split_k=4)
FP8 = GemmOperands.parse("e4m3:rcr>bf16:row-scales")
HALF_EMPTY = (
    *((174, 312, 28880), (196, 2064, 26464), (144, 1168, 27816), (223, 480, 25216)),
    *((187, 4560, 17032), (192, 1592, 23208), (256, 512, 16384), (97, 360, 24088)),
)
"""Where the fastest of the other family leaves SMs idle and loses to cuBLAS (models/EXPERIMENTS.md,
Half-empty GPUs)."""


@pytest.mark.parametrize("text", ["bf16:rcr", "fp16:rrc:bias+gelu", "e4m3:rcr>bf16:row-scales"])
def test_what_breaks_no_rule_is_in_the_space_and_nothing_else(text: str) -> None:
    operands = GemmOperands.parse(text)
    table = family_space(FAMILY, operands, H200)
    assert len(table.configs) == len(set(table.configs)) > 1000
    assert {type(config) for config in table.configs} == {MemoryConfig}
    assert all(parse_config(config.name) == config for config in table.configs)
    assert list(table.configs) == FAMILY.configs(FAMILY.geometry(table.configs))
    assert list(table.configs) == sorted(table.configs)  # type: ignore[type-var]
    for config in table.configs[::29]:
        assert not list(broken_rules(config, operands, H200))
    columns = table.columns
    assert set(columns.split_k) == set(range(2, 9)) == set(AXES.splits)
    assert not columns.ping_pong.any() and columns.smem_bytes.max() <= 227 * 1024
    assert (columns.cluster_m * columns.cluster_n).max() == 2


def test_a_name_belongs_to_one_family() -> None:
    """And configs of two are not the same, whatever their knobs."""
    twin = QuackConfig(128, 192, 64, 2, 1, 5, stages=4)
    assert PLAIN.name == f"memory_{twin.name}" == "memory_128x192x64_c2x1x5_s4_coop_o1_rm8"
    for config in (PLAIN, twin, replace(PLAIN, swap_ab=True), replace(twin, swap_ab=True)):
        assert parse_config(config.name) == config
        assert family_of(parse_config(config.name)).name == config.family
        assert [f.name for f in FAMILIES.values() if f.parse(config.name)] == [config.family]
    assert twin != PLAIN and len({PLAIN, twin}) == 2
    for wrong in (
        f"swap_{PLAIN}",
        f"memory_{PLAIN}",
        "memory_",
        "memory_sm100_128x256x64_c2x1_s6_rm8",
    ):
        assert MemoryConfig.parse(wrong) is None


@pytest.mark.parametrize(
    ("config", "text", "rule"),
    [
        (PLAIN, "int8:rcr>int32", "summed"),
        (PLAIN, "int8:rcr>bf16:row-scales", "summed"),
        (PLAIN, "bf16xint8:rcr:column-scales", "summed"),
        (PLAIN, "bf16:rcr:c", "summed"),
        (PLAIN, "bf16:rcr:silu-mul", "summed"),
        (PLAIN, "bf16:rcr:row-groups", "summed"),
        (PLAIN, "bf16:rcr@4xfp32", "summed"),
        (PLAIN, "bf16:rcr:row-scales", "operands"),
        (PLAIN, "bf16:rcr>int32", "operands"),
        (replace(PLAIN, split_k=1), "bf16:rcr", "axes"),
        (replace(PLAIN, split_k=9), "bf16:rcr", "axes"),
        (replace(PLAIN, cluster_m=4), "bf16:rcr", "axes"),
        (replace(PLAIN, ctas_per_sm=2), "bf16:rcr", "axes"),
        (replace(PLAIN, schedule="pong"), "bf16:rcr", "one-tile"),
        (replace(PLAIN, raster="n"), "bf16:rcr", "one-tile"),
        (replace(PLAIN, tile_k=128, stages=2), "bf16:rcr", "even-parts"),
        (
            replace(PLAIN, tile_m=256, tile_n=64),
            "bf16:rcr",
            "longer-side",
        ),
        (replace(PLAIN, tile_m=192, tile_n=160, cluster_m=1), "bf16:rrr", "warp-group-tile"),
        (replace(PLAIN, tile_m=256, tile_n=256), "bf16:rcr", "registers"),
        (replace(PLAIN, stages=6), "bf16:rcr", "shared-memory"),
        (replace(PLAIN, stages=3), "bf16:rcr", "depth"),
    ],
)
def test_a_rule_says_why_a_config_is_left_out(config: MemoryConfig, text: str, rule: str) -> None:
    assert rule in [one.name for one in broken_rules(config, GemmOperands.parse(text), H200)]
    assert not list(broken_rules(PLAIN, LINEAR_BF16, H200))


def test_parts_are_stored_as_float32_and_read_no_vectors() -> None:
    """Two pieces of 128 x 32 sums, 16 KB each; the second kernel reads the bias."""
    for text in ("bf16:rcr", "bf16:rcr:bias+gelu", "fp16:rcc:alpha+bias"):
        table = family_space(FAMILY, GemmOperands.parse(text), H200)
        (smem,) = table.all().select([PLAIN]).columns.smem_bytes
        assert smem == 4 * (128 + 192) * 64 * 2 + 2 * 16384 + 1024
    whole = GemmOperands.parse("bf16:rcr>fp32")
    assert resources.smem_bytes(replace(PLAIN, split_k=1), whole) == smem


def _of(problem: GemmProblem) -> list[Any]:
    return [config for config in candidates(problem, H200) if isinstance(config, MemoryConfig)]


@pytest.mark.parametrize("extents", HALF_EMPTY)
def test_half_empty_gpus_have_some_candidates(extents: tuple[int, int, int]) -> None:
    """All CTAs at once on most of the 132 SMs, and a kilobyte along k for each, twice."""
    problem = GemmProblem(*extents)
    found = _of(problem)
    assert 30 <= len(found) < 150
    for config in found:
        rows, columns = extents[:2][:: -1 if config.swap_ab else 1]
        tiles = [-(-rows // config.tile_m), -(-columns // config.tile_n)]
        clusters = [config.cluster_m, config.cluster_n]
        ctas = np.prod([-(-t // c) * c for t, c in zip(tiles, clusters, strict=True)])
        assert 0.7 * 132 <= ctas * config.split_k <= 132
        assert 2 * extents[2] >= 2048 * config.split_k
    table = candidates(problem, H200)
    assert np.isfinite(featurize(problem, table, H200)).all()


@pytest.mark.parametrize(
    ("extents", "batch"),
    [
        ((4096, 4096, 4096), 1),
        ((1024, 8192, 28672), 1),
        ((512, 512, 2040), 1),
        ((256, 512, 1024), 1),
        ((256, 512, 16384), 32),
        ((8, 16, 65536), 1),
    ],
)
def test_full_gpus_short_products_and_tiny_ones_have_none(
    extents: tuple[int, int, int], batch: int
) -> None:
    assert not _of(GemmProblem(*extents, batch))


def test_no_row_is_promised_the_same_bits_in_every_batch() -> None:
    problem = GemmProblem(196, 2064, 26464)
    assert _of(problem)
    assert families_in(candidates(problem, H200, invariant=True).table) >= {FAMILY.name}
    left = candidates(problem, H200, invariant=True)
    assert len(left) and not any(isinstance(config, MemoryConfig) for config in left)


def test_families_are_asked_for_by_name() -> None:
    """Those of one family are the same, in the same order, as where the other one is asked, too."""
    problem = GemmProblem(196, 2064, 26464)
    both = list(candidates(problem, H200))
    alone = candidates(problem, H200, families=[OTHER.name])
    assert list(alone) + _of(problem) == both
    assert alone is candidates(problem, H200, families={OTHER.name, "quack_sm100"})
    assert alone.table is space(LINEAR_BF16, H200, [OTHER.name])
    (own,) = families_in(alone.table)
    assert own == OTHER.name
    # What features compare with is then of that family alone, too.
    features = featurize(problem, candidates(problem, H200), H200)
    np.testing.assert_array_equal(
        featurize(problem, alone[:7], H200), featurize(problem, alone, H200)[:7]
    )
    assert not np.array_equal(features[: len(alone)], featurize(problem, alone, H200))


def test_it_is_known_as_a_split_that_needs_no_cluster() -> None:
    problem = GemmProblem(196, 2064, 26464)
    twin = replace(QuackConfig(**vars(PLAIN)), split_k=4)
    one = config_table([twin, PLAIN], LINEAR_BF16).all()
    assert split_apart(one.table).tolist() == [False, True]
    tile = TileNumbers(*tile_table(one.table, LINEAR_BF16).numbers)
    waves = Waves.of(problem, one.columns, tile, H200)
    # 2 x 11 tiles of 128 x 192, in clusters of 2 that share loads; times 4 or 5 parts.
    assert waves.cluster.tolist() == [8, 2] and waves.clusters.tolist() == [11, 55]
    assert tile.summing[0] == 0 and tile.summing[1] > SUMMING_TIME
    assert tile.exchange[0] > 0 and tile.exchange[1] == 0


@pytest.mark.parametrize(
    ("config", "text", "shape", "numbers"),
    [
        (PLAIN, "bf16:rcr", (24, 40), 5 * 24 * 40),
        (PLAIN, "bf16:rcr:bias", (3, 24, 40), 5 * 3 * 24 * 40),
        (PLAIN, "e4m3:rcr>bf16:row-scales", (24, 48), 5 * 24 * 48),
        # Of rows that begin anywhere each begins a multiple of four behind the one before.
        (PLAIN, "bf16:rcr", (2, 25, 41), 5 * 2 * 25 * 44),
        (PLAIN, "bf16:rcc", (25, 41), 5 * 28 * 41),
        (BLACKWELL, "bf16:rcr", (24, 40), 4 * 24 * 40),
        (BLACKWELL, "bf16:rcr:bias", (24, 40), 4 * 24 * 40),
        (replace(BLACKWELL, split_k=1), "bf16:rcr", (24, 40), 0),
    ],
)
def test_a_split_is_launched_with_room_for_its_parts(
    config: KernelConfig, text: str, shape: tuple[int, ...], numbers: int
) -> None:
    """Behind all extras: float32, and as many numbers as out has for each part."""
    taken: list[tuple] = []
    operands = GemmOperands.parse(text)
    extras = tuple(torch.empty(40) for _ in operands.extras)
    out = torch.empty(shape, dtype=torch.bfloat16)
    launch = family_of(config).launcher(
        lambda *given: taken.append(given), KernelSpec(config, operands), 0
    )
    launch("a", "b", out, *extras)
    ((a, b, c, *rooms, clusters),) = taken
    assert (a, b, clusters) == ("a", "b", 1) and c is out
    for *others, parts in rooms:
        assert all(x is y for x, y in zip(others, extras, strict=True))
        assert parts.dtype == torch.float32 and parts.numel() == numbers
    assert len(rooms) == (numbers > 0)
