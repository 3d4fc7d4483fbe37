"""A GPU without a model borrows the nearest one, which ranks for it and decides nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hook_graph import choices_of, linear, warnings_told

from tilecast.data_collection.dataset.dataset import read_dataset, shipped_data
from tilecast.data_collection.gpu import gpu_model
from tilecast.data_collection.gpu.gpu_model import (
    first_hardware,
    hardware_of,
    stated_gpu,
    visible_gpu_names,
)
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import install, mm
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.select.selection import portfolio
from tilecast.inductor_hook.settings import Settings
from tilecast.kernels.candidates import candidates
from tilecast.models.evaluation.evaluation import held_out, unfitted
from tilecast.models.evaluation.regret import regrets
from tilecast.models.learning.labels import ProblemLabels, label_table, spread
from tilecast.models.runtime.artifact import SHIPPED, load_shipped
from tilecast.models.runtime.learned import BORROWED_LEAST, LearnedHeuristic
from tilecast.models.runtime.manifest import learned_families
from tilecast.models.runtime.nearest_gpu import borrowed, nearest_shipped, shipped_for, terms

H200, H100 = hardware("H200"), hardware("H100")
FOUND = selection.hardware_of
"""As it is before the fixture `hook` replaces it."""
PROBLEM = GemmProblem(512, 4096, 4096)
CARDS: dict[str, tuple[int, ...]] = {
    "NVIDIA H100 PCIe": (114, 1755, 1593, 5120, 50),
    "NVIDIA GH200 480GB": (132, 1980, 2619, 6144, 60),
    "NVIDIA H800": (132, 1980, 2619, 5120, 50),
    "NVIDIA H20": (78, 1980, 2619, 6144, 60),
    "NVIDIA H200 NVL": (132, 1785, 3201, 6144, 60),
    "NVIDIA H200": (132, 1980, 3201, 6144, 60),
    "NVIDIA H100 80GB HBM3": (132, 1980, 2619, 5120, 50),
}
"""SMs, MHz of these and of the memory, bits of its bus, MiB of level 2."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Makes this a machine with one card of `CARDS`, as its driver describes it."""
    from cuda.bindings import driver  # pyright: ignore

    fine = driver.CUresult.CUDA_SUCCESS

    def has(name: str) -> None:
        first_hardware.cache_clear()
        sms, clock, memory_clock, bus, level2 = CARDS[name]
        kinds = driver.CUdevice_attribute
        stated = {
            kinds.CU_DEVICE_ATTRIBUTE_CLOCK_RATE: clock * 1000,
            kinds.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: memory_clock * 1000,
            kinds.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: bus,
            kinds.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: 232_448,
            kinds.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: 233_472,
            kinds.CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: 1_024,
        }
        answers: dict[str, Callable[..., tuple]] = {
            "cuDeviceGetCount": lambda: (fine, 1),
            "cuDeviceGetName": lambda length, device: (fine, name.encode().ljust(length, b"\0")),
            "cuDeviceGetAttribute": lambda kind, device: (fine, stated[kind]),
        }
        answers |= dict.fromkeys(("cuInit", "cuDeviceGet"), lambda *given: (fine, 0))
        for call, answer in answers.items():
            monkeypatch.setattr(driver, call, answer)
        properties = SimpleNamespace(
            name=name, major=9, minor=0, multi_processor_count=sms, L2_cache_size=level2 * 2**20
        )
        monkeypatch.setattr(gpu_model, "max_active_clusters", lambda size, device: sms // size)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    yield has
    first_hardware.cache_clear()


@pytest.fixture
def h20(
    machine: Callable[[str], None], hook: list, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hardware]:
    """The hook as on an H20, which it finds by itself."""
    machine("NVIDIA H20")
    selection._gpu_here.cache_clear()
    monkeypatch.setattr(selection, "hardware_of", FOUND)
    yield FOUND(0, Settings())
    selection._gpu_here.cache_clear()


@pytest.mark.parametrize(
    ("name", "nearest", "terabytes", "teraflops"),
    [
        ("NVIDIA H100 PCIe", "H100", 2.0, 756),
        ("NVIDIA GH200 480GB", "H200", 4.0, 990),
        ("NVIDIA H800", "H100", 3.35, 990),
        ("NVIDIA H200 NVL", "H200", 4.8, 836),
        ("NVIDIA H20", "H200", 4.0, 148),
    ],
)
def test_a_driver_states_what_data_sheets_say_and_the_nearest_model_is_borrowed(
    machine: Callable[[str], None], name: str, nearest: str, terabytes: float, teraflops: float
) -> None:
    machine(name)
    gpu = hardware_of(0)
    assert gpu.sm_count == CARDS[name][0]
    assert gpu.dram_bytes_per_second / 1e12 == pytest.approx(terabytes, rel=0.03)
    assert gpu.peak_flops / 1e12 == pytest.approx(teraflops, rel=0.08)
    assert gpu.clusters_at_once[:3] == (0, gpu.sm_count, gpu.sm_count // 2)
    assert shipped_for(gpu).trained_for == nearest


def test_a_gpu_of_another_architecture_is_scaled_from_its_own_kind(
    machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A B300 from a B200, which runs the same code; no Hopper lends it a model."""
    name = "NVIDIA B300 SXM6 AC"
    monkeypatch.setitem(CARDS, name, (148, 1980, 3996, 8192, 126))
    machine(name)
    properties: Any = torch.cuda.get_device_properties(0)
    properties.major, properties.minor = 10, 3
    gpu = hardware_of(0)
    assert (gpu.name, gpu.arch) == ("B300-SXM6-AC", "sm_103a")
    assert gpu.peak_flops == pytest.approx(hardware("B200").peak_flops)
    assert gpu.l2_bytes_per_second == pytest.approx(hardware("B200").l2_bytes_per_second)
    assert nearest_shipped(gpu) is None


def test_a_driver_that_does_not_tell_its_memory_is_not_believed(
    machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CARDS, "NVIDIA H20-3e", (78, 1980, 0, 6144, 60))
    machine("NVIDIA H20-3e")
    with pytest.raises(
        TilecastError, match=r"'H20-3e' is not described \(wrong: dram_bytes_per_sec"
    ):
        hardware_of(0)
    # A campaign measures that rate.
    assert stated_gpu(0).sm_count == 78


def test_it_ranks_by_the_figures_of_the_gpu_that_borrows() -> None:
    new = replace(H200, name="H20", device_names=("NVIDIA H20",), sm_count=78)
    artifact, shipped = shipped_for(new), load_shipped(H200)
    assert (artifact.hardware, artifact.trained_for, artifact.name) == (new, "H200", "H200")
    assert (artifact.measured, artifact.deferral) == ((), None)
    assert artifact.ranker.hardware == new
    own = shipped_for(H200)
    assert (own.trained_for, own.measured) == (None, shipped.measured)
    among = candidates(PROBLEM, H200)
    orders = [list(one.ranker.rank(PROBLEM, among, limit=9)) for one in (own, artifact, shipped)]
    assert orders[0] == orders[2] != orders[1]


def test_a_gpu_that_runs_other_code_borrows_no_model() -> None:
    other = replace(H200, name="B200", arch="sm_100a")
    assert nearest_shipped(other) is None
    with pytest.raises(TilecastError, match="no model is shipped for B200; allowed: H100, H200"):
        shipped_for(other)


@pytest.mark.parametrize("objective", ["burst", "robust"])
def test_a_borrowed_model_finds_fast_kernels_on_another_gpu(objective: str) -> None:
    artifact = borrowed(load_shipped(H200), H100)
    heuristic, seen = LearnedHeuristic(artifact, objective), learned_families(artifact.facts)
    table = [labels for labels in _labels() if labels.problem.family not in seen]
    asked = held_out(lambda *_: heuristic, table, objective, unfitted(table))
    by_k = regrets(asked, table)
    one, three, five = (spread(by_k[:, k - 1])["geomean"] for k in (1, 3, 5))
    assert five <= three < 0.01
    assert three <= one < 0.03


def _labels() -> list[ProblemLabels]:
    data = shipped_data(H100)
    assert data is not None
    return label_table(read_dataset(data))


def test_a_borrowed_model_keeps_doubting() -> None:
    """By its own rule it would be content with fewer kernels for some on an H100, too."""
    artifact = borrowed(load_shipped(H200), H100)
    sizes = [
        tuple(
            len(LearnedHeuristic(one).shortlist(labels.problem, candidates(labels.problem, H100)))
            for one in (artifact, replace(artifact, trained_for=None))
        )
        for labels in _labels()[::20]
    ]
    assert min(by_its_own for _, by_its_own in sizes) < BORROWED_LEAST
    assert all(size == max(by_its_own, BORROWED_LEAST) for size, by_its_own in sizes)


@pytest.mark.parametrize("k", [2, 5])
def test_max_autotune_benchmarks_what_it_likes_and_says_so_once(
    h20: Hardware, graph: Any, caplog: pytest.LogCaptureFixture, k: int
) -> None:
    install(k=k)
    for m in (16, 512, 8192):
        among = [config.name for config in candidates(replace(PROBLEM, m=m), h20)]
        found = choices_of(linear(m, PROBLEM.n, PROBLEM.k), "mm")
        assert len(found) == k
        assert {choice.name.removeprefix("tilecast_") for choice in found} <= set(among)
    assert warnings_told(caplog) == [f"tilecast: {terms(shipped_for(h20))}"]
    assert "H20 has no model of its own and uses the H200 model, " in caplog.text


def test_max_autotune_leaves_to_pytorch_what_would_not_be_benchmarked(
    h20: Hardware, graph: Any, hook: list, caplog: pytest.LogCaptureFixture
) -> None:
    install(k=1)
    for m in (16, 512):
        assert choices_of(linear(m, PROBLEM.n, PROBLEM.k), "mm") == []
    assert hook == []
    (said,) = warnings_told(caplog)
    assert "no model decides without a benchmark: H20 has no model of its own" in said
    with pytest.raises(TilecastError, match=r"benchmarked \(k=2 or more\)"):
        portfolio(Settings(), [PROBLEM], h20)


def test_eager_calls_are_left_to_pytorch(
    h20: Hardware, gpu: list, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = (torch.randn(64, 128).to(torch.bfloat16) for _ in range(2))
    for _ in range(2):
        assert torch.equal(mm(a, b.mT), a @ b.mT)
    assert gpu == []
    (said,) = warnings_told(caplog)
    assert "goes to torch" in said
    assert "H20 has no model of its own" in said


def test_predict_says_whose_model_it_is(
    machine: Callable[[str], None], answer: Callable[..., dict], refused: Callable[..., str]
) -> None:
    machine("NVIDIA H100 PCIe")
    asked = ("predict", "512x4096x4096", "--gpu")
    for name in ("NVIDIA H100 PCIe", "H100-PCIe"):
        document = answer(*asked, name)
        assert document["gpu"] == "H100-PCIe"
        assert document["borrowed"].startswith("H100-PCIe has no model of its own")
        assert document["library"]["at_least_over_first"] is None
        assert len(document["ranking"]) == 5
    assert "borrowed" not in answer(*asked, "H100")
    # Of a GPU that is not here, nobody knows more than the name.
    assert refused(*asked, "H800").startswith("argument --gpu: gpu 'H800' is not known; allowed: ")


def test_the_gpu_that_is_here_is_meant_where_none_is_named(
    machine: Callable[[str], None], answer: Callable[..., dict]
) -> None:
    unnamed = ("predict", "16x4096x4096")
    for name, meant in (
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H20", "H20"),
    ):
        machine(name)
        assert visible_gpu_names() == [name]
        assert answer(*unnamed)["gpu"] == meant
    assert answer(*unnamed, "--gpu", "H100")["gpu"] == "H100"
    assert answer(*unnamed, "--model", str(SHIPPED / "H100"))["gpu"] == "H100"


def test_a_gpu_that_no_kernel_is_for_is_not_meant(
    machine: Callable[[str], None],
    answer: Callable[..., dict],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine("NVIDIA H20")
    ampere = SimpleNamespace(name="NVIDIA A100", major=8, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: ampere)
    assert first_hardware() is None
    unnamed = ("predict", "16x4096x4096")
    assert answer(*unnamed)["gpu"] == "H200"


def test_the_nearer_of_two_gpus_lends_its_model() -> None:
    """Halfway on a logarithmic scale another one is nearer."""
    between = math.sqrt(H200.dram_bytes_per_second * H100.dram_bytes_per_second)
    for share, nearest in ((0.9, "H100"), (1.1, "H200")):
        new = replace(H200, name="new", dram_bytes_per_second=between * share)
        new = replace(new, l2_bytes=int(math.sqrt(H200.l2_bytes * H100.l2_bytes) * share))
        assert shipped_for(new).trained_for == nearest
