"""Rank the candidates of a problem: the expected time of each, the reasons, what was measured.

For many problems, from your own files or the layers of a model, it prints the first choices.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tilecast.cli.options import argtypes, arguments, resolve
from tilecast.cli.options.load_measurements import check_measured_on
from tilecast.cli.options.mnk import TypedProblem
from tilecast.cli.options.output_paths import check_distinct, check_file
from tilecast.cli.output.output import Output
from tilecast.cli.output.progress import SECONDS_TO_RANK, show_each
from tilecast.cli.output.ranking_tables import many_ranking_tables, ranking_tables
from tilecast.data_collection.dataset.dataset import read_dataset, shipped_data, shipped_rows
from tilecast.data_collection.dataset.select_times import MeasuredTimes, measured_times, rows_of
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem
from tilecast.models.learning.training_sets import dataset_hardware
from tilecast.models.runtime.learned import (
    FirstChoice,
    LearnedHeuristic,
    Prediction,
    load_heuristic,
    model_for,
)
from tilecast.models.runtime.manifest import learned_families
from tilecast.models.runtime.nearest_gpu import terms
from tilecast.reporting.choices import Choices, check_kind, choices, predicted, write_choices

SHOWN, SHOWN_OF_EACH = 5, 1
"""Candidates that are printed of one problem, and of each of many."""
REASONS = 6
"""Features that are printed as reasons."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    arguments.add_problems(parser)
    about = (
        "how many, or auto for as many as the model thinks worth compiling "
        f"(default: {SHOWN}, of many problems {SHOWN_OF_EACH} each)"
    )
    parser.add_argument("-k", metavar="N", dest="top", type=argtypes.top, help=about)
    arguments.add_model(parser)
    arguments.add_data(parser)
    about = "also write the model's first choices; CSV or JSON by the name"
    parser.add_argument("--choices", type=argtypes.path, metavar="FILE", help=about)


def run(options: argparse.Namespace) -> Output:
    """Rank one problem at length, or each of many in short."""
    check_distinct(options, options.choices)
    if options.choices:
        check_kind(options.choices)
        check_file(options.choices)
    problems = resolve.problems_named(options)
    if not problems:
        raise TilecastError(
            "no problem is given; allowed: MxNxK, such as 16x6144x4096, --problems or --hf-config"
        )
    if len(problems) == 1 and not resolve.names_own_problems(options):
        return _one(problems[0], options)
    if options.data:
        raise TilecastError("--data shows what was measured of a problem; allowed: with one MxNxK")
    return _many(problems, options)


def _many(named: Sequence[TypedProblem], options: argparse.Namespace) -> Output:
    """The first choices for each problem and their expected times."""
    gpu = resolve.gpu(options)
    heuristic = LearnedHeuristic(model_for(gpu, options.model), options.power)
    ranked = set(resolve.ranked(heuristic, (one.problem for one in named)))
    typed = [one for one in named if one.problem in ranked]
    problems = [one.problem for one in typed]
    asked = show_each("predict", problems, SECONDS_TO_RANK)
    found = choices(
        *(heuristic, asked, gpu, options.top or SHOWN_OF_EACH), invariant=options.invariant
    )
    if options.choices:
        write_choices(found, options.choices)
    document = {
        **_model(heuristic, gpu),
        "problems": [_facts(*one) for one in zip(typed, found, strict=True)],
    }
    return Output(document, many_ranking_tables(typed, document))


def _one(typed: TypedProblem, options: argparse.Namespace) -> Output:
    """Rank, explain the first, and look the problem up in the data set."""
    gpu, top, problem = resolve.gpu(options), options.top or SHOWN, typed.problem
    heuristic = load_heuristic(gpu, problem.operands, options.power, options.model)
    truths = _truths(problem, gpu, heuristic, options.data)
    among = heuristic.candidates(problem, invariant=options.invariant)
    ranking = heuristic.predict(problem, among)
    (found,) = choices(heuristic, [problem], gpu, top, invariant=options.invariant)
    if options.choices:
        write_choices([found], options.choices)
    reasons = heuristic.explain(problem, among, ranking[0].config, limit=REASONS)
    document = {
        **_facts(typed, found, truths),
        **_model(heuristic, gpu),
        "roofline": _roofline(problem, gpu),
        "reasons": [asdict(reason) for reason in reasons],
        "measured": {regime: _oracle(truth, ranking) for regime, truth in truths.items()},
    }
    return Output(document, ranking_tables(typed, document))


def _truths(
    problem: GemmProblem, gpu: Hardware, heuristic: LearnedHeuristic, data: Path | None
) -> dict[str, MeasuredTimes]:
    """What was measured of the problem, by regime: in a data set, or in that of the package."""
    if data:
        dataset = read_dataset(data)
        check_measured_on(data, dataset_hardware(dataset), gpu)
        return measured_times(rows_of(dataset.rows, problem), problem)
    shipped = shipped_data(gpu, groups=problem.operands.groups)
    if shipped is None or problem.family not in learned_families(heuristic.artifact.facts):
        return {}
    return measured_times(shipped_rows(shipped, problem), problem)


def _model(heuristic: LearnedHeuristic, gpu: Hardware) -> dict[str, str]:
    """What ranks, for which GPU, and with what limits where it is another GPU's model."""
    found = {"gpu": gpu.name, "power": heuristic.objective}
    if heuristic.artifact.trained_for:
        found["borrowed"] = terms(heuristic.artifact)
    return found


def _facts(
    typed: TypedProblem, one: Choices, truths: Mapping[str, MeasuredTimes] | None = None
) -> dict[str, object]:
    """What is chosen for a problem, and with ``truths`` what was measured of that, by regime."""
    ranking = [predicted(*placed) for placed in enumerate(one.chosen, 1)]
    if truths is not None:
        for entry, prediction in zip(ranking, one.chosen, strict=True):
            name = prediction.config.name
            entry["measured"] = {
                regime: {"microseconds": truth.times.get(name), "slowdown": truth.slowdown(name)}
                for regime, truth in truths.items()
            }
    return {
        "problem": dict(zip(PROBLEM_FIELDS, one.problem.row(), strict=True)),
        "candidates": one.candidates,
        "library": _library(typed, one.first),
        "ranking": ranking,
    }


def _roofline(problem: GemmProblem, gpu: Hardware) -> dict[str, object]:
    """The lower bound on the run time, and what sets it."""
    dtype = problem.operands.a.dtype
    bounds = {
        "arithmetic": gpu.roofline_seconds(problem.flops, 0, dtype),
        "memory": gpu.roofline_seconds(0, problem.min_bytes, dtype),
    }
    bound = max(bounds, key=bounds.__getitem__)
    return {"microseconds": bounds[bound] * 1e6, "bound": bound}


def _library(typed: TypedProblem, first: FirstChoice) -> dict[str, object]:
    """A lower estimate of cuBLAS's time, which nine in ten exceed; None where there is none."""
    over = first.library_over
    return {
        "name": typed.problem.library_call,
        "at_least_microseconds": over and over * first.prediction.microseconds,
        "at_least_over_first": over,
        # The hook runs no cuBLAS for rows that TMA cannot store.
        "deferred": first.deferred and not typed.unaligned,
    }


def _oracle(truth: MeasuredTimes, ranking: Sequence[Prediction]) -> dict[str, object]:
    names = [prediction.config.name for prediction in ranking]
    return {
        "best": truth.best,
        "microseconds": truth.times[truth.best],
        "rank": names.index(truth.best) + 1 if truth.best in names else None,
        "reference_microseconds": truth.reference,
    }
