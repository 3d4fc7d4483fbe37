"""A collection as options ask for it, and how far it is, on standard error."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from tilecast.cli.options import resolve
from tilecast.heuristics.errors import TilecastError

if TYPE_CHECKING:
    from tilecast.data_collection.jobs.store import MeasurementStore
    from tilecast.data_collection.run.progress import Progress
    from tilecast.heuristics.problem import GemmProblem
    from tilecast.kernels.objects.cache import ObjectCache
    from tilecast.models.apply.guidance import Guided


def writable_objects(options: argparse.Namespace) -> ObjectCache:
    """The cache that the options name.

    Raises:
        TilecastError: it cannot be written.
    """
    from tilecast.kernels.objects.cache import ObjectCache, default_root

    objects = ObjectCache(options.cache or default_root())
    resolve.check_writable(objects.root)
    return objects


def measure(
    options: argparse.Namespace,
    objects: ObjectCache,
    problems: tuple[GemmProblem, ...],
    guided: Guided | None,
) -> None:
    """Collect problems into the store that the options name: what is chosen, or every candidate.

    Raises:
        TilecastError: as `tilecast.data_collection.run.collect.collect`.
    """
    from tilecast.data_collection.run.collect import CollectOptions, collect

    devices = options.devices or (0,)
    wanted = CollectOptions(
        problems=problems,
        store=options.store,
        objects=objects,
        gpu=resolve.gpu(options),
        devices=devices,
        workers=resolve.compilers(options, devices),
        address=resolve.cluster(options),
        seconds=options.budget or float("inf"),
        choose=guided,
    )
    with telling() as tell:
        collect(wanted, tell)


def progress(store: MeasurementStore, asked: Collection[GemmProblem]) -> dict[str, int]:
    """How far a store is with the problems that are asked for, and all that it holds.

    A problem is measured when its best candidates were raced, and verified when they were timed
    again.
    """
    wanted = set(asked)
    return {
        "problems": len(wanted),
        "measured": len(store.measured("race") & wanted),
        "verified": len(store.measured("verify") & wanted),
        "measurements": store.count(),
        "failed_kernels": len(store.failures()),
    }


def nothing_measured(options: argparse.Namespace, counts: Mapping[str, int]) -> TilecastError:
    """What a command says whose problems, of which there are `progress`, are all unmeasured."""
    within = f" within --budget {options.budget}" if options.budget else ""
    failed = f", and {counts['failed_kernels']} kernels failed" if counts["failed_kernels"] else ""
    mend = (
        "more seconds; the same command goes on where this one ended"
        if options.budget
        else "a GPU that runs them; see `tilecast doctor`"
    )
    return TilecastError(
        f"none of the {counts['problems']} problems was measured{within}{failed}; allowed: {mend}"
    )


def so_far(path: Path) -> tuple[set[GemmProblem], list[dict]]:
    """The problems that a store has measured, and its runs; none where it is not there yet."""
    from tilecast.data_collection.jobs.store import MeasurementStore

    if not path.exists():
        return set(), []
    with closing(MeasurementStore(path)) as store:
        return store.measured("race"), store.runs()


class _Unheard(io.TextIOBase):
    """A stream that drops what cannot be written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


@contextmanager
def telling(step: str = "") -> Iterator[Callable[[Progress], None]]:
    """Show progress on standard error: in place on a terminal, a line now and then elsewhere.

    Where nobody listens, as that is closed, full or a broken pipe, the work goes on silently.

    Args:
        step: what all of it is a part of.
    """
    from rich.console import Console

    file = None if sys.stderr is None else cast("TextIO", _Unheard(sys.stderr))
    console = Console(file=file, stderr=True, highlight=False)
    told = {"phase": "", "seconds": 0.0}
    if step and not console.is_terminal:
        console.print(step, soft_wrap=True)
    with console.status(step or "starting") as status:

        def tell(progress: Progress) -> None:
            line = f"{step}: {_line(progress)}" if step else _line(progress)
            status.update(line)
            late = progress.seconds - told["seconds"] > _SECONDS_BETWEEN_LINES
            if not console.is_terminal and (late or progress.phase != told["phase"]):
                console.print(line, soft_wrap=True)
                told.update(phase=progress.phase, seconds=progress.seconds)

        yield tell


def _line(progress: Progress) -> str:
    rate = progress.measurements / max(progress.seconds, 1.0)
    noise = "" if progress.noise is None else f", noise {progress.noise:.2%}"
    return (
        f"{progress.phase} {progress.done}/{progress.total} on {progress.gpus} GPUs, "
        f"{progress.measurements} measurements, {rate:.0f} a second{noise}, "
        f"{progress.seconds:.0f} s, {progress.seconds_left:.0f} s left"
    )


_SECONDS_BETWEEN_LINES = 15.0
