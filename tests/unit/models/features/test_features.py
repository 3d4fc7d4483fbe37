"""Features are finite, mean what their table says and do not depend on how configs are passed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates, config_table, space
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.models.features.features import FEATURE_NAMES, FEATURES, featurize
from tilecast.models.features.group_tiles import group_tiles

H200 = hardware("H200")
PLAIN = QuackConfig(128, 256, 64, 1, 1, stages=4)
PROBLEM = GemmProblem(4096, 4096, 4096)


def _features(problem: GemmProblem, config: QuackConfig, gpu: Hardware = H200) -> dict[str, float]:
    (row,) = featurize(problem, config_table([config], problem.operands).all(), gpu)
    return dict(zip(FEATURE_NAMES, row.tolist(), strict=True))


def test_every_feature_has_a_meaning() -> None:
    assert tuple(FEATURES) == FEATURE_NAMES
    assert all(meaning and "\n" not in meaning for meaning in FEATURES.values())


@given(
    m=st.integers(1, 2**17),
    n=st.integers(1, 2**14).map(lambda x: 8 * x),
    k=st.integers(1, 2**14).map(lambda x: 8 * x),
)
def test_features_of_all_candidates_are_finite(m: int, n: int, k: int) -> None:
    problem = GemmProblem(m, n, k)
    configs = candidates(problem, H200)
    table = featurize(problem, configs, H200)
    assert table.shape == (len(configs), len(FEATURE_NAMES))
    assert table.dtype == np.float32
    assert np.isfinite(table).all()


def test_another_order_or_table_gives_the_same_rows() -> None:
    configs = candidates(PROBLEM, H200)
    table = featurize(PROBLEM, configs, H200)
    alone = config_table(configs, PROBLEM.operands).all()
    np.testing.assert_array_equal(featurize(PROBLEM, alone, H200), table)
    np.testing.assert_array_equal(featurize(PROBLEM, configs[::-1], H200), table[::-1])
    assert featurize(PROBLEM, configs[:0], H200).shape == (0, len(FEATURE_NAMES))


def test_configs_are_compared_with_all_candidates_whichever_are_asked_about() -> None:
    """What was measured, or timed, of a problem has the features that a ranking sees."""
    configs = candidates(PROBLEM, H200)
    some = configs.take([7, 100, 30])
    expected = featurize(PROBLEM, configs, H200)[[7, 100, 30]]
    np.testing.assert_array_equal(featurize(PROBLEM, some, H200), expected)
    over_least = FEATURE_NAMES.index("analytic_time_over_least")
    assert expected[:, over_least].min() > 0, "none of them is the least"
    # One that is no candidate may be the least, for itself alone.
    others = set(space(PROBLEM.operands, H200).configs) - set(configs)
    far = config_table([min(others, key=str)], PROBLEM.operands).all()
    assert featurize(PROBLEM, far, H200)[0, over_least] >= 0


@pytest.mark.parametrize("text", ["8x4096x2048x1024", "64x512x2048x1024", "100x25x64x1024"])
def test_groups_look_like_a_batch_of_those_that_are_filled(text: str) -> None:
    grouped = GemmProblem.parse(text, GemmOperands.parse("bf16:rcr:row-groups"))
    batch = GemmProblem(grouped.rows, grouped.n, grouped.k, round(grouped.products))
    one, other = _features(grouped, PLAIN), _features(batch, PLAIN)
    # But for what follows from how many tiles there are, and from which configs compete.
    same = ("log_m", "log_rows", "tiles_n", "k_steps")
    assert [one[name] for name in same] == [other[name] for name in same]
    assert one["dram_time"] == pytest.approx(other["dram_time"], abs=0.02)
    drawn = group_tiles(grouped.m, grouped.batch, PLAIN.tile_m).mean()
    assert 2 ** one["tiles_m"] == pytest.approx(drawn / grouped.products)
    assert 2 ** one["tiles"] == pytest.approx(drawn * 2 ** other["tiles_n"])
    configs = candidates(grouped, H200)
    assert np.isfinite(featurize(grouped, configs, H200)).all()


def test_groups_along_k_look_like_a_batch_with_the_mean_k() -> None:
    grouped = GemmProblem.parse("8x512x2048x8190", GemmOperands.parse("bf16:crr:k-groups"))
    batch = GemmProblem.parse("8x512x2048x1024", GemmOperands.parse("bf16:crr"))
    configs = candidates(grouped, H200)
    found, expected = (featurize(one, configs, H200) for one in (grouped, batch))
    alone = [i for i, name in enumerate(FEATURE_NAMES) if not name.endswith("_over_least")]
    np.testing.assert_array_equal(found[:, alone], expected[:, alone])
    over_least = FEATURE_NAMES.index("analytic_time_over_least")
    assert found[:, over_least].min() == 0, "the least is one of those that compete"


def test_waves_of_groups_are_the_mean_of_what_may_be_drawn() -> None:
    """One row goes to each of 15 to 20 of 66 groups as a rule, of which each has 8 tiles."""
    grouped = GemmProblem.parse("66x24x2048x1024", GemmOperands.parse("bf16:rcr:row-groups"))
    drawn = 8 * group_tiles(24, 66, PLAIN.tile_m)
    assert drawn.min() < 132 < drawn.max()
    features = _features(grouped, PLAIN)
    assert features["waves"] == pytest.approx(drawn.mean() / 132)
    whole = np.ceil(drawn / 132).mean()
    assert 1 < whole < 2
    assert features["wave_efficiency"] == pytest.approx(features["waves"] / whole)
    assert features["busy_sms"] == pytest.approx(np.minimum(drawn, 132).mean() / 132)


def test_operands_of_half_the_width_halve_bytes_and_double_the_rate() -> None:
    deep = replace(PLAIN, tile_k=128)
    wide = _features(PROBLEM, PLAIN)
    narrow = _features(replace(PROBLEM, operands=GemmOperands.parse("e4m3:rcr>bf16")), deep)
    assert narrow["smem_bytes"] == wide["smem_bytes"]
    assert narrow["bytes_in_flight"] == wide["bytes_in_flight"]
    assert narrow["compute_time"] == wide["compute_time"] - 1
    assert narrow["tile_intensity"] == 2 * wide["tile_intensity"]
    assert narrow["store_alignment"] == wide["store_alignment"]


def test_waves_of_tiles() -> None:
    # 32 x 16 tiles on 132 SMs.
    features = _features(PROBLEM, PLAIN)
    assert features["tiles"] == 9
    np.testing.assert_allclose(features["waves"], 512 / 132, rtol=1e-6)
    np.testing.assert_allclose(features["last_wave_fill"], 512 / 132 - 3, rtol=1e-6)
    np.testing.assert_allclose(features["wave_efficiency"], 512 / 132 / 4, rtol=1e-6)
    two_per_sm = _features(PROBLEM, QuackConfig(128, 64, 64, 1, 1, stages=3, ctas_per_sm=2))
    np.testing.assert_allclose(two_per_sm["waves"], 32 * 64 / 264, rtol=1e-6)


def test_clusters_are_padded() -> None:
    problem = GemmProblem(128 * 5, 256 * 9, 4096)
    assert _features(problem, PLAIN)["padding_clusters"] == 1
    clustered = _features(problem, replace(PLAIN, cluster_m=2))
    np.testing.assert_allclose(clustered["padding_clusters"], 5 / 6, rtol=1e-6)


def test_a_split_fills_more_of_the_gpu_and_exchanges_sums() -> None:
    # Two tiles of 64 columns; two CTAs each.
    problem, config = GemmProblem(64, 128, 8192), QuackConfig(64, 64, 64, stages=8)
    alone, split = (_features(problem, replace(config, split_k=parts)) for parts in (1, 2))
    np.testing.assert_allclose(split["waves"], 2 * alone["waves"], rtol=1e-6)
    assert split["k_steps"] == 6  # of 128 in all
    np.testing.assert_allclose(split["padding_k"], 1)
    assert split["exchange_time"] > alone["exchange_time"] == 0


def test_padding_of_ragged_extents() -> None:
    features = _features(GemmProblem(100, 4000, 4104), PLAIN)
    np.testing.assert_allclose(features["padding_m"], 100 / 128, rtol=1e-6)
    np.testing.assert_allclose(features["padding_n"], 4000 / 4096, rtol=1e-6)
    np.testing.assert_allclose(features["padding_k"], 4104 / (65 * 64), rtol=1e-6)


def test_exchanged_operands_exchange_the_extents() -> None:
    here = _features(GemmProblem(64, 4096, 2048), PLAIN)
    transposed = GemmProblem(4096, 64, 2048, operands=GemmOperands.parse("bf16:rcc"))
    there = _features(transposed, replace(PLAIN, swap_ab=True))
    own = {"log_m", "log_n", "swap_ab"}
    assert {name: here[name] for name in FEATURES if name not in own} == {
        name: there[name] for name in FEATURES if name not in own
    }


@pytest.mark.parametrize(
    ("text", "rows_along_m", "columns_along_n", "store_along_rows"),
    [("bf16:rcr", 0, 0, 0), ("bf16:crr", 1, 1, 0), ("bf16:rrc", 0, 1, 1), ("bf16:ccc", 1, 0, 1)],
)
def test_majors_are_those_that_the_tile_sees(
    text: str, rows_along_m: int, columns_along_n: int, store_along_rows: int
) -> None:
    problem = replace(PROBLEM, operands=GemmOperands.parse(text))
    here = _features(problem, PLAIN)
    there = _features(problem, replace(PLAIN, swap_ab=True))
    assert here["rows_along_m"] == there["columns_along_n"] == rows_along_m
    assert here["columns_along_n"] == there["rows_along_m"] == columns_along_n
    assert here["store_along_rows"] == 1 - there["store_along_rows"] == store_along_rows


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("bf16:rcr", {"operand_bits": 16, "result_bits": 16}),
        ("bf16:rcr:bias+gelu", {"vectors": 1, "activation": 1}),
        ("int8:rcr>int32", {"operand_bits": 8, "result_bits": 32, "integer": 1}),
        ("e4m3:rcr>bf16@fp32:row-scales", {"operand_bits": 8, "promoted": 1, "vectors": 2}),
        ("bf16xint8:rcr:column-scales", {"converted": 1, "vectors": 1}),
        ("bf16xint8:rcr:fp32-column-scales", {"converted": 1, "vectors": 1}),
    ],
)
def test_types_and_epilogue_are_told(text: str, given: dict[str, int]) -> None:
    plain = {"operand_bits": 16, "result_bits": 16}
    own = ("integer", "converted", "promoted", "vectors", "activation")
    found = _features(replace(PROBLEM, operands=GemmOperands.parse(text)), PLAIN)
    asked = plain | dict.fromkeys(own, 0) | given
    assert {name: found[name] for name in asked} == asked


def test_a_wave_walks_along_its_raster() -> None:
    # 132 clusters of one tile, 32 x 16 tiles.
    along_m, along_n, banded = (
        _features(PROBLEM, replace(PLAIN, raster=raster, swizzle=swizzle))
        for raster, swizzle in (("m", 1), ("n", 1), ("n", 4))
    )
    for features, rows, columns in ((along_m, 32, 5), (along_n, 9, 16), (banded, 12, 16)):
        np.testing.assert_allclose(2 ** features["wave_rows"], rows, rtol=1e-5)
        np.testing.assert_allclose(2 ** features["wave_columns"], columns, rtol=1e-5)


def test_the_analytic_time_respects_the_roofline() -> None:
    for problem in (PROBLEM, GemmProblem(1, 8192, 8192)):
        configs = candidates(problem, H200)
        table = featurize(problem, configs, H200)
        assert (table[:, FEATURE_NAMES.index("analytic_to_roofline")] >= 0).all()


def _microseconds(name: str, problem: GemmProblem, config: QuackConfig) -> float:
    return 2.0 ** _features(problem, config)[name]


def test_the_l2_is_shared_by_those_that_load() -> None:
    """Half as many CTAs take half as long to load, as long as they load all at once."""
    whole, half = GemmProblem(8 * 128, 16 * 256, 8192), GemmProblem(4 * 128, 16 * 256, 8192)
    times = [_microseconds("l2_time", problem, PLAIN) for problem in (whole, half)]
    assert times[0] == pytest.approx(2 * times[1], rel=1e-5)
    assert _microseconds("compute_time", whole, PLAIN) == _microseconds("compute_time", half, PLAIN)


def test_a_last_wave_of_few_takes_less_than_a_whole_one() -> None:
    whole, more, twice = (GemmProblem(128 * rows, 11 * 256, 8192) for rows in (12, 13, 24))
    times = [_microseconds("serial_time", problem, PLAIN) for problem in (whole, more, twice)]
    assert times[2] == pytest.approx(2 * times[0], rel=1e-5)
    assert 1.1 * times[0] < times[1] < 0.97 * times[2]


def _of(text: str, m: int = 4096, n: int = 4096, k: int = 4096) -> GemmProblem:
    return GemmProblem(m, n, k, operands=GemmOperands.parse(text))


@pytest.mark.parametrize(
    ("text", "rows", "columns"),
    [("bf16:rcr", 5, 5), ("bf16:crr", 6, 7), ("bf16:rrr", 5, 7), ("e4m3:rcr>bf16", 4, 4)],
)
def test_each_side_of_a_tile_has_the_alignment_of_its_operand(
    text: str, rows: int, columns: int
) -> None:
    problem = _of(text, 32 * 101, 64 * 101, 16 * 101)
    here, there = (_features(problem, replace(PLAIN, swap_ab=swap)) for swap in (False, True))
    assert here["rows_alignment"] == there["columns_alignment"] == rows
    assert here["columns_alignment"] == there["rows_alignment"] == columns
