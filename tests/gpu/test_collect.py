"""A whole collection on a GPU: two problems, a few configs, real worker processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from tilecast.data_collection.gpu.environment import claimed, device_hash
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.run import collect as collecting
from tilecast.data_collection.run.collect import CollectOptions, collect
from tilecast.data_collection.run.scheduler import Progress
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import GemmProblem

if TYPE_CHECKING:
    from compiled_kernels import Kernels

PROBLEMS = (GemmProblem(16, 1024, 1024), GemmProblem(512, 1024, 1024))
"""Raced in one power regime, and in both."""


def _times(rows, stage: str, regime: str) -> dict[str, float]:
    """Time of each config."""
    part = rows[(rows["stage"] == stage) & (rows["regime"] == regime)]
    return dict(zip(part["config"].tolist(), part["microseconds"].tolist(), strict=True))


def test_collects_into_a_store_and_has_nothing_to_do_twice(
    kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = kernels.configs[:5]
    monkeypatch.setattr(collecting, "candidates", lambda problem, target: configs)
    gpu = hardware(torch.cuda.get_device_name(0))
    options = CollectOptions(PROBLEMS, tmp_path / "store", kernels.objects, gpu)
    told: list[Progress] = []
    collect(options, told.append)

    last = {progress.phase: (progress.done, progress.total) for progress in told}
    assert last["check"] == (1, 1)
    assert last["measure"] == last["verify"] == (2, 2)
    store = MeasurementStore(options.store)
    assert list(store.checks().values()) == [None] * 5
    dataset = store.export()
    store.close()
    rows = dataset.rows
    assert len(rows) == told[-1].measurements
    assert set(dataset.problems()) == set(PROBLEMS)
    assert rows["failure"].dropna().tolist() == []
    assert all(1 < time < 1000 for time in rows["microseconds"].tolist())
    card = device_hash(str(torch.cuda.get_device_properties(0).uuid))
    assert set(rows["device"]) == {card}
    for problem in PROBLEMS:
        mine = rows[rows["m"] == problem.m]
        screened = mine[mine["stage"] == "screen"]
        assert set(screened["config"]) == {*(c.name for c in configs), "torch.mm"}
        regimes = {"burst"} if problem.m == 16 else {"burst", "sustained"}
        for stage in ("race", "verify"):
            assert set(mine[mine["stage"] == stage]["regime"]) == regimes
        for regime in regimes:
            raced, verified = (_times(mine, stage, regime) for stage in ("race", "verify"))
            assert set(verified) <= set(raced)
            # Kernels of some microseconds; the data set's own noise is a result, not a test.
            for config, time in verified.items():
                assert time == pytest.approx(raced[config], rel=0.1)
    (run,) = dataset.provenance["runs"]
    assert run["gpu"] == "H200"
    assert [state["uuid_hash"] for state in run["gpus"]] == [card]
    assert run["end"]["seconds"] > 0

    told.clear()
    collect(options, told.append)
    assert told == []
    store = MeasurementStore(options.store)
    again = store.export()
    store.close()
    assert again.digest == dataset.digest
    assert len(again.provenance["runs"]) == 2

    with pytest.raises(TilecastError, match="CUDA device 0 is an 'NVIDIA H200', no H100"):
        collect(replace(options, gpu=hardware("H100"), store=tmp_path / "another"), told.append)
    with claimed([card]), pytest.raises(TilecastError, match=f"GPU {card} is in use"):
        collect(replace(options, store=tmp_path / "another"), told.append)
    assert not (tmp_path / "another").exists()


def test_ray_collects_what_this_host_does(
    kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    configs = kernels.configs[:5]
    monkeypatch.setattr(collecting, "candidates", lambda problem, target: configs)
    screened, runs = [], []
    for address in (None, "local"):
        path = tmp_path / str(address)
        options = CollectOptions(PROBLEMS, path, kernels.objects, hardware("H200"), address=address)
        collect(options, lambda progress: None)
        store = MeasurementStore(path)
        assert list(store.checks().values()) == [None] * 5
        assert store.measured("verify") == set(PROBLEMS)
        dataset = store.export()
        store.close()
        rows = dataset.rows[dataset.rows["stage"] == "screen"]
        keys = zip(rows["m"], rows["config"], rows["device"], strict=True)
        screened.append(dict(zip(keys, rows["microseconds"], strict=True)))
        runs += dataset.provenance["runs"]
    here, cluster = screened
    # The same card, as this host has the one that Ray is given, or several.
    assert {key[:2] for key in here} == {key[:2] for key in cluster}
    assert {card for *_, card in here} <= {state["uuid_hash"] for state in runs[1]["gpus"]}
    times = {key[:2]: time for key, time in cluster.items()}
    assert {key[:2]: time for key, time in here.items()} == pytest.approx(times, rel=0.1)
    assert runs[0]["versions"] == runs[1]["versions"]
