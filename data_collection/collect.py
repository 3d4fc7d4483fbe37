"""One collection, end to end: which problems and GPUs, compile, check, measure, verify."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tilecast.data_collection.collector import Collector, Progress, Workload
from tilecast.data_collection.engine import Site
from tilecast.data_collection.store import MeasurementStore
from tilecast.data_collection.worker import LocalEngine
from tilecast.heuristics.candidates import Candidates
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.builder import compile_all
from tilecast.kernels.candidates import candidates
from tilecast.kernels.object_cache import ObjectCache


@dataclass(frozen=True)
class CollectOptions:
    """What to collect and where."""

    problems: tuple[GemmProblem, ...]
    """What to multiply."""
    store: Path
    """SQLite file; a run goes on where the last one was stopped."""
    objects: ObjectCache
    """Compiled kernels."""
    gpu: str
    """Short name of the GPU model, as `tilecast.heuristics.hardware` knows it."""
    devices: tuple[int, ...] = (0,)
    """CUDA device indices; all of one model."""
    choose: Callable[[GemmProblem, Candidates], Candidates] = lambda problem, candidates: candidates
    """Which of a problem's candidates are measured; all when left out."""
    workers: int = 1
    """Processes that compile on this host."""
    address: str | None = None
    """A Ray cluster, whose GPUs and cores take the place of this host's."""
    seconds: float = float("inf")
    """Time after which nothing further is compiled or measured."""


def workload(options: CollectOptions, target: Hardware) -> Workload:
    """Each problem with what is measured of it, in an order of which every stretch is fair."""
    order = list(options.problems)
    random.Random(0).shuffle(order)
    return {problem: options.choose(problem, candidates(problem, target)) for problem in order}


def collect(options: CollectOptions, report: Callable[[Progress], None]) -> None:
    """Bring the store to where every problem is measured and verified, or time is up.

    Raises:
        TilecastError: the GPU is unknown, another or in use, the store or cache cannot be written,
            a worker fails with no kernel to blame, or the cluster does not answer or differs.
    """
    start = time.monotonic()
    target = hardware(options.gpu)
    with site(options, target) as place, closing(MeasurementStore(options.store)) as store:
        store.begin_run(place.provenance | {"gpu": target.name})
        Collector(
            store,
            place.factories,
            build=place.build,
            engine=place.engine,
            report=report,
            deadline=start + options.seconds,
        ).collect(workload(options, target))
        seconds = round(time.monotonic() - start, 1)
        store.end_run({"gpus": place.states(), "seconds": seconds})


def site(options: CollectOptions, target: Hardware) -> AbstractContextManager[Site]:
    """Where the options say that kernels are compiled and measured.

    Raises:
        TilecastError: as `collect`, but for what happens later.
    """
    if options.address is None:
        return _this_host(options, target)
    try:
        from tilecast.data_collection.ray_cluster import ray_cluster
    except ImportError as error:
        raise TilecastError(
            "Ray is not installed; allowed: an installation with it, which many hosts need; run "
            "`pip install 'tilecast[cluster]'`"
        ) from error
    return ray_cluster(options.address, options.objects, target)


@contextmanager
def _this_host(options: CollectOptions, target: Hardware) -> Iterator[Site]:
    """GPUs of this host, which no other collection has meanwhile."""
    from tilecast.data_collection.environment import cards, claimed, describe, gpu_states
    from tilecast.data_collection.gpu_session import GpuSession

    chosen = cards(options.devices, target)
    with claimed(chosen):
        yield Site(
            describe(chosen),
            [partial(GpuSession, options.objects, device) for device in options.devices],
            LocalEngine(),
            lambda kernels: compile_all(kernels, options.objects, options.workers),
            lambda: gpu_states(chosen),
        )
