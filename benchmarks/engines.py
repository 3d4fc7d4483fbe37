"""Do all GPUs measure as many times as fast as one, and as fast on Ray as on the local engine?

Each arm collects the same problems in the same order for `SECONDS`, second timing and all, with
kernels that were compiled before. One GPU gets through fewer of them than all: what a job takes is
compared on those that both arms did. Of each arm it is told what its GPUs did from the first job
until one had its last: timing kernels, checking new ones, or nothing.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from runner import Measure, Row, Sweep

from tilecast.data_collection.jobs.engine import Engine, News, Worker
from tilecast.data_collection.jobs.jobs import CheckJob, Job, SessionFactory
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.problems.suites import suite
from tilecast.data_collection.run.collect import CollectOptions, site, workload
from tilecast.data_collection.run.scheduler import Scheduler, Workload
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.build.builder import compile_all
from tilecast.kernels.objects.cache import ObjectCache, default_root
from tilecast.kernels.spec import KernelSpec
from tilecast.models.apply.guidance import Guided
from tilecast.models.runtime.learned import load_heuristic

GPU = hardware("H200")
SECONDS = 120.0  # an arm collects for so long
STARTING = 30.0  # what it may take beside
PROBLEMS = 400  # more than two GPUs measure meanwhile; some 4,300 kernels
ARMS = {
    "local, 1 GPU": (slice(1), None),
    "local, all GPUs": (slice(None), None),
    "Ray, all GPUs": (slice(None), "local"),
}
ONE, ALL, RAY = ARMS


@dataclass
class Watched:
    """An engine, and every job of its workers: when it began and how long it took."""

    engine: Engine[Any]
    jobs: list[Row] = field(default_factory=list)
    _given: dict[Worker, tuple[Job, float]] = field(default_factory=dict)

    def start(self, factory: SessionFactory, silence: float) -> Worker:
        """As the engine."""
        return self.engine.start(factory, silence)

    def news(self, workers: Sequence[Worker], seconds: float) -> Iterator[tuple[Worker, News]]:
        """As the engine, which is asked as soon as jobs are given."""
        now = time.monotonic()
        for worker in workers:
            if worker.job and self._given.get(worker, (None, now))[0] is not worker.job:
                self._given[worker] = (worker.job, now)
        for worker, news in self.engine.news(workers, seconds):
            job, begun = self._given.pop(worker, (None, now))
            if job and isinstance(news, list | dict):
                self.jobs.append(
                    {
                        "card": worker.card,
                        "kind": type(job).__name__,
                        "problem": "" if isinstance(job, CheckJob) else str(job.problem),
                        "rows": len(news) if isinstance(news, list) else 0,
                        "begun": round(begun, 3),
                        "seconds": round(time.monotonic() - begun, 3),
                    }
                )
            yield worker, news


def chosen() -> tuple[CollectOptions, Workload]:
    """What every arm collects: what the shipped model likes of random problems."""
    options = CollectOptions(
        problems=suite("random")[:PROBLEMS],
        store=Path(),
        objects=ObjectCache(default_root()),
        gpu=GPU,
        choose=Guided(load_heuristic(GPU, LINEAR_BF16), GPU),
        workers=len(os.sched_getaffinity(0)),
    )
    return options, dict(workload(options))


@contextmanager
def measuring() -> Iterator[Measure]:
    """Compile all kernels, then measure arms."""
    options, plan = chosen()
    specs = {
        KernelSpec.for_problem(config, problem) for problem in plan for config in plan[problem]
    }
    for result in compile_all(specs, options.objects, options.workers):
        assert result.error is None, result

    def measure(arm: tuple[slice, str | None]) -> Sequence[Row]:
        gpus, address = arm
        devices = tuple(range(torch.cuda.device_count()))[gpus]
        changes = {"devices": devices, "address": address}
        return collected(CollectOptions(**{**vars(options), **changes}), plan)

    yield measure


def collected(options: CollectOptions, plan: Workload) -> list[Row]:
    """The jobs that were finished in `SECONDS`."""
    with (
        TemporaryDirectory() as folder,
        site(options) as place,
        closing(MeasurementStore(Path(folder) / "store")) as store,
    ):
        store.begin_run(place.provenance)
        watched = Watched(place.engine)
        end = time.monotonic() + SECONDS
        Scheduler(store, place.factories, place.build, watched, deadline=end).collect(plan)
        return watched.jobs


def figures(rows: Sequence[Row]) -> Row:
    """Rate of each arm and what its GPUs did, and how many times one is as fast as another."""
    arms = {name: [row for row in rows if row["engine"] == name] for name in ARMS}
    found: Row = {name: _arm(jobs) for name, jobs in arms.items() if jobs}
    for title, fast, slow in (("all GPUs to 1", ALL, ONE), ("Ray to local", RAY, ALL)):
        if fast in found and slow in found:
            found[title] = _speedup(arms, found, fast, slow)
    return found


def _arm(jobs: Sequence[Row]) -> Row:
    cards = {job["card"] for job in jobs}
    last = min(max(_end(job) for job in jobs if job["card"] == card) for card in cards)
    first = min(job["begun"] for job in jobs)
    gpu_seconds = len(cards) * (last - first)

    def share(jobs: Sequence[Row]) -> float:
        return sum(min(_end(j), last) - j["begun"] for j in jobs if j["begun"] < last) / gpu_seconds

    timing = share([job for job in jobs if _times(job)])
    checking = share([job for job in jobs if not _times(job)])
    return {
        "gpus": len(cards),
        "problems": len({job["problem"] for job in jobs if _times(job)}),
        "seconds": round(last - first, 1),
        "timing": round(timing, 4),
        "checking": round(checking, 4),
        "idle": round(1 - timing - checking, 4),
        "measurements a second and GPU": round(
            sum(job["rows"] for job in jobs if _end(job) <= last) / gpu_seconds, 1
        ),
    }


def _times(job: Row) -> bool:
    return job["kind"] != CheckJob.__name__


def _end(job: Row) -> float:
    return job["begun"] + job["seconds"]


def _speedup(arms: dict[str, list[Row]], found: Row, fast: str, slow: str) -> Row:
    ours, theirs = (
        {(job["kind"], job["problem"]): job["seconds"] for job in arms[name] if _times(job)}
        for name in (fast, slow)
    )
    both = sorted(ours.keys() & theirs.keys())
    pace = sum(theirs[job] for job in both) / sum(ours[job] for job in both)
    work = {name: found[name]["gpus"] * found[name]["timing"] for name in (fast, slow)}
    return {"jobs": len(both), "times": round(pace * work[fast] / work[slow], 3)}


SWEEP = Sweep(
    key="engine",
    items=ARMS,
    measuring=measuring,
    figures=figures,
    longest=SECONDS + STARTING,
    settings={"seconds": SECONDS, "problems": PROBLEMS, "gpu": GPU.name},
)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
