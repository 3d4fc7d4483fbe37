"""Show a data set or a model as one HTML file that needs no network.

With scores it fits every heuristic on parts of the data set: a minute for 500 problems.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tilecast.cli.commands.evaluate import default_scores
from tilecast.cli.options import argtypes, arguments, resolve
from tilecast.cli.options.load_measurements import labelled
from tilecast.cli.options.output_paths import DATA, check_distinct, check_file
from tilecast.cli.output.output import Output
from tilecast.cli.output.progress import SECONDS_TO_RANK, show_each
from tilecast.data_collection.dataset.dataset import Dataset, read_dataset, shipped_data
from tilecast.heuristics.errors import TilecastError
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.learning.training_sets import Measurements, dataset_hardware
from tilecast.models.runtime.artifact import Artifact, load
from tilecast.models.runtime.known_operands import check_ranks_for, ranks_for
from tilecast.models.runtime.learned import LearnedHeuristic, model_for
from tilecast.models.runtime.manifest import learned_from
from tilecast.reporting.choices import choices
from tilecast.reporting.page import Section, library, write_page
from tilecast.reporting.sections import (
    dataset_sections,
    doubt_section,
    model_section,
    score_section,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    about = "a data set (Parquet), or the folder of a model"
    parser.add_argument("source", type=argtypes.path, metavar="SOURCE", help=about)
    about = "the HTML file to write"
    parser.add_argument("--out", type=argtypes.path, required=True, metavar="FILE", help=about)
    arguments.add_model(parser)
    about = "leave out held-out regret, for which every heuristic is fitted"
    parser.add_argument("--no-scores", action="store_true", help=about)
    arguments.add_jobs(parser)


def run(options: argparse.Namespace) -> Output:
    """Read, draw and write."""
    library()
    check_distinct(options, options.out)
    check_file(options.out)
    of_model = options.source.is_dir()
    dataset, artifact = _model(options) if of_model else _measurements(options)
    sections = [model_section(artifact.name, artifact.facts)] if of_model and artifact else []
    table = []
    if dataset:
        measured = Measurements(dataset_hardware(dataset), (dataset,))
        table = labelled(measured)
        scores = None if options.no_scores or of_model else _scores(measured, options)
        sections += measured_sections(dataset, table, options.power, artifact, scores)
    write_page(options.out, f"tilecast: {options.source.name}", sections)
    document = {
        "out": str(options.out),
        "bytes": options.out.stat().st_size,
        "problems": len(table),
        "sections": [section.title for section in sections],
    }
    megabytes = document["bytes"] / 1e6
    return Output(document, [f"{options.out}: {megabytes:.1f} MB, {len(table)} problems"])


def measured_sections(
    dataset: Dataset,
    table: Sequence[ProblemLabels],
    power: str,
    artifact: Artifact | None,
    scores: Section | None,
) -> list[Section]:
    """What was measured, the scores, and where a model is unsure of it."""
    sections = [*dataset_sections(dataset, table, power), *([scores] if scores else [])]
    if artifact and table:
        heuristic = LearnedHeuristic(artifact, power)
        problems = resolve.ranked(heuristic, (labels.problem for labels in table))
        asked = show_each("predict", problems, SECONDS_TO_RANK)
        found = choices(heuristic, asked, artifact.hardware)
        sections.append(doubt_section(found, artifact.name))
    return sections


def _model(options: argparse.Namespace) -> tuple[Dataset | None, Artifact]:
    """What a model was measured on, or else what is shipped for its GPU; and the model."""
    if options.model:
        raise TilecastError(f"--model is for measurements; allowed: {options.source} by itself")
    artifact = load(options.source)
    dataset, beside = None, options.source / DATA
    if beside.exists():
        dataset = read_dataset(beside)
        if dataset.digest not in learned_from(artifact.facts):
            dataset = None
    if dataset is None and (data := shipped_data(artifact.hardware)):
        dataset = read_dataset(data)
    return dataset, artifact


def _measurements(options: argparse.Namespace) -> tuple[Dataset, Artifact | None]:
    """A data set, and the model for it; TilecastError where one is asked for, and there is none."""
    dataset = read_dataset(options.source)
    try:
        artifact = model_for(dataset_hardware(dataset), options.model)
        kinds = [problem.operands for problem in dataset.problems()]
        if kinds and not any(ranks_for(artifact.operands, kind) for kind in kinds):
            check_ranks_for(artifact.operands, kinds[0])
        return dataset, artifact
    except TilecastError:
        if options.model:
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
