"""What the pilot excluded is what `benchmarks/space_pruning.py` derived from its measurements."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.kernels import rules
from tilecast.kernels.cutlass_sm90 import exclusions, space
from tilecast.kernels.cutlass_sm90.config import Sm90Config

DERIVED = json.loads(
    Path(__file__).parents[2].joinpath("benchmarks/results/space_pruning.json").read_text()
)["figures"]


PILOT = exclusions.pilot_for(LINEAR_BF16, hardware("H200"))


def _key(values: dict[str, object]) -> tuple:
    return tuple(sorted((n, tuple(v) if isinstance(v, list) else v) for n, v in values.items()))


def _in_bytes(values: dict[str, Any]) -> dict[str, object]:
    """The benchmark states the depth of a stage in elements of the pilot's operands."""
    return {
        "tile_k_bytes" if name == "tile_k" else name: 2 * value if name == "tile_k" else value
        for name, value in values.items()
    }


def test_pairs_never_near_are_those_derived() -> None:
    derived = {
        _key(_in_bytes(e["values"])): round(e["margin"], 3) for e in DERIVED["pairs"]["never_near"]
    }
    stated = {_key(pair.values): pair.margin for pair in PILOT.exclusions}
    assert len(stated) == len(PILOT.exclusions)
    assert stated == derived


def test_schedules_are_those_scored() -> None:
    assert [tuple(order) for order in DERIVED["schedule"]["schedules"]] == list(PILOT.schedules)
    loss = DERIVED["schedule"]["loss"]
    assert loss["stages: all; orders: three"]["geomean"] < 0.0002
    assert loss["stages: all; orders: first"]["geomean"] > 0.001


def test_l2_limit_keeps_every_good_config_of_the_pilot() -> None:
    limit = DERIVED["l2_traffic"]
    assert limit["limit"] == rules.L2_SLACK
    assert limit["most_floors_of_configs"]["within 5%"] < rules.L2_SLACK
    assert limit["loss_of_limit_and_exclusions"]["max"] == 0


def test_space_has_the_size_derived() -> None:
    left = DERIVED["space"]["left_after"]
    assert left["points"] == sum(1 for _ in space.points(LINEAR_BF16))
    assert left["schedule"] == len(space.valid_configs(LINEAR_BF16, hardware("H200")))


@pytest.mark.parametrize(
    ("values", "config", "matches"),
    [
        ({"tile_n": 64, "swap_ab": False}, Sm90Config(128, 64, 64), True),
        ({"tile_n": 64, "swap_ab": False}, Sm90Config(128, 64, 64, swap_ab=True), False),
        ({"cluster": (2, 1), "tile_k_bytes": 128}, Sm90Config(128, 64, 64, 2, 1), True),
        ({"cluster": (2, 1), "tile_k_bytes": 128}, Sm90Config(128, 64, 64, 1, 2), False),
    ],
)
def test_exclusion_matches_both_values_only(
    values: dict[str, object], config: Sm90Config, matches: bool
) -> None:
    assert exclusions.Exclusion(values, 0.02).matches(config, LINEAR_BF16) is matches


def test_exclusion_is_described_by_its_values() -> None:
    pair = exclusions.Exclusion({"tile_n": 64, "cluster": (2, 1)}, 0.02)
    assert str(pair) == "tile_n 64 with cluster (2, 1)"


def test_depth_is_excluded_by_its_bytes() -> None:
    pair = exclusions.Exclusion({"tile_n": 160, "tile_k_bytes": 256}, 0.03)
    deep = Sm90Config(128, 160, 128)
    assert pair.matches(deep, LINEAR_BF16)
    assert not pair.matches(deep, GemmOperands.parse("int8:rcr>int32"))
    assert pair.matches(replace(deep, tile_k=256), GemmOperands.parse("int8:rcr>int32"))


def test_operands_without_a_pilot_borrow_one() -> None:
    assert exclusions.pilot_for(GemmOperands.parse("fp16:crr"), hardware("H100")) is PILOT
