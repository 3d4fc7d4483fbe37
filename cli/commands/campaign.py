"""From a GPU to a model of it: describe, measure, compare cards, train, score and report.

The store holds the state: the same command resumes where the last one ended or was killed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tilecast.cli.commands.collect import (
    check_measured,
    collect_options,
    expected_seconds,
    exported,
    guided_by_shipped,
    measure,
    measured_so_far,
    problem_counts,
)
from tilecast.cli.commands.evaluate import default_scores, score_tables
from tilecast.cli.commands.report import measured_sections
from tilecast.cli.commands.train import SECONDS_TO_FIT, train_shown
from tilecast.cli.options import argtypes, arguments, resolve
from tilecast.cli.options.load_measurements import labelled, shipped_datasets
from tilecast.cli.options.output_paths import DATA, check_distinct, check_writable
from tilecast.cli.output.output import Output, print_note
from tilecast.cli.output.progress import show_steps
from tilecast.data_collection.dataset.dataset import Dataset, write_dataset
from tilecast.data_collection.gpu.environment import check_there
from tilecast.data_collection.gpu.gpu_model import visible_gpu_names
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.run.cards import card_times, spread
from tilecast.data_collection.run.collect import (
    CollectOptions,
    odd,
    shared_by_others,
    target_gpu,
)
from tilecast.heuristics.config import Candidates
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem
from tilecast.inductor_hook.names import MODEL
from tilecast.kernels.candidates import space
from tilecast.models.apply.guidance import Guided
from tilecast.models.learning.fit_ranker import fit_ranker
from tilecast.models.learning.folds import too_few
from tilecast.models.learning.labels import label_table
from tilecast.models.learning.training_sets import Measurements, dataset_hardware
from tilecast.models.runtime.artifact import Artifact, load, save
from tilecast.models.runtime.manifest import MANIFEST, learned_from
from tilecast.models.runtime.objectives import OBJECTIVES
from tilecast.models.runtime.unmeasured import AnalyticOrder
from tilecast.reporting.cards import card_differences, card_table, trouble_table
from tilecast.reporting.noise import noise_table, repeats
from tilecast.reporting.page import Section, can_draw, write_page
from tilecast.reporting.sections import model_section, score_section
from tilecast.reporting.table import Table

REPORT = "report.html"
"""Beside the model and its measurements in their folder."""
PILOT_SECONDS, PILOT_KERNELS = 60.0, 8
"""Longest a pilot may take, and the kernels that it measures."""
PLANNED = {"stage": "", "problems": "d", "candidates": "", "minutes of a GPU": ".1f"}
"""Columns of what a campaign would do."""
FIRST_PROBLEMS = 24
"""Problems whose candidates are all measured where no model says which are worth it."""


@dataclass(frozen=True)
class Stage:
    """One part of a campaign; the store says how far it is."""

    name: str
    """What it is called."""
    problems: tuple[GemmProblem, ...]
    """What is measured by its end, beside what was before."""
    learns: bool = False
    """Whether a ranker of what was measured before chooses among their candidates."""


def stages(problems: Sequence[GemmProblem], guided: bool) -> tuple[Stage, ...]:
    """The parts of a campaign in their order; ``guided``: a model chooses from the beginning."""
    cards, every = Stage("cards", spread(problems)), tuple(problems)
    if guided:
        return cards, Stage("collect", every)
    first = dict.fromkeys([*cards.problems, *spread(problems, FIRST_PROBLEMS)])
    return cards, Stage("explore", tuple(first)), Stage("collect", every, learns=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    arguments.add_collection(parser, "all")
    about = "folder of the model, with the measurements and a report beside it"
    parser.add_argument("--out", type=argtypes.path, required=True, help=about)
    about = "say what it takes and what is odd about the cards, and measure one problem as a trial"
    parser.add_argument("--dry-run", action="store_true", help=about)
    arguments.add_suites(parser)
    arguments.add_compiling(parser)


def run(options: argparse.Namespace) -> Output:
    """Measure stage by stage, then train, score and report."""
    start = time.monotonic()
    out, drawn = options.out, can_draw()
    if not drawn:
        print_note(f"plotly is not installed, so no {REPORT} will be written")
    check_distinct(options, out, out / DATA, out / REPORT)
    check_writable(out)
    problems = resolve.suite_and_own_problems(options)
    known, runs = measured_so_far(options.store)
    if why := too_few([*problems, *known]):
        raise TilecastError(why)
    if options.dry_run:
        return _dry_run(_wanted(options, problems, runs), known)
    _measure(options, problems, runs, start)
    with closing(MeasurementStore(options.store)) as store:
        dataset, counts = exported(store), problem_counts(store, problems)
    check_measured(counts)
    gpu = dataset_hardware(dataset)
    measured = Measurements(gpu, (dataset,), tuple(shipped_datasets(gpu)))
    write_dataset(dataset, out / DATA)  # first, so that they are there whatever fails later
    artifact, scored = None, None
    labelled(measured)
    why = too_few(labels.problem for labels in measured.own)
    if not why:
        artifact = _trained(measured, options)
        scored = default_scores(measured, OBJECTIVES, resolve.workers(options))
    if drawn:
        power = arguments.DEFAULT_POWER
        about = Section("The model", [f"Not trained or scored: {why}"])
        if artifact:
            about = model_section(artifact.name, artifact.facts)
        scores = score_section(scored, power) if scored else None
        sections = measured_sections(dataset, measured.own, power, artifact, scores)
        write_page(out / REPORT, f"tilecast: {gpu.name}", [about, *sections])
    seconds = round(time.monotonic() - start, 1)
    facts = {"model": str(out) if artifact else None, "gpu": gpu.facts(), "seconds": seconds}
    return _output(facts | {"no_model": why}, counts, dataset, scored)


def _output(
    facts: Mapping[str, Any],
    counts: Mapping[str, int],
    dataset: Dataset,
    scored: Mapping[str, Any] | None,
) -> Output:
    """How much is measured, how the cards differ, and the scores, or why there are none."""
    runs = dataset.provenance["runs"]
    cards, troubles = card_differences(card_times(runs)), trouble_table(runs)
    document = {
        **facts,
        **counts,
        "cards": [asdict(card) for card in cards],
        "troubles": troubles.records if troubles else [],
        "scores": scored,
        "files": [*([MANIFEST] if scored else []), DATA, *([REPORT] if can_draw() else [])],
    }
    summary = (
        f"{counts['measured']} of {counts['problems']} problems measured, {counts['verified']} "
        f"verified, {counts['measurements']} measurements; the same command resumes"
    )
    tables = [
        *(score_tables(scored, OBJECTIVES) if scored else []),
        noise_table(repeats(dataset.rows)),
    ]
    tables += [table for table in (card_table(cards), troubles) if table]
    last = f"{MODEL}={facts['model']}" if scored else f"Not trained or scored: {facts['no_model']}"
    return Output(document, [*tables, summary, last])


def _wanted(
    options: argparse.Namespace,
    problems: tuple[GemmProblem, ...],
    runs: Sequence[Mapping[str, Any]],
) -> CollectOptions:
    """What a campaign collects, and how it begins to choose; the GPUs are looked at."""
    address = resolve.cluster(options)
    devices = options.devices or tuple(range(len(visible_gpu_names()))) or (0,)
    resolve.object_cache(options, write=True)  # refused before the GPUs are looked at
    if address is None:
        check_there(devices)
    gpu = target_gpu(devices[0], address, runs)
    for operands in {problem.operands for problem in problems}:
        space(operands, gpu)  # raises where no kernel takes them
    return replace(
        collect_options(options, gpu, devices),
        problems=problems,
        compared=spread(problems),
        choose=guided_by_shipped(gpu, problems),
    )


def _dry_run(wanted: CollectOptions, known: set[GemmProblem]) -> Output:
    """What a campaign would take, what is odd about the cards, and a pilot that keeps nothing."""
    troubles = [] if wanted.address else [*shared_by_others(wanted.devices), *odd(wanted.devices)]
    pilot = min(wanted.problems, key=lambda problem: problem.flops)
    start = time.monotonic()
    with TemporaryDirectory() as folder:
        trial = replace(
            wanted,
            problems=(pilot,),
            store=Path(folder, "pilot.db"),
            compared=(),
            seconds=PILOT_SECONDS,
            choose=_first_few(wanted.gpu),
        )
        measure(trial, "pilot")
        with closing(MeasurementStore(trial.store)) as store:
            counts, cards = problem_counts(store, trial.problems), len(store.runs()[-1]["gpus"])
    check_measured(counts)
    rows = []
    for stage in stages(wanted.problems, guided=wanted.choose is not None):
        missing = set(stage.problems) - known
        known = known | missing
        guided = stage.learns or wanted.choose is not None
        seconds = expected_seconds(len(missing), guided)
        if stage.name == "cards":  # all cards measure these
            seconds *= cards
        rows.append((stage.name, len(missing), "some" if guided else "all", seconds / 60))
    minutes = sum(row[-1] for row in rows)
    document = {
        "gpu": wanted.gpu.facts(),
        "cards": cards,
        "gpu_minutes": round(minutes, 1),
        "minutes": round(minutes / cards, 1),
        "stages": [dict(zip(PLANNED, row, strict=True)) for row in rows],
        "troubles": troubles,
        "pilot": {
            **dict(zip(PROBLEM_FIELDS, pilot.row(), strict=True)),
            "measurements": counts["measurements"],
            "failed_kernels": counts["failed_kernels"],
            "seconds": round(time.monotonic() - start, 1),
        },
    }
    lines = [
        *(f"GPU {trouble['card']}: {trouble['reason']}" for trouble in troubles),
        f"{minutes:.0f} minutes of {wanted.gpu.name}, which are {minutes / cards:.0f} on {cards}, "
        "and some minutes for training; kernels that the cache lacks are compiled meanwhile",
        f"pilot: {pilot} was measured in {document['pilot']['seconds']:.0f} s with its kernels, of "
        f"which {counts['failed_kernels']} failed; nothing is kept but kernels",
    ]
    return Output(document, [Table("To be measured", PLANNED, rows), *lines])


def _first_few(gpu: Hardware) -> Callable[[GemmProblem, Candidates], Candidates]:
    """What chooses the candidates of the pilot, which takes a minute at most to compile them."""
    return lambda problem, every: AnalyticOrder(gpu).rank(problem, every, limit=PILOT_KERNELS)


def _measure(
    options: argparse.Namespace,
    problems: tuple[GemmProblem, ...],
    runs: Sequence[Mapping[str, Any]],
    start: float,
) -> None:
    """Bring the store to where all stages are done, or time is up."""
    wanted = _wanted(options, problems, runs)
    gpu, choose = wanted.gpu, wanted.choose
    plan = stages(problems, guided=choose is not None)
    for place, stage in enumerate(plan, 1):
        left = (options.budget or float("inf")) - (time.monotonic() - start)
        if left <= 0 or (stage.learns and not measured_so_far(options.store)[0]):
            return
        if stage.learns:
            with closing(MeasurementStore(options.store)) as store:
                table = label_table(exported(store))
            with show_steps("learn what to measure", 1, SECONDS_TO_FIT * len(table)):
                choose = Guided(fit_ranker(table, hardware=gpu), gpu)
        stage_options = replace(wanted, problems=stage.problems, seconds=left, choose=choose)
        measure(stage_options, f"{stage.name} ({place} of {len(plan)})")


def _trained(measured: Measurements, options: argparse.Namespace) -> Artifact:
    """The model of these measurements: the one that is there already, or a new one."""
    with suppress(TilecastError):
        there = load(options.out)
        if learned_from(there.facts) == set(measured.digests):
            return there
    artifact = train_shown(measured, resolve.workers(options))
    save(artifact, options.out)
    return artifact
