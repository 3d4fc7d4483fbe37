"""What a GPU says of itself beside what is written down of it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tilecast.data_collection.gpu import gpu_model
from tilecast.data_collection.gpu.environment import card_of
from tilecast.data_collection.gpu.gpu_model import (
    first_hardware,
    hardware_of,
    measured_gpu,
    stated_gpu,
    visible_gpu_names,
)
from tilecast.data_collection.run.collect import target_gpu
from tilecast.data_collection.timing import card_health
from tilecast.data_collection.timing.card_health import others_on, watch
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware, described, hardware


@pytest.fixture
def known() -> Hardware:
    """What is written down of the GPU that is there."""
    try:
        return hardware(torch.cuda.get_device_name(0))
    except TilecastError as error:
        pytest.skip(str(error))


@pytest.mark.alone
def test_a_gpu_describes_itself_as_data_sheets_do(known: Hardware) -> None:
    found = measured_gpu(0)
    assert hardware_of(0) is known
    assert found.device_names == known.device_names[:1]
    for name in ("arch", "sm_count", "l2_bytes", "clusters_at_once"):
        assert getattr(found, name) == getattr(known, name), name
    for name in ("smem_bytes_per_sm", "smem_bytes_per_block", "smem_bytes_reserved"):
        assert getattr(found, name) == getattr(known, name), name
    # Rates are on the scale of data sheets, as a copy and a product reach what they usually do.
    assert found.dram_bytes_per_second == pytest.approx(known.dram_bytes_per_second, rel=0.03)
    assert found.peak_flops == pytest.approx(known.peak_flops, rel=0.03)
    copied = gpu_model._bandwidth(0, gpu_model.MEMORY_BYTES) / known.dram_bytes_per_second
    assert 0.8 < copied / gpu_model.USUAL_BANDWIDTH < 1.2
    multiplied = gpu_model._product_rate(0) / known.peak_flops
    assert 0.8 < multiplied / gpu_model.USUAL_PRODUCT_RATE < 1.2
    assert found.l2_bytes_per_second == pytest.approx(known.l2_bytes_per_second, rel=0.1)
    assert described(found.facts() | {"name": "other", "device_names": ["other"]}).sm_count


@pytest.mark.alone
def test_another_process_on_a_gpu_is_found() -> None:
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    torch.ones(1, device="cuda")
    nvml, card = card_health._card(uuid)
    if not len(nvml.device_get_compute_running_processes_v3(card)):
        pytest.skip("NVML does not list this process, as in some containers")
    before = others_on(uuid)
    code = "import torch; torch.ones(1, device='cuda'); print('ready', flush=True); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin and other.stdout
        assert other.stdout.readline() == b"ready\n"
        assert len(others_on(uuid)) == len(before) + 1
        other.stdin.write(b"\n")


@pytest.mark.alone
def test_a_gpu_is_held_while_its_rates_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_model, "MEASURED", ())
    monkeypatch.setattr(gpu_model, "known_gpu", lambda name: None)
    name, sockets = f"@tilecast-gpu-{card_of(0)}", Path("/proc/net/unix")
    held = []
    with ThreadPoolExecutor(1) as thread:
        described = thread.submit(hardware_of, 0, measure=True)
        while not described.done():
            held.append(name in sockets.read_text())
            time.sleep(0.1)
    assert described.result().sm_count == torch.cuda.get_device_properties(0).multi_processor_count
    assert sum(held) > len(held) / 2
    assert name not in sockets.read_text()


def test_a_gpu_of_a_cluster_is_described_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from tilecast.data_collection.engines import ray_cluster

    def as_unknown(device: int, known: Sequence[Hardware], *, measure: bool) -> Hardware:
        gpu_model.MEASURED, gpu_model.known_gpu = (), lambda name: None
        return hardware_of(device, known, measure=measure)

    there = target_gpu(0, "local")
    assert torch.cuda.get_device_name(0) in there.device_names
    monkeypatch.setattr(ray_cluster, "hardware_of", as_unknown)
    described = target_gpu(0, "local")
    assert described.device_names == (torch.cuda.get_device_name(0),)
    assert 0.75 < described.dram_bytes_per_second / there.dram_bytes_per_second < 1.05


def test_a_driver_calls_gpus_what_pytorch_calls_them() -> None:
    devices = range(torch.cuda.device_count())
    assert visible_gpu_names() == [torch.cuda.get_device_name(device) for device in devices]
    first = first_hardware()
    assert first
    assert torch.cuda.get_device_name(0) in first.device_names


def test_a_driver_states_what_data_sheets_say(
    known: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_model, "known_gpu", lambda name: None)
    found = stated_gpu(0)
    assert stated_gpu(0) == found
    for name in ("device_names", "arch", "sm_count", "l2_bytes", "clusters_at_once"):
        assert getattr(found, name) == getattr(known, name), name
    for name in ("smem_bytes_per_sm", "smem_bytes_per_block", "smem_bytes_reserved"):
        assert getattr(found, name) == getattr(known, name), name
    for name in ("dram_bytes_per_second", "l2_bytes_per_second", "peak_flops"):
        assert getattr(found, name) == pytest.approx(getattr(known, name), rel=0.04), name
    # The context of this thread is as it was.
    assert torch.ones(4, device="cuda").sum().item() == 4


def test_a_gpu_is_stated_in_a_thread_that_has_no_context() -> None:
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(stated_gpu, 0).result() == stated_gpu(0)


def test_a_graph_that_is_captured_survives_the_question() -> None:
    a = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = a * 2
        with pytest.raises(TilecastError, match="not described while a CUDA graph is captured"):
            stated_gpu(0)
    graph.replay()
    assert doubled.sum().item() == 8


def test_a_sound_card_does_not_throttle_under_load() -> None:
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    check = watch(uuid)
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(20):
        for _ in range(50):
            torch.mm(a, a)
        torch.cuda.synchronize()
        check()
