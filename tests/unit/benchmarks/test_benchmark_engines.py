"""The benchmark of engines: what it sees of a collection, and what it makes of that."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import engines
import pytest

# Spawned workers get this process's path, and find the module that their factories come from.
from fake_session import PROBLEMS, WORKLOAD, FakeFactory

from tilecast.data_collection.engines.worker import LocalEngine
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.run.scheduler import Scheduler


def test_sees_every_job(tmp_path: Path) -> None:
    watched = engines.Watched(LocalEngine())
    (tmp_path / "log").touch()
    with closing(MeasurementStore(tmp_path / "store")) as store:
        store.begin_run({"gpu": "none"})
        factories = [FakeFactory(tmp_path / "log", card, pace=0.1) for card in ("left", "right")]
        Scheduler(store, factories, engine=watched).collect(WORKLOAD)
        stages = store.export().rows["stage"].tolist()
    measured = [job for job in watched.jobs if job["kind"] == "MeasureJob"]
    assert sorted(job["problem"] for job in measured) == sorted(map(str, PROBLEMS))
    assert {job["kind"] for job in watched.jobs} == {"CheckJob", "MeasureJob", "VerifyJob"}
    assert sum(job["rows"] for job in measured) == len(stages) - stages.count("verify")
    assert sum(job["rows"] for job in watched.jobs) == len(stages)
    # A screen, a heat and two batches in each regime take 0.1 s each.
    assert all(0.4 <= job["seconds"] < 3 for job in measured)
    assert engines.figures([{"engine": engines.ONE, **job} for job in watched.jobs])


def _jobs(engine: str, cards: int, problems: int, seconds: float, gap: float) -> list[dict]:
    """Jobs of equal length, one after the other on each card."""
    return [
        {
            **{"engine": engine, "card": f"{i % cards}", "kind": "MeasureJob"},
            **{"problem": f"{i}", "rows": 100},
            **{"begun": (i // cards) * (seconds + gap), "seconds": seconds},
        }
        for i in range(problems)
    ]


def test_four_gpus_to_one_and_ray_to_local() -> None:
    one = _jobs(engines.ONE, 1, 10, 2.0, 0.0)
    four = _jobs(engines.ALL, 4, 40, 2.0, 0.0)
    # As idle as 0.5 s between jobs of 2 s make it, nine times in ten jobs.
    ray = _jobs(engines.RAY, 4, 40, 2.0, 0.5)
    found = engines.figures(one + four + ray)
    assert found[engines.ONE] == {
        **{"gpus": 1, "problems": 10, "seconds": 20.0},
        **{"timing": 1.0, "checking": 0.0, "idle": 0.0},
        "measurements a second and GPU": 50.0,
    }
    assert found["all GPUs to 1"] == {"jobs": 10, "times": 4.0}
    assert found[engines.RAY]["idle"] == pytest.approx(4.5 / 24.5, abs=1e-4)
    assert found["Ray to local"] == {"jobs": 40, "times": pytest.approx(20 / 24.5, abs=1e-3)}


def test_checking_is_no_idling_but_no_timing_either() -> None:
    one = _jobs(engines.ONE, 1, 10, 2.0, 0.5)
    checks = [
        {**job, "kind": "CheckJob", "problem": "", "rows": 0, "begun": job["begun"] + 2.0}
        | {"seconds": 0.5}
        for job in one[:9]
    ]
    found = engines.figures(one + checks)[engines.ONE]
    assert found["problems"] == 10
    assert (found["timing"], found["checking"]) == pytest.approx((20 / 24.5, 4.5 / 24.5), abs=1e-4)
    assert found["idle"] == pytest.approx(0, abs=1e-4)


def test_slower_jobs_on_four_gpus_count() -> None:
    rows = _jobs(engines.ONE, 1, 10, 2.0, 0.0) + _jobs(engines.ALL, 4, 40, 2.5, 0.0)
    assert engines.figures(rows)["all GPUs to 1"]["times"] == 3.2
    # While one arm is missing there is nothing to compare.
    assert set(engines.figures(rows[:10])) == {engines.ONE}
