"""Rank the candidates of a problem and say what is expected of each, why, and what was measured.

Of many problems, as files of one's own or a model's layers have them, it says the first choices.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tilecast.cli.options import argtypes, resolve
from tilecast.cli.options import options as shared
from tilecast.cli.output.output import Answer
from tilecast.cli.output.ranking_tables import COLUMNS, library_rows, shown
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.reporting.table import Table

if TYPE_CHECKING:
    from pathlib import Path

    from tilecast.data_collection.dataset.select_times import Truth
    from tilecast.models.runtime.learned import FirstChoice, LearnedHeuristic, Prediction

NAME = "predict"
HELP = "rank the candidates of a problem, or of many"

SHOWN, SHOWN_OF_EACH = 5, 1
"""Candidates of one problem that are shown, and of each of many."""
REASONS = 6
"""Features that are shown to have decided."""
_OF_ONE = {
    **dict.fromkeys(("m", "n", "k", "data", "html")),
    **{"batch": 1, "operands": LINEAR_BF16},
}
"""Options that say something of one problem, and what they are when not given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    shared.add_problem(parser, model=True)
    shared.add_own_problems(parser)
    about = (
        "how many, or auto for as many as the model thinks worth compiling "
        f"(default: {SHOWN}, of many problems {SHOWN_OF_EACH} each)"
    )
    parser.add_argument("-k", metavar="N", dest="top", type=argtypes.top, help=about)
    shared.add_model(parser)
    shared.add_data(parser)
    about = "show one problem as an HTML file, too, with all that was measured of it"
    parser.add_argument("--html", type=argtypes.path, metavar="FILE", help=about)
    about = "write the choices for many problems, too; CSV or JSON by the name"
    parser.add_argument("--choices", type=argtypes.path, metavar="FILE", help=about)


def run(options: argparse.Namespace) -> Answer:
    """Answer for one problem at length, or for each of many in short."""
    _check_together(options)
    resolve.check_apart(options, options.html, options.choices)
    own, problem = resolve.own_problems(options), resolve.problem_if_any(options)
    if own:
        return _many(own, options)
    if problem is None:
        raise TilecastError(
            "no problem is given; allowed: --m, --n and --k, or --problems or --hf-config"
        )
    return _one(problem, options)


def _check_together(options: argparse.Namespace) -> None:
    """See that nothing is said of one problem where there are many, nor the other way round."""
    resolve.check_own_problems(options)
    if options.choices and not resolve.names_own_problems(options):
        raise TilecastError(
            "--choices is for many problems; allowed beside --problems and --hf-config"
        )
    if resolve.names_own_problems(options):
        for name, absent in _OF_ONE.items():
            if getattr(options, name) != absent:
                raise TilecastError(
                    f"--{name} is for one problem; allowed beside --problems and --hf-config: "
                    "-k, --model, --power, --gpu and --choices"
                )


def _many(problems: Sequence[GemmProblem], options: argparse.Namespace) -> Answer:
    """The first choices for each problem and what is expected of them."""
    from tilecast.models.runtime.learned import load_heuristic_for

    if options.choices:
        resolve.check_choices(options.choices)
    gpu, top = resolve.gpu(options), options.top or SHOWN_OF_EACH
    heuristic = load_heuristic_for(gpu, problems, options.power, options.model)
    problems, answers = resolve.ranked(heuristic, problems), []
    for problem in problems:
        among = candidates(problem, gpu)
        if isinstance(top, str):
            ranking = heuristic.shortlist(problem, among)
        else:
            ranking = heuristic.predict(problem, among, limit=top)
        answers.append(
            {
                "problem": _fields(problem),
                "candidates": len(among),
                "library": _library(problem, heuristic.first(problem, among)),
                "ranking": [_expected(*placed) for placed in enumerate(ranking, 1)],
            }
        )
    if options.choices:
        from tilecast.reporting.choices import choices, write_choices

        write_choices(choices(heuristic, problems, gpu, top), options.choices)
    borrowed = _borrowed(heuristic)
    document = {"gpu": gpu.name, **borrowed, "power": options.power, "problems": answers}
    rows = [
        (str(problem), problem.operands.text, *entry)
        for problem, answer in zip(problems, answers, strict=True)
        for entry in (
            *(entry.values() for entry in answer["ranking"]),
            *library_rows(answer["library"]),
        )
    ]
    title = f"{len(problems)} problems on {gpu.name}, {options.power}"
    table = Table(title, {"problem": "", "operands": ""} | COLUMNS, rows)
    return Answer(document, [table, *borrowed.values()])


