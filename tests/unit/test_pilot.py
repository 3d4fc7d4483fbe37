"""What the pilot excluded is what `benchmarks/space_pruning.py` derived from its measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import LINEAR_BF16
from tilecast.kernels.cutlass_sm90 import exclusions, space

DERIVED = json.loads(
    Path(__file__).parents[2].joinpath("benchmarks/results/space_pruning.json").read_text()
)["figures"]


def _key(values: dict[str, object]) -> tuple:
    return tuple(sorted((n, tuple(v) if isinstance(v, list) else v) for n, v in values.items()))


def test_pairs_never_near_are_those_derived() -> None:
    derived = {_key(e["values"]): round(e["margin"], 3) for e in DERIVED["pairs"]["never_near"]}
    stated = {_key(loser.values): loser.margin for loser in exclusions.NEVER_NEAR}
    assert len(stated) == len(exclusions.NEVER_NEAR)
    assert stated == derived


def test_schedules_are_those_scored() -> None:
    assert [tuple(order) for order in DERIVED["schedule"]["schedules"]] == list(
        exclusions.SCHEDULES
    )
    loss = DERIVED["schedule"]["loss"]
    assert loss["stages: all; orders: three"]["geomean"] < 0.0002
    assert loss["stages: all; orders: first"]["geomean"] > 0.001


def test_l2_limit_keeps_every_good_config_of_the_pilot() -> None:
    limit = DERIVED["l2_traffic"]
    assert limit["limit"] == space.L2_SLACK
    assert limit["most_floors_of_configs"]["within 5%"] < space.L2_SLACK
    assert limit["loss_of_limit_and_exclusions"]["max"] == 0


def test_space_has_the_size_derived() -> None:
    left = DERIVED["space"]["left_after"]
    assert left["points"] == space.points()
    assert left["schedule"] == len(space.valid_configs(LINEAR_BF16, hardware("H200")))


@pytest.mark.parametrize(
    ("values", "config", "matches"),
    [
        ({"tile_n": 64, "swap_ab": False}, KernelConfig(128, 64, 64), True),
        ({"tile_n": 64, "swap_ab": False}, KernelConfig(128, 64, 64, swap_ab=True), False),
        ({"cluster": (2, 1), "tile_k": 64}, KernelConfig(128, 64, 64, 2, 1), True),
        ({"cluster": (2, 1), "tile_k": 64}, KernelConfig(128, 64, 64, 1, 2), False),
    ],
)
def test_loser_matches_both_values_only(
    values: dict[str, object], config: KernelConfig, matches: bool
) -> None:
    assert exclusions.Loser(values, 0.02).matches(config) is matches


def test_loser_is_described_by_its_values() -> None:
    loser = exclusions.Loser({"tile_n": 64, "cluster": (2, 1)}, 0.02)
    assert exclusions.describe(loser) == "tile_n 64 with cluster (2, 1)"
