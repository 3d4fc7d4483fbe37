"""Measure the candidates of suites of problems on GPUs; a run goes on where the last stopped."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import TYPE_CHECKING

from tilecast.cli.options import argtypes, resolve
from tilecast.cli.options import options as shared
from tilecast.cli.output.collect_progress import measure, progress, writable_objects
from tilecast.cli.output.output import Answer

if TYPE_CHECKING:
    from tilecast.heuristics.problem import GemmProblem
    from tilecast.models.apply.guidance import Guided

NAME = "collect"
HELP = "measure the candidates of suites of problems on a GPU"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    shared.add_suites(parser)
    parser.add_argument(
        "--candidates",
        choices=("exhaustive", "guided"),
        default="exhaustive",
        help="measure all candidates of a problem, or those that a model likes, their neighbours "
        "and a random share (default: exhaustive)",
    )
    shared.add_model(parser)
    parser.add_argument(
        "--export", type=argtypes.path, help="write the data set to this Parquet file"
    )
    shared.add_collection(parser)
    shared.add_gpu(parser, model=True)
    shared.add_compiling(parser)


def run(options: argparse.Namespace) -> Answer:
    """Collect, then export."""
    from tilecast.data_collection.dataset.dataset import write_dataset
    from tilecast.data_collection.jobs.store import MeasurementStore
    from tilecast.reporting.cards import trouble_table

    resolve.check_ranks(options, options.candidates == "guided", "--candidates guided")
    resolve.check_apart(options, options.export)
    if options.export:
        resolve.check_file(options.export)
    objects = writable_objects(options)
    asked, guided = _guidance(options, resolve.asked_problems(options))
    measure(options, objects, asked, guided)
    with closing(MeasurementStore(options.store)) as store:
        document = {
            "store": str(options.store),
            **progress(store, asked),
            "export": str(options.export) if options.export else None,
        }
        if options.export:
            write_dataset(store.export(), options.export)
        troubles = trouble_table(store.runs())
    told = {name: value for name, value in document.items() if value is not None}
    lines = [f"{name.replace('_', ' ')}: {value}" for name, value in told.items()]
    found = troubles.records if troubles else []
    return Answer(document | {"troubles": found}, [*([troubles] if troubles else []), *lines])


def _guidance(
    options: argparse.Namespace, asked: tuple[GemmProblem, ...]
) -> tuple[tuple[GemmProblem, ...], Guided | None]:
    """The problems to measure, and what chooses among their candidates, where not all are."""
    if options.candidates == "exhaustive":
        return asked, None
    from tilecast.models.apply.guidance import Guided
    from tilecast.models.runtime.learned import load_heuristic_for

    heuristic = load_heuristic_for(resolve.gpu(options), asked, options.power, options.model)
    return resolve.ranked(heuristic, asked), Guided(heuristic, resolve.gpu(options))