def _one(problem: GemmProblem, options: argparse.Namespace) -> Answer:
    """Rank, explain the first, and look the problem up in the data set."""
    from tilecast.data_collection.dataset.dataset import shipped_data
    from tilecast.models.runtime.learned import load_heuristic

    if options.html:
        _check_page(options.html)
    gpu, top = resolve.gpu(options), options.top or SHOWN
    heuristic = load_heuristic(gpu, problem.operands, options.power, options.model)
    data = options.data or shipped_data(gpu)
    truths = _truths(data, problem, gpu) if data else {}
    among = candidates(problem, gpu)
    ranking = heuristic.predict(problem, among)
    length = len(heuristic.shortlist(problem, among)) if isinstance(top, str) else top
    reasons = heuristic.explain(problem, among, ranking[0].config, limit=REASONS)
    document = {
        "problem": _fields(problem),
        "gpu": gpu.name,
        **_borrowed(heuristic),
        "power": options.power,
        "candidates": len(among),
        "roofline": _roofline(problem, gpu),
        "library": _library(problem, heuristic.first(problem, among)),
        "ranking": [
            _expected(position, prediction) | _measured(prediction, truths)
            for position, prediction in enumerate(ranking[:length], 1)
        ],
        "reasons": [asdict(reason) for reason in reasons],
        "measured": {regime: _oracle(truth, ranking) for regime, truth in truths.items()},
    }
    lines = shown(problem, document)
    if options.html:
        _write_page(options.html, problem, document, lines, truths)
    return Answer(document, lines)


def _truths(data: Path, problem: GemmProblem, gpu: Hardware) -> dict[str, Truth]:
    """What a data set has of the problem, by regime.

    Raises:
        TilecastError: it cannot be read, or was measured on another GPU.
    """
    from tilecast.data_collection.dataset.dataset import read_columns
    from tilecast.data_collection.dataset.select_times import look_up
    from tilecast.models.learning.training_sets import measured_hardware

    columns, provenance = read_columns(data)
    measured = measured_hardware(provenance)
    if not measured.same_gpu(gpu):
        raise TilecastError(
            f"data set {data} was measured on {measured.name}; allowed: one of {gpu.name}, or "
            f"--gpu {measured.name}"
        )
    return look_up(columns, problem)


def _check_page(file: Path) -> None:
    """See, before the work, that a page can be made and written.

    Raises:
        TilecastError: it cannot.
    """
    from tilecast.reporting.page import library

    library()
    resolve.check_file(file)


def _write_page(
    file: Path,
    problem: GemmProblem,
    document: Mapping[str, Any],
    shown: Sequence[Table | str],
    truths: Mapping[str, Truth],
) -> None:
    """What the terminal shows, with a figure for each part of it."""
    from tilecast.reporting.one_problem import measured, ranking, reasons
    from tilecast.reporting.page import Section, write_page

    ranked, *lines, decided = shown
    names = [entry["config"] for entry in document["ranking"]]
    call = problem.library_call
    times = [measured(truth, regime, names, call) for regime, truth in truths.items()]
    sections = [
        Section("Ranking", [ranked, ranking(document), *(line for line in lines if line)]),
        Section("Reasons", [decided, reasons(document)]),
        *([Section("All that was measured", times)] if times else []),
    ]
    write_page(file, f"tilecast: {problem} {problem.operands} on {document['gpu']}", sections)


def _borrowed(heuristic: LearnedHeuristic) -> dict[str, str]:
    """Whose model it is and on which terms, where it is another GPU's."""
    from tilecast.models.runtime.nearest_gpu import terms

    return {"borrowed": terms(heuristic.artifact)} if heuristic.artifact.trained_for else {}


def _fields(problem: GemmProblem) -> dict[str, object]:
    return dict(zip(PROBLEM_FIELDS, problem.row(), strict=True))


def _roofline(problem: GemmProblem, gpu: Hardware) -> dict[str, object]:
    """The lower bound on the run time, and what sets it."""
    dtype = problem.operands.a.dtype
    bounds = {
        "arithmetic": gpu.roofline_seconds(problem.flops, 0, dtype),
        "memory": gpu.roofline_seconds(0, problem.min_bytes, dtype),
    }
    bound = max(bounds, key=bounds.__getitem__)
    return {"microseconds": bounds[bound] * 1e6, "bound": bound}


def _expected(position: int, prediction: Prediction) -> dict[str, object]:
    """One row of the ranking, in the order of `tilecast.cli.output.ranking_tables.COLUMNS`."""
    return {
        "rank": position,
        "config": prediction.config.name,
        "predicted_microseconds": prediction.microseconds,
        "predicted_slowdown": prediction.slowdown - 1,
    }


def _library(problem: GemmProblem, first: FirstChoice) -> dict[str, object]:
    """What the library takes at least in nine cases of ten, by itself and over the first's time.

    Nulls where the model does not know.
    """
    return {
        "name": problem.library_call,
        "at_least_microseconds": first.library_at_least,
        "at_least_over_first": first.library_over,
        "deferred": first.deferred,
    }


def _measured(prediction: Prediction, truths: Mapping[str, Truth]) -> dict[str, object]:
    """What was measured of a row of the ranking."""
    name = prediction.config.name
    return {
        "measured": {
            regime: {"microseconds": truth.times.get(name), "slowdown": truth.slowdown(name)}
            for regime, truth in truths.items()
        },
    }


def _oracle(truth: Truth, ranking: Sequence[Prediction]) -> dict[str, object]:
    names = [prediction.config.name for prediction in ranking]
    return {
        "best": truth.best,
        "microseconds": truth.times[truth.best],
        "rank": names.index(truth.best) + 1 if truth.best in names else None,
        "reference_microseconds": truth.reference,
    }
