"""Score heuristics side by side on (n, k) families that they have not seen.

With your own problems it scores those that were measured and learns from the whole data set.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

from tilecast.cli.options import argtypes, arguments, resolve
from tilecast.cli.options.load_measurements import files_line, labelled, read_measurements
from tilecast.cli.output.output import Output
from tilecast.cli.output.progress import show_steps
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.evaluation import baselines, nvmatmul
from tilecast.models.evaluation.evaluation import Fit, evaluate
from tilecast.models.learning.fit_ranker import fit_ranker
from tilecast.models.learning.folds import FOLDS, folds
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.learning.training_sets import Measurements
from tilecast.models.runtime.artifact import Artifact, load
from tilecast.models.runtime.learned import LearnedHeuristic
from tilecast.models.runtime.manifest import learned_families, learned_from
from tilecast.models.runtime.nearest_gpu import borrowed
from tilecast.models.runtime.objectives import OBJECTIVES
from tilecast.models.runtime.ranker import ConfigRanker
from tilecast.reporting.table import LIBRARY, LIBRARY_COLUMNS, REGRET, REGRET_COLUMNS, Table

SHOWN_K = (1, 3, 5)
"""Numbers of kernels whose regret tables show."""
_SECONDS = 0.06
"""Of a core for one problem, to fit all heuristics on four folds for all powers, on average."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    arguments.add_data(parser)
    about = "a further data set to learn from; also scored, where it is of the same GPU"
    arguments.add_further_data(parser, about)
    arguments.add_own_problems(parser)
    parser.add_argument(
        "--operands",
        type=argtypes.reads(GemmOperands.parse),
        action="append",
        metavar="TEXT",
        help=f"score the problems of these operands only; repeatable (default: {LINEAR_BF16})",
    )
    about = "also score this trained model; on data that it was not trained on"
    parser.add_argument("--model", type=argtypes.path, help=about)
    about = "score this heuristic only; repeatable"
    parser.add_argument("--only", action="append", metavar="NAME", help=about)
    about = "burst, sustained or robust (default: all); repeatable"
    parser.add_argument("--power", type=argtypes.power, action="append", help=about)
    about = f"score only the first N of the {FOLDS} folds, in as much less time (default: all)"
    parser.add_argument("--folds", type=argtypes.integer(1, FOLDS), metavar="N", help=about)
    arguments.add_jobs(parser)


def run(options: argparse.Namespace) -> Output:
    """Fit and score every heuristic, fold by fold."""
    if options.operands and resolve.names_own_problems(options):
        raise TilecastError(
            "--operands selects among all that was measured; allowed beside --problems: a column "
            "of operands in the file"
        )
    powers = tuple(dict.fromkeys(options.power or OBJECTIVES))
    # What is refused at once comes before what takes seconds to read.
    trained: Artifact | None = load(options.model) if options.model else None
    own = resolve.own_problems(options)
    measured, files = read_measurements(options, options.add)
    gpu, heuristics = measured.gpu, scorable_heuristics(measured.gpu)
    for name in options.only or ():
        if name not in heuristics:
            allowed = ", ".join(heuristics)
            raise TilecastError(f"heuristic {name!r} is not known; allowed: {allowed}")
    heuristics = {name: heuristics[name] for name in options.only or heuristics}
    labelled(measured)
    among = (
        _measured_ones(own, measured.own) if own else problems_of(options.operands, measured.own)
    )
    if options.folds:
        first = folds(measured.table)[: options.folds]
        held_out = {measured.table[i].problem for _, fold in first for i in fold}
        if among.isdisjoint(held_out):
            raise TilecastError(
                f"none of the {len(among)} problems is in the first {options.folds} of {FOLDS} "
                "folds; allowed: more of them, or all, without --folds"
            )
        among &= held_out
    notes: dict[str, str] = {}
    if trained:
        _check_unseen(trained, measured)
        artifact = borrowed(trained, gpu)
        heuristics["as trained"] = _as_trained(artifact)
        if artifact.trained_for:
            notes["borrowed"] = (
                f"as trained: the model of the {artifact.trained_for}, used on the {gpu.name}"
            )
        families = learned_families(artifact.facts)
        if seen := sum(problem.family in families for problem in among):
            notes["seen"] = f"as trained has seen (n, k) of {seen} of the {len(among)} problems"
    scored = _shown([*heuristics.values()], measured, powers, options.jobs, among)
    missing = len(own) - len(among) if own else 0
    lines = [
        files_line(files),
        *notes.values(),
        *([f"{missing} more were not measured"] if missing else []),
    ]
    document = scored | {"data": [*map(str, files)], "not_measured": missing, **notes}
    return Output(document, [*score_tables(scored, powers), *lines])


