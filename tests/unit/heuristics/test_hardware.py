"""GPUs: how they are found, and the roofline that is computed from them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tilecast.heuristics.dtypes import DTYPES
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import GPUS, Hardware, described, hardware


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_gpu_is_found_by_each_of_its_names(gpu: Hardware) -> None:
    for name in (gpu.name, *gpu.device_names):
        assert hardware(name) is gpu


@pytest.mark.parametrize("name", ["", "h200", "B100", "NVIDIA H800", "H200 "])
def test_unknown_gpu_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(TilecastError, match=r"is not known; allowed: H200, H100, .*B200; describe"):
        hardware(name)


def test_peak_goes_with_the_width_of_the_dtype(h200: Hardware) -> None:
    assert h200.peak(DTYPES["bf16"]) == h200.peak(DTYPES["fp16"]) == 989.4e12
    assert h200.peak(DTYPES["e4m3"]) == h200.peak(DTYPES["int8"]) == 2 * 989.4e12
    with pytest.raises(TilecastError, match="dtype fp32 has no peak rate; allowed: what is mult"):
        h200.peak(DTYPES["fp32"])


def test_roofline_is_the_slower_of_arithmetic_and_traffic(h200: Hardware) -> None:
    compute = h200.roofline_seconds(989.4e12, 0, DTYPES["bf16"])
    assert compute == pytest.approx(1.0)
    assert h200.roofline_seconds(0, 4.8e12, DTYPES["bf16"]) == pytest.approx(1.0)
    assert h200.roofline_seconds(989.4e12, 9.6e12, DTYPES["bf16"]) == pytest.approx(2.0)


def _new(h200: Hardware) -> Hardware:
    return replace(h200, name="H20", device_names=("NVIDIA H20",), sm_count=78)


def test_facts_describe_a_gpu_that_nobody_wrote_down(h200: Hardware) -> None:
    new = _new(h200)
    assert described(json.loads(json.dumps(new.facts()))) == new
    # One that was measured is what it is here, whatever else is said of it.
    assert described(replace(h200, sm_count=78).facts()) is h200
    assert described({"name": "H200"}) is h200


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"name": "../H20"}, "name"),
        ({"name": 20}, "name"),
        ({"arch": ""}, "arch"),
        ({"sm_count": 0}, "sm_count"),
        ({"sm_count": 78.0}, "sm_count"),
        ({"sm_count": True}, "sm_count"),
        ({"peak_flops": float("nan")}, "peak_flops"),
        ({"peak_flops": 1}, "peak_flops"),
        ({"device_names": []}, "device_names"),
        ({"device_names": "NVIDIA H20"}, "device_names"),
        ({"clusters_at_once": [0] * 17}, "clusters_at_once"),
        ({"clusters_at_once": [0, 78]}, "clusters_at_once"),
        ({"colour": "green"}, "colour"),
    ],
)
def test_facts_that_are_no_gpus_are_refused(h200: Hardware, change: dict, wrong: str) -> None:
    with pytest.raises(TilecastError, match=rf"is not described \(wrong: {wrong}\); allowed: one"):
        described(_new(h200).facts() | change)


def test_facts_that_are_not_all_there_are_refused(h200: Hardware) -> None:
    facts = _new(h200).facts()
    for name in facts:
        with pytest.raises(TilecastError, match=rf"is not described \(wrong: {name}\)"):
            described({field: value for field, value in facts.items() if field != name})
