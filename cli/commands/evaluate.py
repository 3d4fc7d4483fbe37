"""Score heuristics side by side on families of problems that they have not seen.

With problems of one's own, on those of them that were measured; the whole data set is learned from.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tilecast.cli.options import argtypes, resolve
from tilecast.cli.options import options as shared
from tilecast.cli.options.load_measurements import files_line, read_measurements
from tilecast.cli.output.output import Answer
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.reporting.figure_columns import LIBRARY, LIBRARY_COLUMNS, REGRET, REGRET_COLUMNS
from tilecast.reporting.table import Table

if TYPE_CHECKING:
    from pathlib import Path

    from tilecast.heuristics.hardware import Hardware
    from tilecast.heuristics.problem import GemmProblem
    from tilecast.models.evaluation.evaluation import Fit
    from tilecast.models.learning.labels import ProblemLabels
    from tilecast.models.learning.training_sets import Measurements
    from tilecast.models.runtime.artifact import Artifact

NAME = "evaluate"
HELP = "score the learned heuristics and the baselines on held-out families"

SHOWN_K = (1, 3, 5)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    shared.add_data(parser)
    about = "a further data set, learned from; scored, too, where it is of the same GPU"
    shared.add_further_data(parser, about)
    shared.add_own_problems(parser)
    parser.add_argument(
        "--operands",
        type=argtypes.reads(GemmOperands.parse),
        action="append",
        metavar="TEXT",
        help=f"score the problems of these operands only; repeatable (default: {LINEAR_BF16})",
    )
    about = "score this trained model, too; on data that it was not trained on"
    parser.add_argument("--model", type=argtypes.path, help=about)
    about = "score this heuristic only; repeatable"
    parser.add_argument("--only", action="append", metavar="NAME", help=about)
    about = "burst, sustained or robust (default: all); repeatable"
    parser.add_argument("--power", type=argtypes.power, action="append", help=about)
    shared.add_parallel(parser, "--jobs", "fits that run side by side")


def run(options: argparse.Namespace) -> Answer:
    """Fit, ask and score every heuristic, fold by fold."""
    from tilecast.models.evaluation.evaluation import evaluate
    from tilecast.models.runtime.artifact import load
    from tilecast.models.runtime.nearest_gpu import borrowed
    from tilecast.models.runtime.objectives import OBJECTIVES

    resolve.check_own_problems(options)
    if options.operands and resolve.names_own_problems(options):
        raise TilecastError(
            "--operands is of all that was measured; allowed beside --problems: a column of "
            "operands in the file"
        )
    powers = tuple(dict.fromkeys(options.power or OBJECTIVES))
    # What is refused at once comes before what takes seconds to read.
    trained = None if options.model is None else load(options.model)
    own = resolve.own_problems(options)
    measured, files = read_measurements(options, options.add)
    gpu, fits = measured.gpu, all_fits(measured.gpu)
    for name in options.only or ():
        if name not in fits:
            raise TilecastError(f"heuristic {name!r} is not known; allowed: {', '.join(fits)}")
    fits = {name: fits[name] for name in options.only or fits}
    among = _measured(own, measured.own) if own else of_kinds(options.operands, measured.own)
    told: dict[str, str] = {}
    if trained and (folder := options.model):
        artifact = borrowed(_unseeing(trained, measured), gpu)
        fits |= {"as trained": _as_trained(artifact)}
        if artifact.trained_for:
            told["borrowed"] = (
                f"as trained: the {artifact.trained_for} model, used on the {gpu.name}"
            )
        if seen := _seen(folder, artifact, among):
            told["seen"] = f"as trained has seen (n, k) of {seen} of the {len(among)} problems"
    scored = evaluate(list(fits.values()), measured.table, powers, options.jobs, among=among)
    missing = len(own) - len(among) if own else 0
    lines = [
        files_line(files),
        *told.values(),
        *([f"{missing} more were not measured"] if missing else []),
    ]
    document = scored | {"data": [*map(str, files)], "not_measured": missing, **told}
    return Answer(document, [*score_tables(scored, powers), *lines])


def _measured(own: Sequence[GemmProblem], table: Sequence[ProblemLabels]) -> set[GemmProblem]:
    """Those of one's own problems that the data set has.

    Raises:
        TilecastError: it has none of them.
    """
    found = {labels.problem for labels in table}.intersection(own)
    if not found:
        raise TilecastError(
            f"none of the {len(own)} problems was measured; allowed: at least one of the data set, "
            "which --data names; `tilecast collect` measures them, given the same options"
        )
    return found


def of_kinds(
    asked: Sequence[GemmOperands] | None, table: Sequence[ProblemLabels]
) -> set[GemmProblem]:
    """The problems of some operands; of `LINEAR_BF16` where none are asked for and it is there.

    Raises:
        TilecastError: none was measured.
    """
    measured = dict.fromkeys(labels.problem.operands for labels in table)
    kinds = asked or ([LINEAR_BF16] if LINEAR_BF16 in measured else list(measured))
    found = {labels.problem for labels in table if labels.problem.operands in kinds}
    if not found:
        raise TilecastError(
            f"no problem of {', '.join(map(str, kinds))} was measured; allowed: "
            f"{', '.join(map(str, measured))}"
        )
    return found


def all_fits(gpu: Hardware) -> dict[str, Fit]:
    """Everything that can be scored here, by name."""
    from tilecast.heuristics.baselines import RandomChoice
    from tilecast.models.evaluation import baselines, nvmatmul
    from tilecast.models.evaluation.tree_linear import TreeLinearRanker, fit_tree_linear
    from tilecast.models.learning.fit_ranker import fit_ranker
    from tilecast.models.runtime.ranker import ConfigRanker

    fits: dict[str, Fit] = {
        ConfigRanker.name: partial(fit_ranker, hardware=gpu),
        TreeLinearRanker.name: partial(fit_tree_linear, hardware=gpu),
        baselines.NearestNeighbour.name: baselines.fit_nearest,
        baselines.FixedSubset.name: baselines.fit_fixed_subset,
        baselines.StockDefault.name: lambda table, objective: baselines.StockDefault(gpu),
        RandomChoice.name: lambda table, objective: RandomChoice(),
    }
    if find_spec("nvMatmulHeuristics") and gpu.name in nvmatmul.GPUS:
        one = nvmatmul.NvMatmulHeuristic(gpu)
        fits[one.name] = lambda table, objective: one
    return fits


def _unseeing(artifact: Artifact, measured: Measurements) -> Artifact:
    """A model that learned from none of what it shall be scored on.

    Raises:
        TilecastError: it did, so that nothing would be held out.
    """
    from tilecast.models.runtime.manifest import learned_from

    scored = {measured.dataset.digest, *(part.digest for part in measured.parts)}
    if seen := learned_from(artifact.facts) & scored:
        raise TilecastError(
            f"model {artifact.name} learned from this data set (digest {min(seen)[:16]}); allowed: "
            "data that it has not seen; leave --model out to score the same kind of model on "
            "held-out families"
        )
    return artifact


def _seen(folder: Path, artifact: Artifact, scored: Collection[GemmProblem]) -> int:
    """Of how many problems the family is one that a model learned from, on whichever GPU.

    Raises:
        TilecastError: the model in the folder does not state its families as models do.
    """
    from tilecast.models.runtime.manifest import learned_families, understood

    with understood(folder):
        families = learned_families(artifact.facts)
    return sum(problem.family in families for problem in scored)


def _as_trained(artifact: Artifact) -> Fit:
    """The model as it is, never fitted again."""
    from tilecast.models.runtime.learned import LearnedHeuristic

    def fit(table: Sequence[ProblemLabels], objective: str) -> LearnedHeuristic:
        heuristic = LearnedHeuristic(artifact, objective)
        heuristic.name = "as trained"
        return heuristic

    return fit


def score_tables(scored: Mapping[str, Any], powers: Sequence[str]) -> list[Table | str]:
    """What `tilecast.models.evaluation.evaluation.evaluate` returned, for people."""
    columns = {"heuristic": "", "k": "d", "kernels": ".1f"} | REGRET_COLUMNS
    tables: list[Table | str] = []
    for power in powers:
        rows = [
            (row["heuristic"], row["k"], row["proposed"], *(row[name] for name in REGRET))
            for row in scored["regret"]
            if row["power"] == power and row["problems"] == "all" and row["k"] in SHOWN_K
        ]
        floor = scored["noise_floor"][power]
        rows.append(("noise floor", None, None, floor["geomean"], floor["p95"], floor["max"], None))
        tables.append(Table(f"Held-out regret, {power}", columns, rows))
    if scored["beside_library"]:
        rows = [
            (*map(row.get, _OF), "yes" if row["deferral"] else "", *map(row.get, _FIGURES))
            for row in scored["beside_library"]
        ]
        columns = dict.fromkeys((*_OF, "deferral"), "") | {"count": "d"} | LIBRARY_COLUMNS
        tables.append(Table("First choice beside the library, held out", columns, rows))
    line = "{problems} problems of {families} families; --json has every k and m".format(**scored)
    return [*tables, line]


_OF, _FIGURES = ("power", "problems"), ("count", *LIBRARY)
