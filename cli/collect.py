"""Measure the candidates of suites of problems on GPUs; a run goes on where the last stopped."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from tilecast.cli import options as shared
from tilecast.cli.report import Report
from tilecast.heuristics.errors import TilecastError

if TYPE_CHECKING:
    from tilecast.data_collection.collector import Progress
    from tilecast.heuristics.problem import GemmProblem
    from tilecast.models.guidance import Guided

NAME = "collect"
HELP = "measure the candidates of suites of problems on a GPU"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument(
        "--suite",
        action="append",
        metavar="NAME",
        help="suite of problems; repeatable (default: training, without problems of one's own)",
    )
    shared.add_own_problems(parser)
    parser.add_argument(
        "--candidates",
        choices=("exhaustive", "guided"),
        default="exhaustive",
        help="measure all candidates of a problem, or those that a model likes, their neighbours "
        "and a random share (default: exhaustive)",
    )
    shared.add_model(parser)
    parser.add_argument(
        "--store", type=shared.path, required=True, help="SQLite file; made when absent"
    )
    parser.add_argument(
        "--export", type=shared.path, help="write the data set to this Parquet file"
    )
    about = "CUDA devices, as 0,1 (default: 0)"
    parser.add_argument("--devices", type=_devices, default="0", help=about)
    about = "seconds after which nothing further is compiled or measured"
    parser.add_argument("--budget", type=shared.integer(1), help=about)
    shared.add_gpu(parser)
    shared.add_cache(parser)


def run(options: argparse.Namespace) -> Report:
    """Collect, then export."""
    from tilecast.data_collection.collect import CollectOptions, collect
    from tilecast.data_collection.dataset import write_dataset
    from tilecast.data_collection.store import MeasurementStore
    from tilecast.data_collection.suites import problems
    from tilecast.kernels.object_cache import ObjectCache, default_root

    if options.export:
        if options.export.is_dir():
            raise TilecastError(f"cannot write {options.export} (a folder); allowed: a file")
        shared.check_writable(options.export.parent)
    objects = ObjectCache(options.cache or default_root())
    shared.check_writable(objects.root)
    shared.check_own_problems(options)
    own = shared.own_problems(options)
    suites = options.suite or ([] if own else ["training"])
    asked = tuple(dict.fromkeys([*problems(suites), *own]))
    wanted = CollectOptions(
        problems=asked,
        store=options.store,
        objects=objects,
        gpu=options.gpu.name,
        devices=options.devices,
        workers=options.workers,
        seconds=options.budget or float("inf"),
        **_guidance(options, asked),
    )
    with _telling() as tell:
        collect(wanted, tell)
    with closing(MeasurementStore(options.store)) as store:
        document = {
            "store": str(options.store),
            "problems": len(wanted.problems),
            "measured": len(store.measured("screen")),
            "verified": len(store.measured("verify")),
            "measurements": store.count(),
            "failed_kernels": sum(reason is not None for reason in store.checks().values()),
            "export": str(options.export) if options.export else None,
        }
        if options.export:
            write_dataset(store.export(), options.export)
    lines = [f"{name.replace('_', ' ')}: {value}" for name, value in document.items() if value]
    return Report(document, lines)


def _guidance(options: argparse.Namespace, asked: tuple[GemmProblem, ...]) -> dict[str, Guided]:
    """What chooses among candidates, where they are not all to be measured."""
    if options.candidates == "exhaustive":
        return {}
    from tilecast.models.guidance import Guided
    from tilecast.models.learned import load_heuristic

    operands, *others = dict.fromkeys(problem.operands for problem in asked)
    if others:
        raise TilecastError(
            f"one model guides problems of one kind of operands, not of {operands} and "
            f"{others[0]}; allowed: one kind, or --candidates exhaustive"
        )
    heuristic = load_heuristic(options.gpu, operands, options.power, options.model)
    return {"choose": Guided(heuristic, options.gpu)}


def _devices(text: str) -> tuple[int, ...]:
    """Read a list such as ``0,1``; each device once."""
    read = shared.integer(0, _LAST_DEVICE, also="numbers such as 0 or 0,1, each ")
    return tuple(dict.fromkeys(map(read, text.split(","))))


_LAST_DEVICE = 63


@contextmanager
def _telling() -> Iterator[Callable[[Progress], None]]:
    """Show progress on standard error: in place on a terminal, a line now and then elsewhere."""
    from rich.console import Console

    console, told = Console(stderr=True, highlight=False), {"phase": "", "seconds": 0.0}
    with console.status("starting") as status:

        def tell(progress: Progress) -> None:
            line = (
                f"{progress.phase} {progress.done}/{progress.total}, {progress.measurements} "
                f"measurements, {progress.seconds:.0f} s, {progress.seconds_left:.0f} s left"
            )
            status.update(line)
            late = progress.seconds - told["seconds"] > _SECONDS_BETWEEN_LINES
            if not console.is_terminal and (late or progress.phase != told["phase"]):
                console.print(line, soft_wrap=True)
                told.update(phase=progress.phase, seconds=progress.seconds)

        yield tell


_SECONDS_BETWEEN_LINES = 15.0
