"""Measure the candidates of suites of problems on GPUs; a run resumes where the last stopped."""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilecast.cli.options import argtypes, arguments, resolve
from tilecast.cli.options.output_paths import check_distinct, check_file
from tilecast.cli.output.output import Output, print_note
from tilecast.cli.output.progress import show_progress, show_steps
from tilecast.data_collection.dataset.dataset import Dataset, write_dataset
from tilecast.data_collection.jobs.store import MeasurementStore, OtherVersions
from tilecast.data_collection.run.collect import CollectOptions, collect
from tilecast.data_collection.run.scheduler import Progress
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.apply.guidance import Guided
from tilecast.models.runtime.known_operands import ranks_for
from tilecast.models.runtime.learned import LearnedHeuristic, model_for
from tilecast.models.runtime.nearest_gpu import nearest_shipped
from tilecast.models.runtime.objectives import ROBUST
from tilecast.reporting.cards import trouble_table

_EXHAUSTIVE, _GUIDED = 10.0, 2.1
"""Seconds of one GPU for a problem, on average over the training suite (H200)."""
_EXPORTED = 1.5e-5
"""Seconds to check and sort a measurement."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    arguments.add_suites(parser)
    parser.add_argument(
        "--candidates",
        choices=("exhaustive", "guided"),
        help="measure all candidates of a problem, or those that a model ranks first, their "
        "neighbours and a random share, in a fifth of the time (default: guided, where a model "
        "ranks all of the problems)",
    )
    arguments.add_model(parser)
    about = "write the data set to this Parquet file, also that of an older store, as it is"
    parser.add_argument("--export", type=argtypes.path, help=about)
    arguments.add_collection(parser)
    arguments.add_gpu(parser, model=True)
    arguments.add_compiling(parser)


def run(options: argparse.Namespace) -> Output:
    """Collect, then export."""
    exhaustive = options.candidates == "exhaustive"
    resolve.check_ranks(options, not exhaustive, "--candidates guided")
    check_distinct(options, options.export)
    if options.export:
        check_file(options.export)
    gpu, problems = resolve.gpu(options), resolve.suite_and_own_problems(options)
    wanted = collect_options(options, gpu, options.devices or (0,))
    guided = None
    if options.candidates == "guided" or (options.model and not exhaustive):
        heuristic = LearnedHeuristic(model_for(gpu, options.model), options.power)
        problems, guided = resolve.ranked(heuristic, problems), Guided(heuristic, gpu)
    elif not exhaustive:
        guided = guided_by_shipped(gpu, problems, options.power)
    other_versions = None
    try:
        measure(replace(wanted, problems=problems, choose=guided))
    except OtherVersions as error:
        if not options.export:
            raise
        other_versions = error
    with closing(MeasurementStore(options.store, any_versions=True)) as store:
        counts = problem_counts(store, problems)
        if options.export:
            write_dataset(exported(store), options.export)
        troubles = trouble_table(store.runs())
    if other_versions:
        print_note(f"nothing was measured, and the store was exported as it is: {other_versions}")
    export = str(options.export) if options.export else None
    document = {"store": str(options.store), **counts, "export": export}
    lines = [
        f"{name.replace('_', ' ')}: {value}"
        for name, value in document.items()
        if value is not None
    ]
    records = troubles.records if troubles else []
    return Output(document | {"troubles": records}, [*([troubles] if troubles else []), *lines])


def collect_options(
    options: argparse.Namespace, gpu: Hardware, devices: tuple[int, ...]
) -> CollectOptions:
    """The collection that the options describe, as yet of no problems."""
    return CollectOptions(
        problems=(),
        store=options.store,
        objects=resolve.object_cache(options, write=True),
        gpu=gpu,
        devices=devices,
        workers=resolve.compilers(options, devices),
        address=resolve.cluster(options),
        seconds=options.budget or float("inf"),
        tell=print_note,
    )


def guided_by_shipped(
    gpu: Hardware, problems: Collection[GemmProblem], power: str = ROBUST
) -> Guided | None:
    """What chooses candidates by the shipped model; None where it does not rank all problems."""
    shipped = nearest_shipped(gpu)
    if shipped and all(ranks_for(shipped.operands, one.operands) for one in problems):
        return Guided(LearnedHeuristic(shipped, power), gpu)
    return None


def measure(wanted: CollectOptions, step: str = "") -> None:
    """Collect and show how far it is, as a step of that name; say first how long it may take."""
    known = measured_so_far(wanted.store)[0]
    missing = len(set(wanted.problems) - known)
    guided = wanted.choose is not None
    how, minutes = "guided" if guided else "exhaustive", expected_seconds(missing, guided) / 60
    begun = False
    with show_progress(step) as show:

        def report(progress: Progress) -> None:
            nonlocal begun
            if not begun:  # once nothing is refused any more
                begun = True
                print_note(
                    f"{missing} of {len(wanted.problems)} problems are to be measured ({how}): "
                    f"some {math.ceil(minutes)} minutes of one GPU; the same command resumes"
                )
            show(progress)

        collect(wanted, report)


def exported(store: MeasurementStore) -> Dataset:
    """What a store holds; says how long that takes."""
    with show_steps("export", 1, _EXPORTED * store.count()):
        return store.export()


def expected_seconds(problems: int, guided: bool) -> float:
    """Seconds of one GPU for some problems, with kernels that are compiled."""
    return problems * (_GUIDED if guided else _EXHAUSTIVE)


def problem_counts(store: MeasurementStore, problems: Collection[GemmProblem]) -> dict[str, int]:
    """How many of the problems a store has measured, and how much it holds in all.

    A problem is measured when its best candidates were raced, and verified when they were timed
    again.
    """
    wanted = set(problems)
    return {
        "problems": len(wanted),
        "measured": len(store.measured("race") & wanted),
        "verified": len(store.measured("verify") & wanted),
        "measurements": store.count(),
        "failed_kernels": sum(reason is not None for reason in store.checks().values()),
    }


def check_measured(counts: Mapping[str, int]) -> None:
    """See that a command measured one of its problems; ``counts`` as `problem_counts`."""
    if not counts["measured"]:
        raise TilecastError(
            f"none of the {counts['problems']} problems was measured, and "
            f"{counts['failed_kernels']} kernels failed; allowed: more time, as the same command "
            "resumes, or a GPU that runs them; see `tilecast doctor`"
        )


def measured_so_far(path: Path) -> tuple[set[GemmProblem], list[dict[str, Any]]]:
    """The problems that a store has measured, and its runs; none where there is no store yet."""
    if not path.exists():
        return set(), []
    with closing(MeasurementStore(path)) as store:
        return store.measured("race"), store.runs()
