"""A host with two cards of a GPU that tilecast does not describe, for tests of ``campaign``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

# Spawned workers get this process's path, and find the module that their factories come from.
import fake_session
import pytest

from tilecast.cli.commands import campaign, evaluate
from tilecast.cli.options import load_measurements
from tilecast.data_collection.dataset.dataset import Dataset, write_dataset
from tilecast.data_collection.gpu import environment, gpu_model
from tilecast.data_collection.run import collect as collecting
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.build.builder import CompileResult
from tilecast.kernels.spec import KernelSpec

NEW = replace(
    hardware("H100"),
    name="H100-PCIe",
    device_names=("NVIDIA H100 PCIe",),
    sm_count=114,
    dram_bytes_per_second=1.7e12,
)
"""What nobody wrote down."""
PROBLEMS = [
    GemmProblem(m, n, k)
    for n, k in ((512, 4096), (1024, 512), (4096, 512), (2048, 1024), (640, 8192))
    for m in (16, 512)
]


@pytest.fixture
def new_gpu() -> Hardware:
    """The model of the cards."""
    return NEW


@pytest.fixture
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_dataset: Dataset, new_gpu: Hardware
) -> Path:
    """A host with two cards of a model that tilecast does not know; gives the log of what ran."""
    log = tmp_path / "log"
    log.touch()

    def described(chosen: Sequence[str]) -> dict[str, object]:
        gpus = [{"name": new_gpu.device_names[0], "uuid_hash": card} for card in chosen]
        return {"gpus": gpus, "date": "2026-11-22T00:00:00+00:00"}

    def compiled(kernels: Sequence[KernelSpec], **_: object) -> Iterator[CompileResult]:
        return (CompileResult(spec, 0.0) for spec in kernels)

    monkeypatch.setattr(campaign, "visible_gpu_names", lambda: new_gpu.device_names * 2)
    monkeypatch.setattr(gpu_model, "hardware_of", lambda *_, **__: new_gpu)
    # Tests that run side by side name their cards alike.
    monkeypatch.setattr(environment, "claimed", lambda cards: nullcontext())
    monkeypatch.setattr(environment, "cards", lambda devices, gpu: [f"card{d}" for d in devices])
    monkeypatch.setattr(campaign, "check_there", lambda devices: None)
    monkeypatch.setattr(environment, "describe", described)
    monkeypatch.setattr(environment, "gpu_states", lambda cards: [])
    monkeypatch.setattr(collecting, "card_session", partial(fake_session.card_session, log))
    monkeypatch.setattr(collecting, "shared_by_others", lambda devices: [])
    monkeypatch.setattr(collecting, "compile_all", compiled)
    known = tmp_path / "known.parquet"
    write_dataset(few_dataset, known)
    # Of the shipped data sets there are but this one, which is learned from soon.
    shipped = {"H200": known}
    monkeypatch.setattr(
        load_measurements,
        "shipped_data",
        lambda gpu, groups=False: None if groups else shipped.get(gpu.name),
    )
    # What evaluation makes of all the others is tested where it lives, and takes a minute.
    few = ("random", "nearest neighbour")
    every = evaluate.scorable_heuristics
    monkeypatch.setattr(
        evaluate, "scorable_heuristics", lambda gpu: {name: every(gpu)[name] for name in few}
    )
    return log


@pytest.fixture
def arguments(tmp_path: Path, bench: Path) -> list[str]:
    lines = [f"{problem.m},{problem.n},{problem.k}" for problem in PROBLEMS]
    (tmp_path / "own.csv").write_text("\n".join(["m,n,k", *lines]))
    return [
        *("campaign", "--store", str(tmp_path / "run.db"), "--out", str(tmp_path / "model")),
        *("--problems", str(tmp_path / "own.csv"), "--cache", str(tmp_path / "objects")),
        *("--workers", "2"),
    ]
