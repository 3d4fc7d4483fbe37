"""Config names: they round-trip, are distinct, and a wrong one is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilecast.heuristics.errors import TilecastError
from tilecast.kernels.families import parse_config
from tilecast.kernels.quack_sm90.config import QuackConfig

numbers = st.integers(1, 512)
configs = st.builds(
    QuackConfig,
    tile_m=numbers,
    tile_n=numbers,
    tile_k=numbers,
    cluster_m=numbers,
    cluster_n=numbers,
    stages=numbers,
    split_k=numbers,
    schedule=st.sampled_from(("coop", "pong")),
    ctas_per_sm=numbers,
    raster=st.sampled_from("mn"),
    swizzle=numbers,
    swap_ab=st.booleans(),
)


@given(configs)
def test_name_round_trip(config: QuackConfig) -> None:
    assert parse_config(config.name) == config
    assert str(config) == config.name


@given(configs, configs)
def test_names_are_distinct(one: QuackConfig, other: QuackConfig) -> None:
    assert (one.name == other.name) == (one == other)


def test_name_is_readable() -> None:
    config = QuackConfig(128, 256, 64, cluster_m=2, stages=4)
    assert config.name == "128x256x64_c2x1x1_s4_coop_o1_rm8"
    swapped = QuackConfig(
        64, 16, 128, split_k=4, schedule="pong", raster="n", swizzle=1, swap_ab=True
    )
    assert swapped.name == "swap_64x16x128_c1x1x4_s2_pong_o1_rn1"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "128x256",
        "128x256x64",
        "128x256x64_c2x1x1_s4_coop_o1_rk1",
        "128x256x64_c2x1x1_s4_coop_o1_rm8_",
        "128x256x64_c2x1_s4_w2_o1_rm1",
        "128x256x64_c2x1x1_s4_coop_o1_rm8_k4",
        "１28x256x64_c2x1x1_s4_coop_o1_rm8",
        "9" * 5000 + "x256x64_c2x1x1_s4_coop_o1_rm8",
        " 128x256x64_c2x1x1_s4_coop_o1_rm8",
        "128x256x64_c2x1x1_s4_coop_o1_rm8\n",
        "128x-256x64_c2x1x1_s4_coop_o1_rm8",
        "torch.mm",
    ],
)
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(TilecastError, match="is not a config name; allowed: names such as"):
        parse_config(name)
