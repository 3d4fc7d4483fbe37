"""Which hardware a device is; what drivers state is tested on GPUs, too."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tilecast.data_collection.gpu import gpu_model
from tilecast.data_collection.gpu.environment import claimed, device_hash
from tilecast.data_collection.gpu.gpu_model import hardware_of, short_name
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import GPUS, MEASURED, Hardware, described, hardware

UUID = "00000000-only-of-this-test"


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


@pytest.mark.parametrize("gpu", GPUS[len(MEASURED) :], ids=lambda gpu: gpu.name)
def test_a_described_gpu_is_called_as_its_card_would_be(gpu: Hardware) -> None:
    """So that the name with which a card is described by its driver finds the same."""
    assert gpu.name in {short_name(name) for name in gpu.device_names}
    assert described(gpu.facts()) == gpu


@pytest.fixture
def gpu_called(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes this a machine with one CUDA device, by the name that its driver reports."""
    properties = SimpleNamespace(uuid=UUID)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    return lambda name: monkeypatch.setattr(gpu_model, "visible_gpu_names", lambda: [name])


def test_a_known_description_of_a_gpu_is_taken(
    h200: Hardware, gpu_called: Callable[[str], None]
) -> None:
    h20 = replace(h200, name="H20", device_names=("NVIDIA H20",), dram_bytes_per_second=3.8e12)
    for reported, found in (("NVIDIA H200", h200), ("NVIDIA H20", h20)):
        gpu_called(reported)
        assert hardware_of(0, [h20], measure=True) == found
    gpu_called("NVIDIA H200")
    own = replace(h200, sm_count=99)
    assert hardware_of(0, [own]) is own


def test_a_gpu_that_another_collection_uses_is_not_measured(
    gpu_called: Callable[[str], None],
) -> None:
    card = device_hash(UUID)
    with claimed([card]):
        gpu_called("NVIDIA H20-3e")
        with pytest.raises(TilecastError, match=f"^GPU {card} is in use"):
            hardware_of(0, measure=True)
        gpu_called("NVIDIA H200")
        assert hardware_of(0, measure=True).name == "H200"


def test_a_gpu_whose_memory_is_taken_is_not_measured(
    gpu_called: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(device: int) -> Hardware:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")

    gpu_called("NVIDIA H20-3e")
    monkeypatch.setattr(gpu_model, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))
    monkeypatch.setattr(gpu_model, "measured_gpu", measured)
    with pytest.raises(TilecastError, match="^CUDA device 0 has too little memory .*1.00 GiB"):
        hardware_of(0, measure=True)


@pytest.mark.parametrize(
    ("copied", "multiplied", "memory", "flops"),
    [
        (4.3e12, 720e12, 4.8e12, 989e12),  # as an H200 that is what it says
        (3.9e12, 640e12, 4.8e12, 989e12),  # the same, while it is warm
        (3.6e12, 111e12, 4.8e12, 148e12),  # an H20, which multiplies at a seventh
        (1.8e12, 720e12, 2.0e12, 989e12),  # one with less memory bandwidth
    ],
)
def test_an_unknown_gpu_has_rates_as_data_sheets_state_them(
    monkeypatch: pytest.MonkeyPatch, copied: float, multiplied: float, memory: float, flops: float
) -> None:
    """Models are trained with those; what kernels reach of them is less, and not what is meant."""
    stated = replace(hardware("H200"), name="new", dram_bytes_per_second=4.8e12, peak_flops=989e12)
    monkeypatch.setattr(gpu_model, "stated_gpu", lambda device: stated)
    monkeypatch.setattr(gpu_model, "_bandwidth", lambda device, size: copied)
    monkeypatch.setattr(gpu_model, "_product_rate", lambda device: multiplied)
    found = gpu_model.measured_gpu(0)
    assert found.dram_bytes_per_second == pytest.approx(memory)
    assert found.peak_flops == pytest.approx(flops)
    same = {"dram_bytes_per_second": stated.dram_bytes_per_second, "peak_flops": stated.peak_flops}
    assert replace(found, **same) == stated


@pytest.mark.parametrize("device", [-1, 1])
def test_a_device_that_does_not_exist_is_refused(
    gpu_called: Callable[[str], None], device: int
) -> None:
    gpu_called("NVIDIA H200")
    with pytest.raises(TilecastError, match=f"^CUDA device {device} .* 1 devices.*--gpu"):
        hardware_of(device)


def test_a_gpu_that_no_kernel_is_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(name="NVIDIA A100-SXM4-80GB", major=8, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: old)
    with pytest.raises(
        TilecastError,
        match="no kernel is for an 'NVIDIA A100.*sm_80; allowed: sm_100a, sm_103a, sm_90a",
    ):
        gpu_model.stated_gpu(0)
