"""One collection, end to end: plan, compile, check, measure, verify."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilecast.data_collection.collector import Collector, Plan, Progress
from tilecast.data_collection.store import MeasurementStore
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.builder import compile_all
from tilecast.kernels.cutlass_sm90.space import candidates
from tilecast.kernels.object_cache import ObjectCache
from tilecast.kernels.spec import KernelSpec


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
    """Time after which no further job starts."""


def plan_for(problems: Sequence[GemmProblem], target: Hardware) -> Plan:
    """Each problem with its candidates, in an order in which every stretch is a fair sample."""
    order = list(problems)
    random.Random(0).shuffle(order)
    return {problem: candidates(problem, target) for problem in order}


def collect(options: CollectOptions, report: Callable[[Progress], None]) -> None:
    """Bring the store to where every problem is measured and verified, or time is up.

    Raises:
        TilecastError: the GPU is unknown, the store or cache cannot be written, or a worker fails
            with no kernel to blame.
    """
    from tilecast.data_collection.environment import describe, gpu_states
    from tilecast.data_collection.gpu_session import GpuSessionFactory

    start = time.monotonic()
    plan = plan_for(options.problems, hardware(options.gpu))
    store = MeasurementStore(options.store)
    try:
        store.begin_run(describe() | {"gpu": options.gpu})
        specs = {KernelSpec.for_problem(c, p): None for p, configs in plan.items() for c in configs}
        for done, result in enumerate(compile_all(specs, options.objects, options.workers), 1):
            if result.error:
                store.add_checks({result.spec: result.error})
            spent = time.monotonic() - start
            left = spent / done * (len(specs) - done)
            report(Progress("compile", done, len(specs), 0, spent, left))
        Collector(
            store,
            [GpuSessionFactory(options.objects, device) for device in options.devices],
            report=report,
            deadline=start + options.seconds,
        ).collect(plan)
        store.end_run({"gpus": gpu_states(), "seconds": round(time.monotonic() - start, 1)})
    finally:
        store.close()
