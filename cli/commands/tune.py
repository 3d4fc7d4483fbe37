"""Measure problems of one's own, learn from them beside a data set, and say what that gave."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Any

from tilecast.cli.commands.evaluate import SHOWN_K
from tilecast.cli.options import argtypes, resolve
from tilecast.cli.options import options as shared
from tilecast.cli.options.load_measurements import shipped_datasets
from tilecast.cli.output.collect_progress import (
    measure,
    nothing_measured,
    progress,
    so_far,
    writable_objects,
)
from tilecast.cli.output.output import Answer
from tilecast.heuristics.errors import TilecastError
from tilecast.inductor_hook.names import MODEL
from tilecast.reporting.table import Table

if TYPE_CHECKING:
    from tilecast.data_collection.dataset.dataset import Dataset
    from tilecast.heuristics.problem import GemmProblem
    from tilecast.models.learning.labels import ProblemLabels
    from tilecast.models.runtime.artifact import Artifact

NAME = "tune"
HELP = "measure problems of one's own and train a model that knows them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    shared.add_own_problems(parser)
    shared.add_collection(parser)
    about = f"folder that the model goes to; {MODEL} names it"
    parser.add_argument("--out", type=argtypes.path, required=True, help=about)
    shared.add_data(parser)
    shared.add_gpu(parser)
    shared.add_compiling(parser)


def run(options: argparse.Namespace) -> Answer:
    """Collect what the shipped model likes, train on all, score both models on one's own."""
    from tilecast.data_collection.dataset.dataset import read_dataset
    from tilecast.models.apply.guidance import Guided
    from tilecast.models.learning.folds import too_few
    from tilecast.models.learning.labels import label_table
    from tilecast.models.learning.training import train
    from tilecast.models.learning.training_sets import by_gpu, dataset_hardware
    from tilecast.models.runtime.artifact import save
    from tilecast.models.runtime.learned import load_heuristic_for

    resolve.check_own_problems(options)
    own, gpu = resolve.own_problems(options), resolve.gpu(options)
    if not own:
        raise TilecastError("no problem is given; allowed: --problems or --hf-config")
    resolve.check_apart(options, options.out)
    resolve.check_writable(options.out)
    objects = writable_objects(options)
    known = [read_dataset(options.data)] if options.data else shipped_datasets(gpu)
    heuristic = load_heuristic_for(gpu, own)
    own = resolve.ranked(heuristic, own)
    of_gpu = [one.problems() for one in known if dataset_hardware(one).same_gpu(gpu)]
    if why := too_few(chain(own, so_far(options.store)[0], *of_gpu)):
        raise TilecastError(why)
    measure(options, objects, own, Guided(heuristic, gpu))
    measured, done = _measured(options, own)
    table = [labels for labels in label_table(measured) if labels.problem in done]
    artifact = train(by_gpu([measured, *known]), jobs=resolve.workers(options))
    save(artifact, options.out)
    models = {"shipped": heuristic.artifact, "tuned": artifact}
    document = {
        "model": str(options.out),
        "problems": len(own),
        "measured": len(table),
        "regret": {name: _regret(model, table) for name, model in models.items()},
    }
    return Answer(document, [_table(document), f"{MODEL}={options.out}"])


def _measured(
    options: argparse.Namespace, own: Sequence[GemmProblem]
) -> tuple[Dataset, set[GemmProblem]]:
    """All that the store holds, and those of one's own problems that were raced.

    Raises:
        TilecastError: none was.
    """
    from tilecast.data_collection.jobs.store import MeasurementStore

    with closing(MeasurementStore(options.store)) as store:
        done = store.measured("race") & set(own)
        if not done:
            raise nothing_measured(options, progress(store, own))
        return store.export(), done


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


def _regret(artifact: Artifact, table: Sequence[ProblemLabels]) -> dict[str, dict[int, float]]:
    """Geometric mean regret of a model as it is, by power and number of kernels."""
    from tilecast.models.evaluation.evaluation import held_out, unfitted
    from tilecast.models.evaluation.regret import regrets
    from tilecast.models.learning.labels import spread
    from tilecast.models.runtime.learned import LearnedHeuristic
    from tilecast.models.runtime.objectives import OBJECTIVES

    found = {}
    for power in OBJECTIVES:
        one = LearnedHeuristic(artifact, power)
        asked = held_out(lambda _, __, one=one: one, table, power, unfitted(table))
        by_k = regrets(asked, table)
        found[power] = {k: spread(by_k[:, k - 1])["geomean"] for k in SHOWN_K}
    return found
