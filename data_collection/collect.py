"""One collection, end to end: which problems and GPUs, compile, check, measure, verify."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tilecast.data_collection.collector import Collector, Progress, Workload
from tilecast.data_collection.store import MeasurementStore
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
    workers: int = 1
    """Processes that compile."""
    seconds: float = float("inf")
    """Time after which nothing further is compiled or measured."""


def workload(problems: Sequence[GemmProblem], target: Hardware) -> Workload:
    """Each problem with its candidates, in an order in which every stretch is a fair sample."""
    order = list(problems)
    random.Random(0).shuffle(order)
    return {problem: candidates(problem, target) for problem in order}


def collect(options: CollectOptions, report: Callable[[Progress], None]) -> None:
    """Bring the store to where every problem is measured and verified, or time is up.

    Raises:
        TilecastError: the GPU is unknown, another or in use, the store or cache cannot be written,
            or a worker fails with no kernel to blame.
    """
    from tilecast.data_collection.environment import cards, claimed, describe, gpu_states
    from tilecast.data_collection.gpu_session import GpuSession

    start = time.monotonic()
    target = hardware(options.gpu)
    chosen = cards(options.devices, target)
    with claimed(chosen):
        provenance = describe(chosen) | {"gpu": target.name}
        with closing(MeasurementStore(options.store)) as store:
            store.begin_run(provenance)
            Collector(
                store,
                [partial(GpuSession, options.objects, device) for device in options.devices],
                build=lambda kernels: compile_all(kernels, options.objects, options.workers),
                report=report,
                deadline=start + options.seconds,
            ).collect(workload(options.problems, target))
            seconds = round(time.monotonic() - start, 1)
            store.end_run({"gpus": gpu_states(chosen), "seconds": seconds})
