"""How a GPU is found and called; what it says of itself is tested on GPUs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tilecast.data_collection.gpu import gpu_model
from tilecast.data_collection.gpu.environment import claimed, device_hash
from tilecast.data_collection.gpu.gpu_model import find_gpu, short_name
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware, described


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA GH200 480GB", "GH200-480GB"),
        ("NVIDIA H20-3e", "H20-3e"),
        ("NVIDIA Graphics Device (rev. 2)", "Graphics-Device-rev.-2"),
        ("NVIDIA GPU", "GPU"),
        ("x" * 99, "x" * 64),
    ],
)
def test_short_names_are_names_of_folders(h200: Hardware, reported: str, name: str) -> None:
    assert short_name(reported) == name
    new = replace(h200, name=name, device_names=(reported,))
    assert described(new.facts()) == new


def test_a_gpu_is_what_is_known_or_was_said_of_it_before(
    h200: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = replace(h200, name="H20", device_names=("NVIDIA H20",), dram_bytes_per_second=3.8e12)
    runs = [{"gpu": "H200"}, {"hardware": before.facts()}]
    for reported, found in (("NVIDIA H200", h200), ("NVIDIA H20", before)):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=reported: name)
        assert find_gpu(0, runs) == found


def test_a_gpu_that_another_collection_measures_on_is_not_described(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its rates would be those of what that leaves; what is known already is no measurement."""
    uuid = "00000000-only-of-this-test"
    reported = ["NVIDIA H20"]
    properties = SimpleNamespace(uuid=uuid)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: reported[0])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    card = device_hash(uuid)
    with claimed([card]):
        with pytest.raises(TilecastError, match=f"^GPU {card} is in use by another collection"):
            find_gpu(0)
        reported[0] = "NVIDIA H200"
        assert find_gpu(0).name == "H200"


def test_a_gpu_whose_memory_is_taken_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def describe(device: int) -> Hardware:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")

    properties = SimpleNamespace(uuid="00000000-only-of-this-test")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H20")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(gpu_model, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))
    monkeypatch.setattr(gpu_model, "describe_gpu", describe)
    with pytest.raises(TilecastError, match=r"^CUDA device 0 has too little memory left .*GiB\)"):
        find_gpu(0)


def test_a_gpu_that_is_not_there_is_told() -> None:
    absent = torch.cuda.device_count()
    with pytest.raises(TilecastError, match=f"^CUDA device {absent} does not say .*--gpu"):
        find_gpu(absent)


def test_a_gpu_that_no_kernel_is_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(name="NVIDIA A100-SXM4-80GB", major=8, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: old)
    with pytest.raises(
        TilecastError, match="no kernel is for an 'NVIDIA A100.*sm_80; allowed: sm_90a"
    ):
        gpu_model.describe_gpu(0)


def test_what_the_driver_refuses_is_told() -> None:
    from cuda.bindings import driver  # pyright: ignore

    lost = driver.CUresult.CUDA_ERROR_INVALID_DEVICE
    with pytest.raises(TilecastError, match=r"\(CUDA_ERROR_INVALID_DEVICE\); allowed"):
        gpu_model._told((lost, None))
    assert gpu_model._told((driver.CUresult.CUDA_SUCCESS, 7)) == 7
