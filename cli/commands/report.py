"""Show a data set, a store or a model as one HTML file that needs no network.

With scores it fits every heuristic on parts of the data set: a minute for 500 problems.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tilecast.cli.commands.evaluate import default_scores
from tilecast.cli.options import argtypes, arguments, resolve
from tilecast.cli.options.load_measurements import DATA, read_dataset_or_store
from tilecast.cli.options.output_paths import check_choices, check_distinct, check_file
from tilecast.cli.output.output import Output
from tilecast.data_collection.dataset.dataset import Dataset, read_dataset, shipped_data
from tilecast.heuristics.errors import TilecastError
from tilecast.models.learning.training_sets import Measurements, dataset_hardware
from tilecast.models.runtime.artifact import Artifact, load
from tilecast.models.runtime.learned import LearnedHeuristic, load_heuristic_for
from tilecast.models.runtime.manifest import learned_from
from tilecast.reporting.choices import choices, write_choices
from tilecast.reporting.page import Section, library, write_page
from tilecast.reporting.sections import (
    dataset_sections,
    doubt_section,
    model_section,
    score_section,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    about = "a data set (Parquet), a store of `tilecast collect`, or the folder of a model"
    parser.add_argument("source", type=argtypes.path, metavar="SOURCE", help=about)
    about = "the HTML file to write"
    parser.add_argument("--out", type=argtypes.path, required=True, metavar="FILE", help=about)
    arguments.add_model(parser)
    about = "leave out held-out regret, for which every heuristic is fitted"
    parser.add_argument("--no-scores", action="store_true", help=about)
    arguments.add_choices(parser)
    arguments.add_jobs(parser)


def run(options: argparse.Namespace) -> Output:
    """Read, draw and write."""
    library()
    check_distinct(options, options.out, options.choices)
    check_file(options.out)
    if options.choices:
        check_choices(options.choices)
    if options.source.is_dir():
        dataset, heuristic = _model(options)
        sections = [model_section(heuristic.artifact.name, heuristic.artifact.facts)]
    else:
        dataset, heuristic = _measurements(options)
        sections = []
    table, found = [], []
    if dataset:
        measured = Measurements(dataset_hardware(dataset), (dataset,))
        table = measured.own
        sections += dataset_sections(dataset, table, options.power)
        if not options.no_scores and not options.source.is_dir():
            sections.append(_scores(measured, options))
    if heuristic and table:
        problems = resolve.ranked(heuristic, (labels.problem for labels in table))
        found = choices(heuristic, problems, heuristic.artifact.hardware)
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
    return Output(document, [shown, *more])


def _model(options: argparse.Namespace) -> tuple[Dataset | None, LearnedHeuristic]:
    """What a model was measured on, or else what is shipped for its GPU; and the model."""
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
    return dataset, LearnedHeuristic(artifact, options.power)


def _learned_from(file: Path, artifact: Artifact) -> Dataset | None:
    """The measurements beside a model, where they are there and the model learned from them."""
    if not file.exists():
        return None
    dataset = read_dataset(file)
    return dataset if dataset.digest in learned_from(artifact.facts) else None


def _measurements(options: argparse.Namespace) -> tuple[Dataset, LearnedHeuristic | None]:
    """The measurements of a data set or store, and the model for them, if there is one.

    Raises:
        TilecastError: there are no measurements; or a model is asked for, and there is none.
    """
    dataset = read_dataset_or_store(options.source)
    if dataset.rows.empty:
        raise TilecastError(
            f"{options.source} holds no measurement yet; allowed: one at least; run `tilecast "
            "collect`, or the command that began it, which resumes"
        )
    gpu = dataset_hardware(dataset)
    try:
        problems = dataset.problems()
        return dataset, load_heuristic_for(gpu, problems, options.power, options.model)
    except TilecastError:
        if options.model or options.choices:
            raise
        return dataset, None


def _scores(measured: Measurements, options: argparse.Namespace) -> Section:
    """Held-out regret of every heuristic on what `evaluate` scores, or why there is none."""
    try:
        scored = default_scores(measured, [options.power], options.jobs)
    except TilecastError as error:
        # Of a collection that has only begun, the page still shows all the rest.
        return Section("Held-out regret", [f"Not scored: {error}"])
    return score_section(scored, options.power)
