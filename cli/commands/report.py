"""Show a data set, a store or a model as one HTML file that needs no network.

With scores it fits every heuristic on parts of the data set, which takes a minute for 500 problems.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from tilecast.cli.commands.evaluate import all_fits, of_kinds
from tilecast.cli.options import argtypes, resolve
from tilecast.cli.options import options as shared
from tilecast.cli.options.load_measurements import DATA
from tilecast.cli.output.output import Answer
from tilecast.heuristics.errors import TilecastError

if TYPE_CHECKING:
    from tilecast.data_collection.dataset.dataset import Dataset
    from tilecast.models.learning.labels import ProblemLabels
    from tilecast.models.runtime.artifact import Artifact
    from tilecast.models.runtime.learned import LearnedHeuristic
    from tilecast.reporting.page import Section

NAME = "report"
HELP = "show a data set, a store or a model as one HTML file"

_STORE = b"SQLite format 3\0"
"""How the file of a store begins."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    about = "a data set (Parquet), a store of `tilecast collect`, or the folder of a model"
    parser.add_argument("source", type=argtypes.path, metavar="SOURCE", help=about)
    about = "the HTML file to write"
    parser.add_argument("--out", type=argtypes.path, required=True, metavar="FILE", help=about)
    shared.add_model(parser)
    about = "leave out held-out regret, for which every heuristic is fitted"
    parser.add_argument("--no-scores", action="store_true", help=about)
    about = "write the model's first choices, too; CSV or JSON by the name"
    parser.add_argument("--choices", type=argtypes.path, metavar="FILE", help=about)
    shared.add_parallel(parser, "--jobs", "fits that run side by side")


def run(options: argparse.Namespace) -> Answer:
    """Read, draw and write."""
    from tilecast.models.learning.labels import label_table
    from tilecast.reporting.choices import choices, write_choices
    from tilecast.reporting.page import write_page
    from tilecast.reporting.sections import dataset_sections, doubt_section

    _check_outputs(options)
    if options.source.is_dir():
        dataset, heuristic, sections = _of_model(options)
    else:
        dataset, heuristic, sections = *_of_measurements(options), []
    table = label_table(dataset) if dataset else []
    found = []
    if heuristic and table:
        problems = resolve.ranked(heuristic, (labels.problem for labels in table))
        found = choices(heuristic, problems, heuristic.artifact.hardware)
    if dataset:
        sections += dataset_sections(dataset, table, options.power)
        if not options.no_scores and not options.source.is_dir():
            sections.append(_scores(dataset, table, options))
    if heuristic and found:
        sections.append(doubt_section(found, heuristic.artifact.name))
    if options.choices:
        write_choices(found, options.choices)
    write_page(options.out, f"tilecast: {options.source.name}", sections)
    document = {
        "out": str(options.out),
        "bytes": options.out.stat().st_size,
        "problems": len(table),
        "sections": [section.title for section in sections],
        "choices": str(options.choices) if options.choices else None,
    }
    shown = f"{options.out}: {document['bytes'] / 1e6:.1f} MB, {len(table)} problems"
    more = [f"{options.choices}: {len(found)} choices"] if options.choices else []
    return Answer(document, [shown, *more])


def _check_outputs(options: argparse.Namespace) -> None:
    """See, before the work, that what is asked for can be written.

    Raises:
        TilecastError: it cannot.
    """
    from tilecast.reporting.page import library

    library()
    resolve.check_apart(options, options.out, options.choices)
    resolve.check_file(options.out)
    if options.choices:
        resolve.check_choices(options.choices)


def _of_model(
    options: argparse.Namespace,
) -> tuple[Dataset | None, LearnedHeuristic, list[Section]]:
    """What a model was measured on, or else what is shipped for its GPU; the model; its own words.

    Raises:
        TilecastError: the model is refused, or something is asked that a model does not answer.
    """
    from tilecast.data_collection.dataset.dataset import read_dataset, shipped_data
    from tilecast.models.runtime.artifact import load
    from tilecast.models.runtime.learned import LearnedHeuristic
    from tilecast.reporting.sections import model_section

    if options.model:
        raise TilecastError(f"--model is for measurements; allowed: {options.source} by itself")
    artifact = load(options.source)
    dataset = _learned_from(options.source / DATA, artifact)
    if dataset is None and (data := shipped_data(artifact.hardware)):
        dataset = read_dataset(data)
    if options.choices and dataset is None:
        raise TilecastError(
            f"no data set is shipped for {artifact.name}, whose problems --choices would be for; "
            "allowed: a data set as the source, with --model"
        )
    sections = [model_section(artifact.name, artifact.facts)]
    heuristic = LearnedHeuristic(artifact, options.power)
    return dataset, heuristic, sections


def _learned_from(file: Path, artifact: Artifact) -> Dataset | None:
    """The measurements beside a model, where they are there and the model learned from them.

    Raises:
        TilecastError: they are there and cannot be read.
    """
    from tilecast.data_collection.dataset.dataset import read_dataset
    from tilecast.models.runtime.manifest import learned_from

    if not file.exists():
        return None
    dataset = read_dataset(file)
    return dataset if dataset.digest in learned_from(artifact.facts) else None


def _of_measurements(options: argparse.Namespace) -> tuple[Dataset, LearnedHeuristic | None]:
    """The measurements of a data set or store, and the model for them, if there is one.

    Raises:
        TilecastError: they cannot be read, or there are none; or a model is asked for, and there is
            none.
    """
    from tilecast.models.learning.training_sets import dataset_hardware
    from tilecast.models.runtime.learned import load_heuristic_for

    dataset = _measurements(options.source)
    if dataset.rows.empty:
        raise TilecastError(
            f"{options.source} holds no measurement yet; allowed: one at least; run `tilecast "
            "collect`, or the command that began it, which goes on"
        )
    gpu = dataset_hardware(dataset)
    try:
        problems = dataset.problems()
        return dataset, load_heuristic_for(gpu, problems, options.power, options.model)
    except TilecastError:
        if options.model or options.choices:
            raise
        return dataset, None


def _measurements(source: Path) -> Dataset:
    """What a store holds, or a data set.

    Raises:
        TilecastError: it cannot be read.
    """
    from tilecast.data_collection.dataset.dataset import read_dataset
    from tilecast.data_collection.jobs.store import MeasurementStore

    if not source.is_file():
        return read_dataset(source)
    with source.open("rb") as file:
        is_store = file.read(len(_STORE)) == _STORE
    if not is_store:
        return read_dataset(source)
    with closing(MeasurementStore(source)) as store:
        return store.export()


def _scores(
    dataset: Dataset, table: Sequence[ProblemLabels], options: argparse.Namespace
) -> Section:
    """Held-out regret of every heuristic on what `evaluate` scores, or why there is none."""
    from tilecast.models.evaluation.evaluation import evaluate
    from tilecast.models.learning.training_sets import dataset_hardware
    from tilecast.reporting.page import Section
    from tilecast.reporting.sections import score_section

    fits = all_fits(dataset_hardware(dataset))
    try:
        among = of_kinds(None, table)
        scored = evaluate(list(fits.values()), table, [options.power], options.jobs, among=among)
    except TilecastError as error:
        # Of a collection that has only begun there is still all the rest to see.
        return Section("Held-out regret", [f"Not scored: {error}"])
    return score_section(scored, options.power)
