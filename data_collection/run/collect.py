"""One collection, end to end: which problems and GPUs, compile, check, measure, verify."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

from tilecast.data_collection.engines.worker import LocalEngine
from tilecast.data_collection.jobs.jobs import Session, Site
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.run.cards import card_times
from tilecast.data_collection.run.scheduler import Progress, Scheduler
from tilecast.heuristics.config import Candidates
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware, described
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.build.builder import compile_all
from tilecast.kernels.candidates import candidates, space
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.spec import KernelSpec


@dataclass(frozen=True)
class CollectOptions:
    """What to collect and where."""

    problems: tuple[GemmProblem, ...]
    """What to multiply."""
    store: Path
    """SQLite file; a run goes on where the last one stopped."""
    objects: ObjectCache
    """Compiled kernels."""
    gpu: Hardware
    """The GPU model."""
    devices: tuple[int, ...] = (0,)
    """CUDA device indices; all of one model."""
    choose: Callable[[GemmProblem, Candidates], Candidates] | None = None
    """Chooses the candidates to measure; None for all."""
    workers: int = 1
    """Processes that compile on this host."""
    address: str | None = None
    """Address of a Ray cluster to use instead of this host."""
    compared: tuple[GemmProblem, ...] = ()
    """Problems whose best kernels every card times, to compare cards."""
    seconds: float = float("inf")
    """Time after which no further job starts."""
    tell: Callable[[str], object] = lambda line: None
    """Called with what a user should know before hours are spent."""


def in_order(options: CollectOptions) -> list[GemmProblem]:
    """The problems in a random order that is always the same.

    Raises:
        TilecastError: no kernel multiplies the operands of one.
    """
    order = list(options.problems)
    random.Random(0).shuffle(order)
    for operands in dict.fromkeys(problem.operands for problem in order):
        space(operands, options.gpu)
    return list(dict.fromkeys(order))


def collect(options: CollectOptions, report: Callable[[Progress], None]) -> None:
    """Measure and verify every problem that the store does not have yet, until time is up.

    Raises:
        TilecastError: the GPU is not the one of the options or of the store, or is in use; the
            store or cache cannot be written; workers fail with no kernel to blame; or the cluster
            does not answer or differs.
    """
    start, name = time.monotonic(), options.gpu.name

    def chosen(problem: GemmProblem) -> Candidates:
        every = candidates(problem, options.gpu)
        return options.choose(problem, every) if options.choose else every

    with site(options) as place, closing(MeasurementStore(options.store)) as store:
        runs = store.runs()
        if others := {run["gpu"] for run in runs if "gpu" in run} - {name}:
            raise TilecastError(
                f"store {options.store} is of {', '.join(sorted(others))}; allowed: one of {name}, "
                "or a new one, as times of different GPUs do not mix"
            )
        done = {(one.card, one.problem) for one in card_times(runs)}
        store.begin_run(place.provenance | {"gpu": name, "hardware": options.gpu.facts()})
        Scheduler(
            store,
            place.factories,
            build=place.build,
            engine=place.engine,
            report=report,
            compared=[pair for pair in product(place.cards, options.compared) if pair not in done],
            deadline=start + options.seconds,
        ).collect(in_order(options), chosen)
        store.end_run({"seconds": round(time.monotonic() - start, 1)})


def site(options: CollectOptions) -> AbstractContextManager[Site]:
    """Where kernels are compiled and measured.

    Raises:
        TilecastError: as `collect`, before the first job.
    """
    if options.address is None:
        return _this_host(options)
    return _many_hosts().ray_cluster(options.address, options.objects, options.gpu)


def target_gpu(
    device: int, address: str | None, runs: Iterable[Mapping[str, Any]] = ()
) -> Hardware:
    """The hardware that is to be measured; the rates of an unknown GPU are measured first.

    It is a CUDA device of this host, or a GPU of the Ray cluster at an address. What the provenance
    of earlier runs says of the GPU is kept.

    Raises:
        TilecastError: as `hardware_of`; or the cluster cannot be used, or has no GPU.
    """
    from tilecast.data_collection.gpu.gpu_model import hardware_of

    earlier = [described(run["hardware"]) for run in runs if "hardware" in run]
    if address is None:
        return hardware_of(device, earlier, measure=True)
    return _many_hosts().cluster_gpu(address, earlier)


def _many_hosts() -> ModuleType:
    try:
        import tilecast.data_collection.engines.ray_cluster as many_hosts
    except ImportError as error:
        raise TilecastError(
            "Ray is not installed; allowed: an installation with it, which many hosts need; run "
            "`pip install 'ray>=2.60,<3'`"
        ) from error
    return many_hosts


@contextmanager
def _this_host(options: CollectOptions) -> Iterator[Site]:
    """GPUs of this host, claimed for this collection."""
    from tilecast.data_collection.gpu.environment import claimed, present

    cards, provenance = present(options.devices, options.gpu)
    with claimed(cards):
        shared = shared_by_others(options.devices)
        for trouble in shared:
            options.tell(f"GPU {trouble['card']} is shared: {trouble['reason']}")
        provenance |= {"troubles": shared} if shared else {}
        yield Site(
            provenance,
            cards,
            [partial(card_session, options.objects, card) for card in cards],
            LocalEngine(),
            partial(compile_all, cache=options.objects, workers=options.workers),
        )


def shared_by_others(devices: Iterable[int]) -> list[dict[str, str]]:
    """The devices that other processes have a context on, whose kernels would change the times."""
    import torch

    from tilecast.data_collection.gpu.environment import card_of
    from tilecast.data_collection.timing.card_health import others_on

    found = []
    for device in devices:
        if others := others_on(str(torch.cuda.get_device_properties(device).uuid)):
            ids = ", ".join(map(str, others[:5]))
            reason = f"{len(others)} other processes use it as the run begins ({ids})"
            found.append({"card": card_of(device), "reason": reason})
    return found


def odd(devices: Iterable[int]) -> list[dict[str, str]]:
    """What would make the times of devices others than those of the same model elsewhere."""
    import torch

    from tilecast.data_collection.gpu.environment import card_of
    from tilecast.data_collection.timing.card_health import oddities

    return [
        {"card": card_of(device), "reason": reason}
        for device in devices
        for reason in oddities(str(torch.cuda.get_device_properties(device).uuid))
    ]


def card_session(
    objects: ObjectCache, card: str, announce: Callable[[KernelSpec | None], None]
) -> Session:
    """A session on a card of this host, which keeps its hash when devices are renumbered."""
    from tilecast.data_collection.gpu.environment import device_of
    from tilecast.data_collection.timing.gpu_session import GpuSession

    return GpuSession(objects, device_of(card), announce)
