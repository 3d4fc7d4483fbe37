"""From a GPU to a model of it: describe, measure, compare cards, train, score and report.

The store is the state: the same command goes on where it ended or was killed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilecast.cli.commands.evaluate import all_fits, of_kinds, score_tables
from tilecast.cli.diagnosis.machine import visible_gpus
from tilecast.cli.options import argtypes, resolve
from tilecast.cli.options import options as shared
from tilecast.cli.options.load_measurements import DATA, shipped_datasets
from tilecast.cli.output.collect_progress import (
    nothing_measured,
    progress,
    so_far,
    telling,
    writable_objects,
)
from tilecast.cli.output.output import Answer
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import GPUS, Hardware
from tilecast.inductor_hook.names import MODEL

if TYPE_CHECKING:
    from tilecast.data_collection.dataset.dataset import Dataset
    from tilecast.heuristics.problem import GemmProblem
    from tilecast.models.learning.labels import ProblemLabels
    from tilecast.models.learning.training_sets import Measurements
    from tilecast.models.runtime.artifact import Artifact
    from tilecast.reporting.page import Section

NAME = "campaign"
HELP = "measure a GPU, train a model of it, score and report, in one command"

REPORT = "report.html"
"""Beside the model and its measurements in their folder."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    about = "GPU that is expected, or auto for whatever is there (default: auto)"
    parser.add_argument(
        "--gpu", type=argtypes.reads(_gpu_or_any), default=argtypes.AUTO, help=about
    )
    shared.add_collection(parser, "all")
    about = "folder of the model, with the measurements and a report beside it"
    parser.add_argument("--out", type=argtypes.path, required=True, help=about)
    shared.add_suites(parser)
    shared.add_compiling(parser)


def run(options: argparse.Namespace) -> Answer:
    """Measure stage by stage, then learn from it and tell."""
    from tilecast.data_collection.dataset.dataset import write_dataset
    from tilecast.data_collection.jobs.store import MeasurementStore
    from tilecast.models.learning.folds import too_few
    from tilecast.models.learning.training_sets import Measurements, dataset_hardware
    from tilecast.reporting.page import library, write_page

    start = time.monotonic()
    library()
    out = options.out
    resolve.check_apart(options, out, out / DATA, out / REPORT)
    resolve.check_writable(out)
    asked = resolve.asked_problems(options)
    known, runs = so_far(options.store)
    if why := too_few([*asked, *known]):
        raise TilecastError(why)
    _measure(options, asked, runs, start)
    with closing(MeasurementStore(options.store)) as store:
        dataset, counts = store.export(), progress(store, asked)
    if not counts["measured"]:
        raise nothing_measured(options, counts)
    gpu = dataset_hardware(dataset)
    measured = Measurements(gpu, (dataset,), tuple(shipped_datasets(gpu)))
    write_dataset(dataset, out / DATA)  # whatever comes of the rest
    why = too_few(labels.problem for labels in measured.own)
    learned = None if why else _learned(measured, options)
    with telling("report"):
        sections = _page(dataset, measured.own, learned or f"Not trained or scored: {why}")
        write_page(out / REPORT, f"tilecast: {gpu.name}", sections)
    seconds = round(time.monotonic() - start, 1)
    facts = {"model": str(out) if learned else None, "gpu": gpu.facts(), "seconds": seconds}
    return _answer(facts | {"no_model": why}, counts, dataset, learned[1] if learned else None)


def _learned(
    measured: Measurements, options: argparse.Namespace
) -> tuple[Artifact, dict[str, Any]]:
    """The model of these measurements, and what is said of it on held-out families."""
    with telling("train"):
        artifact = _trained(measured, options)
    with telling("evaluate"):
        return artifact, _scored(measured, resolve.workers(options))


def _scored(measured: Measurements, jobs: int) -> dict[str, Any]:
    """What `tilecast evaluate` says of these measurements."""
    from tilecast.models.evaluation.evaluation import evaluate
    from tilecast.models.runtime.objectives import OBJECTIVES

    fits, among = all_fits(measured.gpu).values(), of_kinds(None, measured.own)
    return evaluate(list(fits), measured.table, OBJECTIVES, jobs, among=among)


def _answer(
    facts: Mapping[str, Any],
    counts: Mapping[str, int],
    dataset: Dataset,
    scored: dict[str, Any] | None,
) -> Answer:
    """How far it is, how the cards differ, and how well the model does, or why there is none."""
    from tilecast.data_collection.run.cards import card_times
    from tilecast.models.runtime.manifest import MANIFEST
    from tilecast.models.runtime.objectives import OBJECTIVES
    from tilecast.reporting.cards import card_differences, card_table, trouble_table
    from tilecast.reporting.noise import noise_table, repeats

    runs = dataset.provenance["runs"]
    cards, troubles = card_differences(card_times(runs)), trouble_table(runs)
    document = {
        **facts,
        **counts,
        "cards": [asdict(card) for card in cards],
        "troubles": troubles.records if troubles else [],
        "scores": scored,
        "files": [MANIFEST, DATA, REPORT] if scored else [DATA, REPORT],
    }
    summary = (
        f"{counts['measured']} of {counts['problems']} problems measured, {counts['verified']} "
        f"verified, {counts['measurements']} measurements; the same command goes on"
    )
    tables = [
        *(score_tables(scored, OBJECTIVES) if scored else []),
        noise_table(repeats(dataset.rows)),
    ]
    tables += [table for table in (card_table(cards), troubles) if table]
    last = f"{MODEL}={facts['model']}" if scored else f"Not trained or scored: {facts['no_model']}"
    return Answer(document, [*tables, summary, last])


