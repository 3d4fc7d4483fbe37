"""Measure problems of one's own, learn from them beside a data set, and say what that gave."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from tilecast.cli import given, values
from tilecast.cli import options as shared
from tilecast.cli.answer import Answer
from tilecast.cli.collection import measure, writable_objects
from tilecast.cli.evaluate import SHOWN_K
from tilecast.cli.measurements import shipped_datasets
from tilecast.heuristics.errors import TilecastError
from tilecast.reporting.table import Table

if TYPE_CHECKING:
    from tilecast.models.artifact import Artifact
    from tilecast.models.labels import ProblemLabels

NAME = "tune"
HELP = "measure problems of one's own and train a model that knows them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    shared.add_own_problems(parser)
    shared.add_collection(parser)
    about = "folder that the model goes to; TILECAST_MODEL names it"
    parser.add_argument("--out", type=values.path, required=True, help=about)
    shared.add_data(parser)
    shared.add_gpu(parser)
    shared.add_compiling(parser)


def run(options: argparse.Namespace) -> Answer:
    """Collect what the shipped model likes, train on all, score both models on one's own."""
    from tilecast.data_collection.dataset import read_dataset
    from tilecast.data_collection.store import MeasurementStore
    from tilecast.models.artifact import save
    from tilecast.models.guidance import Guided
    from tilecast.models.labels import label_table
    from tilecast.models.learned import load_heuristic_for
    from tilecast.models.measurements import by_gpu
    from tilecast.models.training import train

    given.check_own_problems(options)
    own = given.own_problems(options)
    if not own:
        raise TilecastError("no problem is given; allowed: --problems or --hf-config")
    given.check_writable(options.out)
    objects = writable_objects(options)
    known = [read_dataset(options.data)] if options.data else shipped_datasets(given.gpu(options))
    heuristic = load_heuristic_for(given.gpu(options), own)
    measure(options, objects, own, Guided(heuristic, given.gpu(options)))
    with closing(MeasurementStore(options.store)) as store:
        done, measured = store.measured("race") & set(own), store.export()
    if not done:
        raise TilecastError(
            f"none of the {len(own)} problems was measured within --budget {options.budget}; "
            "allowed: more seconds; the same command goes on where this one ended"
        )
    table = [labels for labels in label_table(measured) if labels.problem in done]
    taught = by_gpu([measured, *known])
    artifact = train(taught, jobs=given.workers(options))
    save(artifact, options.out)
    regret = {
        "shipped": _regret(heuristic.artifact, table),
        "tuned": _regret(artifact, table),
    }
    document = {
        "model": str(options.out),
        "problems": len(own),
        "measured": len(table),
        "regret": regret,
    }
    columns = {"model": "", "power": ""} | {f"regret@{k}": ".2%" for k in SHOWN_K}
    rows = [
        (name, power, *found.values())
        for name, powers in regret.items()
        for power, found in powers.items()
    ]
    title = f"Regret on {len(table)} of {len(own)} problems, which the tuned model has seen"
    return Answer(document, [Table(title, columns, rows), f"TILECAST_MODEL={options.out}"])


def _regret(artifact: Artifact, table: Sequence[ProblemLabels]) -> dict[str, dict[int, float]]:
    """Geometric mean regret of a model as it is, by power and number of kernels."""
    from tilecast.models.evaluation import held_out, unfitted
    from tilecast.models.labels import POWERS
    from tilecast.models.learned import LearnedHeuristic
    from tilecast.models.regret import regrets, spread

    found = {}
    for power in POWERS:
        asked = held_out(lambda p: LearnedHeuristic(artifact, p), table, power, unfitted(table))
        by_k = regrets(asked, table)
        found[power] = {k: spread(by_k[:, k - 1])["geomean"] for k in SHOWN_K}
    return found
