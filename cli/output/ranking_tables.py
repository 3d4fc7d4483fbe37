"""Rankings for a terminal: expected times, measured times, and the reasons for the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilecast.cli.options.mnk import TypedProblem
from tilecast.heuristics.problem import GemmProblem
from tilecast.reporting.table import Table

_COLUMNS = {"": "d", "config": "", "predicted us": ".1f", "predicted loss": ".1%"}
"""Of a candidate, in the order of `tilecast.reporting.choices.predicted`, and their formats."""
_LIBRARY = {"cuBLAS us >=": ".1f", "over the first": ".2f", "at k = 1": ""}
"""Of cuBLAS, beside the first candidate; its time is a low estimate."""


def many_ranking_tables(
    problems: Sequence[TypedProblem], document: Mapping[str, Any]
) -> list[Table | str]:
    """The document of ``predict`` for many problems, which are in the same order."""
    rows = [
        (str(typed), typed.problem.operands.text, *entry.values(), *(beside if first else _NONE))
        for typed, found in zip(problems, document["problems"], strict=True)
        for beside in [_beside(found["library"])]
        for first, entry in ((entry["rank"] == 1, entry) for entry in found["ranking"])
    ]
    title = f"{len(problems)} problems on {document['gpu']}, {document['power']}"
    table = Table(title, {"problem": "", "operands": ""} | _COLUMNS | _LIBRARY, rows)
    return [table, *([document["borrowed"]] if "borrowed" in document else [])]


_NONE = (None,) * len(_LIBRARY)


def _beside(library: Mapping[str, Any]) -> tuple[object, ...]:
    """The cells of `_LIBRARY`."""
    if library["at_least_microseconds"] is None:
        return _NONE
    chosen = f"timed beside {library['name']}" if library["deferred"] else "taken"
    return (library["at_least_microseconds"], library["at_least_over_first"], chosen)


def ranking_tables(typed: TypedProblem, document: Mapping[str, Any]) -> list[Table | str]:
    """The document of ``predict`` for one problem."""
    columns, problem = dict(_COLUMNS), typed.problem
    for regime in document["measured"]:
        columns |= {f"{regime} us": ".1f", f"{regime} loss": ".1%"}
    rows = []
    for entry in document["ranking"]:
        *expected, measured = entry.values()
        times = (value for regime in measured.values() for value in regime.values())
        rows.append((*expected, *times))
    ranked_as = f" (ranked as {problem})" if typed.unaligned else ""
    title = (
        f"{typed} {problem.operands}{ranked_as} on {document['gpu']}, {document['power']}: "
        f"{len(rows)} of {document['candidates']} candidates"
    )
    names = ("feature", "value", "effect", "meaning")
    reasons = [[reason[name] for name in names] for reason in document["reasons"]]
    decided = {"feature": "", "value": ".4g", "effect on cost": "+.1%", "meaning": ""}
    return [
        Table(title, columns, rows),
        *([document["borrowed"]] if "borrowed" in document else []),
        *_library_line(document["library"]),
        "roofline: {microseconds:.1f} us, set by {bound}".format(**document["roofline"]),
        *(_oracle_line(problem, regime, oracle) for regime, oracle in document["measured"].items()),
        *([] if document["measured"] else ["not in the data set: no measured times"]),
        "",
        Table("What decided for the first, against its rivals", decided, reasons),
    ]


def _oracle_line(problem: GemmProblem, regime: str, oracle: Mapping[str, Any]) -> str:
    rank, reference = oracle["rank"], oracle["reference_microseconds"]
    over = reference and reference / oracle["microseconds"]
    return (
        f"measured in {regime}: best is {oracle['best']} with {oracle['microseconds']:.1f} us, "
        + (f"ranked {rank}" if rank else "no candidate")
        + (f"; {problem.library_call} takes {reference:.1f} us, {over:.2f}x" if reference else "")
    )


def _library_line(library: Mapping[str, Any]) -> list[str]:
    """What is expected of cuBLAS; nothing where that is not known."""
    if library["at_least_microseconds"] is None:
        return []
    instead = "; timed beside it at k = 1" if library["deferred"] else ""
    return [
        "{name}: at least {at_least_microseconds:.1f} us in nine cases of ten, "
        "{at_least_over_first:.2f}x the first".format(**library)
        + instead
    ]