def default_scores(measured: Measurements, powers: Sequence[str], jobs: int) -> dict[str, Any]:
    """What this command prints of measurements when no option narrows it."""
    fits, among = scorable_heuristics(measured.gpu).values(), problems_of(None, measured.own)
    return _shown(list(fits), measured, powers, jobs, among)


def _shown(
    fits: Sequence[Fit],
    measured: Measurements,
    powers: Sequence[str],
    jobs: int,
    among: Collection[GemmProblem],
) -> dict[str, Any]:
    """Evaluate and show how far it is."""
    table = measured.table
    asked = sum(any(table[i].problem in among for i in fold) for _, fold in folds(table))
    steps = len(fits) * len(powers) * asked
    expected = _SECONDS * len(table) * asked / min(jobs, asked)
    with show_steps("evaluate", steps, expected) as step:
        return evaluate(fits, table, powers, jobs, among=among, done=step)


def _measured_ones(own: Sequence[GemmProblem], table: Sequence[ProblemLabels]) -> set[GemmProblem]:
    """The given problems that the data set has; TilecastError where it has none."""
    found = {labels.problem for labels in table}.intersection(own)
    if not found:
        raise TilecastError(
            f"none of the {len(own)} problems was measured; allowed: at least one of the data set, "
            "which --data names; `tilecast collect` with the same options measures them"
        )
    return found


def problems_of(
    operands: Sequence[GemmOperands] | None, table: Sequence[ProblemLabels]
) -> set[GemmProblem]:
    """The problems of some operands; by default of `LINEAR_BF16`, or of all where it is missing.

    Raises:
        TilecastError: no problem of them was measured.
    """
    measured = dict.fromkeys(labels.problem.operands for labels in table)
    wanted = operands or ([LINEAR_BF16] if LINEAR_BF16 in measured else list(measured))
    found = {labels.problem for labels in table if labels.problem.operands in wanted}
    if not found:
        raise TilecastError(
            f"no problem of {', '.join(map(str, wanted))} was measured; allowed: "
            f"{', '.join(map(str, measured))}"
        )
    return found


def scorable_heuristics(gpu: Hardware) -> dict[str, Fit]:
    """What fits each heuristic that can be scored on this machine, by its name."""
    fits: dict[str, Fit] = {
        ConfigRanker.name: partial(fit_ranker, hardware=gpu),
        baselines.NearestNeighbour.name: baselines.fit_nearest,
        baselines.FixedSubset.name: baselines.fit_fixed_subset,
        baselines.StockDefault.name: lambda table, objective: baselines.StockDefault(gpu),
        baselines.RandomChoice.name: lambda table, objective: baselines.RandomChoice(),
    }
    if find_spec("nvMatmulHeuristics") and gpu.name in nvmatmul.GPUS:
        fits[nvmatmul.NvMatmulHeuristic.name] = lambda *_: nvmatmul.NvMatmulHeuristic(gpu)
    return fits


def _check_unseen(artifact: Artifact, measured: Measurements) -> None:
    """See that a model learned from none of what it is scored on, so that all is held out."""
    scored = {measured.dataset.digest, *(part.digest for part in measured.parts)}
    if seen := learned_from(artifact.facts) & scored:
        raise TilecastError(
            f"model {artifact.name} learned from this data set (digest {min(seen)[:16]}); allowed: "
            "data that it has not seen; leave --model out to score the same kind of model on "
            "held-out families"
        )


def _as_trained(artifact: Artifact) -> Fit:
    """The model as it is, never fitted again."""

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
        columns = {"power": "", "problems": "", "deferral": "", "count": "d"} | LIBRARY_COLUMNS
        fields = ("power", "problems", "count", *LIBRARY)
        rows = []
        for row in scored["beside_library"]:
            power, problems, *figures = map(row.get, fields)
            rows.append((power, problems, "yes" if row["deferral"] else "", *figures))
        tables.append(Table("First choice beside cuBLAS, held out", columns, rows))
    line = "{problems} problems of {families} families; --json has every k and m".format(**scored)
    return [*tables, line]
