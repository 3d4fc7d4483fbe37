"""Measure your own problems, learn from them beside a data set, and say what that gave."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import Any

from tilecast.cli.commands.collect import (
    check_measured,
    collect_options,
    exported,
    measure,
    measured_so_far,
    problem_counts,
)
from tilecast.cli.commands.evaluate import SHOWN_K
from tilecast.cli.commands.train import train_shown
from tilecast.cli.options import argtypes, arguments, resolve
from tilecast.cli.options.load_measurements import shipped_datasets
from tilecast.cli.options.output_paths import check_distinct, check_writable
from tilecast.cli.output.output import Output
from tilecast.cli.output.progress import SECONDS_TO_RANK, show_steps
from tilecast.data_collection.dataset.dataset import read_dataset
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.heuristics.errors import TilecastError
from tilecast.inductor_hook.names import MODEL
from tilecast.models.apply.guidance import Guided
from tilecast.models.evaluation.evaluation import held_out, unfitted
from tilecast.models.evaluation.regret import regrets
from tilecast.models.learning.folds import too_few
from tilecast.models.learning.labels import ProblemLabels, label_table, spread
from tilecast.models.learning.training_sets import by_gpu, dataset_hardware
from tilecast.models.runtime.artifact import Artifact, save
from tilecast.models.runtime.learned import LearnedHeuristic, model_for
from tilecast.models.runtime.objectives import OBJECTIVES
from tilecast.reporting.table import Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    arguments.add_own_problems(parser)
    arguments.add_collection(parser)
    about = f"folder that the model goes to; {MODEL} names it"
    parser.add_argument("--out", type=argtypes.path, required=True, help=about)
    arguments.add_data(parser)
    arguments.add_gpu(parser)
    arguments.add_compiling(parser)


def run(options: argparse.Namespace) -> Output:
    """Measure what the shipped model ranks first, train on everything, score both models."""
    own, gpu = resolve.own_problems(options), resolve.gpu(options)
    if not own:
        raise TilecastError("no problem is given; allowed: --problems or --hf-config")
    check_distinct(options, options.out)
    check_writable(options.out)
    wanted = collect_options(options, gpu, options.devices or (0,))
    known = [read_dataset(options.data)] if options.data else shipped_datasets(gpu)
    heuristic = LearnedHeuristic(model_for(gpu, None))
    own = resolve.ranked(heuristic, own)
    of_gpu = [one.problems() for one in known if dataset_hardware(one).same_gpu(gpu)]
    if why := too_few(chain(own, measured_so_far(options.store)[0], *of_gpu)):
        raise TilecastError(why)
    measure(replace(wanted, problems=own, choose=Guided(heuristic, gpu, new=0)))
    with closing(MeasurementStore(options.store)) as store:
        measured, counts = exported(store), problem_counts(store, own)
        raced = store.measured("race") & set(own)
    check_measured(counts)
    table = [labels for labels in label_table(measured) if labels.problem in raced]
    artifact = train_shown(by_gpu([measured, *known]), resolve.workers(options))
    save(artifact, options.out)
    models = {"shipped": heuristic.artifact, "tuned": artifact}
    scored = len(models) * len(OBJECTIVES)
    with show_steps("score", scored, SECONDS_TO_RANK * scored * len(table)) as step:
        regret = {name: _regret(model, table, step) for name, model in models.items()}
    document = {
        "model": str(options.out),
        "problems": len(own),
        "measured": len(table),
        "regret": regret,
    }
    return Output(document, [_table(document), f"{MODEL}={options.out}"])


def _table(document: Mapping[str, Any]) -> Table:
    """Regret of both models, by power and number of kernels."""
    columns = {"model": "", "power": ""} | {f"regret@{k}": ".2%" for k in SHOWN_K}
    rows = [
        (name, power, *found.values())
        for name, powers in document["regret"].items()
        for power, found in powers.items()
    ]
    measured, problems = document["measured"], document["problems"]
    title = f"Regret on {measured} of {problems} problems, which the tuned model has seen"
    return Table(title, columns, rows)


def _regret(
    artifact: Artifact, table: Sequence[ProblemLabels], step: Callable[[], None]
) -> dict[str, dict[int, float]]:
    """Geometric mean regret of a model as it is, by power and number of kernels."""
    found = {}
    for power in OBJECTIVES:
        one = LearnedHeuristic(artifact, power)
        asked = held_out(lambda *_, one=one: one, table, power, unfitted(table))
        by_k = regrets(asked, table)
        found[power] = {k: spread(by_k[:, k - 1])["geomean"] for k in SHOWN_K}
        step()
    return found