def _measure(
    options: argparse.Namespace,
    asked: tuple[GemmProblem, ...],
    runs: Sequence[Mapping[str, Any]],
    start: float,
) -> None:
    """Bring the store to where all stages are done, or time is up."""
    from tilecast.data_collection.gpu.environment import check_there
    from tilecast.data_collection.run.cards import spread
    from tilecast.data_collection.run.collect import CollectOptions, collect
    from tilecast.kernels.candidates import space
    from tilecast.models.apply.campaign import Guide, can_guide, guided, stages
    from tilecast.models.runtime.nearest_gpu import nearest_shipped

    address = resolve.cluster(options)
    objects = writable_objects(options)
    devices = options.devices or tuple(range(len(visible_gpus()))) or (0,)
    if address is None:
        check_there(devices)
    gpu = _measured_gpu(options, devices[0], address, runs)
    for operands in {problem.operands for problem in asked}:
        space(operands, gpu)  # of none at all, this says so
    shipped = nearest_shipped(gpu)
    plan = stages(asked, can_guide(shipped, asked))
    for place, stage in enumerate(plan, 1):
        left = (options.budget or float("inf")) - (time.monotonic() - start)
        if left <= 0 or (stage.guide is Guide.MEASURED and not so_far(options.store)[0]):
            return
        wanted = CollectOptions(
            problems=stage.problems,
            store=options.store,
            objects=objects,
            gpu=gpu,
            devices=devices,
            workers=resolve.compilers(options, devices),
            address=address,
            compared=spread(asked),
            seconds=left,
            choose=guided(stage.guide, gpu, shipped, lambda: _stored(options.store)),
        )
        with telling(f"{stage.name} ({place} of {len(plan)})") as tell:
            collect(wanted, tell)


def _gpu_or_any(name: str) -> Hardware | None:
    return None if name == argtypes.AUTO else shared.known_or_here(name)


def _measured_gpu(
    options: argparse.Namespace,
    device: int,
    address: str | None,
    runs: Sequence[Mapping[str, Any]],
) -> Hardware:
    """The GPU model that is measured: this host's device's, or that of the cluster at an address.

    What tilecast does not describe is asked what it is, whether or not it is named: its rates are
    those that measurements so far state, or are measured now.

    Raises:
        TilecastError: there is none, its driver does not answer, or it is not the one named.
    """
    if options.gpu in GPUS:
        return options.gpu
    from tilecast.data_collection.run.collect import target_gpu

    found = target_gpu(device, address, runs)
    if options.gpu is not None and not found.same_gpu(options.gpu):
        where, how = (
            (f"device {device} is", "name its --devices")
            if address is None
            else ("the Ray cluster has", "leave --gpu out, or name another --address")
        )
        raise TilecastError(
            f"{where} an {found.name}; allowed: an {options.gpu.name}, which --gpu names; {how}"
        )
    return found


def _stored(path: Path) -> Dataset:
    from tilecast.data_collection.jobs.store import MeasurementStore

    with closing(MeasurementStore(path)) as store:
        return store.export()


def _trained(measured: Measurements, options: argparse.Namespace) -> Artifact:
    """The model of these measurements: the one that is there already, or a new one."""
    from tilecast.models.learning.training import train
    from tilecast.models.runtime.artifact import load, save
    from tilecast.models.runtime.manifest import learned_from

    with suppress(TilecastError):
        there = load(options.out)
        if learned_from(there.facts) == set(measured.digests):
            return there
    artifact = train(measured, jobs=resolve.workers(options))
    save(artifact, options.out)
    return artifact


def _page(
    dataset: Dataset, table: Sequence[ProblemLabels], learned: tuple[Artifact, dict[str, Any]] | str
) -> list[Section]:
    """What `tilecast report` shows of a data set and of a model, in one; or why there is none."""
    from tilecast.models.runtime.learned import LearnedHeuristic
    from tilecast.reporting.choices import choices
    from tilecast.reporting.page import Section
    from tilecast.reporting.sections import (
        dataset_sections,
        doubt_section,
        model_section,
        score_section,
    )

    power = shared.DEFAULT_POWER
    measured = dataset_sections(dataset, table, power)
    if isinstance(learned, str):
        return [Section("The model", [learned]), *measured]
    artifact, scored = learned
    problems = [labels.problem for labels in table]
    found = choices(LearnedHeuristic(artifact, power), problems, artifact.hardware)
    return [
        model_section(artifact.name, artifact.facts),
        *measured,
        score_section(scored, power),
        doubt_section(found, artifact.name),
    ]
