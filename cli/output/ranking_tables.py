"""Rankings for a terminal: expected times, measured times, and the reasons for the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilecast.heuristics.problem import GemmProblem
from tilecast.reporting.table import Table

_COLUMNS = {"": "d", "config": "", "predicted us": ".1f", "predicted loss": ".1%"}
"""Of a candidate, in the order of `tilecast.reporting.choices.predicted`, and their formats."""


def many_ranking_tables(
    problems: Sequence[GemmProblem], document: Mapping[str, Any]
) -> list[Table | str]:
    """The document of ``predict`` for many problems, which are in the same order."""
    rows = [
        (str(problem), problem.operands.text, *row)
        for problem, found in zip(problems, document["problems"], strict=True)
        for row in (
            *(entry.values() for entry in found["ranking"]),
            *_library_rows(found["library"]),
        )
    ]
    title = f"{len(problems)} problems on {document['gpu']}, {document['power']}"
    table = Table(title, {"problem": "", "operands": ""} | _COLUMNS, rows)
    return [table, *([document["borrowed"]] if "borrowed" in document else [])]


def ranking_tables(problem: GemmProblem, document: Mapping[str, Any]) -> list[Table | str]:
    """The document of ``predict`` for one problem."""
    columns = dict(_COLUMNS)
    for regime in document["measured"]:
        columns |= {f"{regime} us": ".1f", f"{regime} loss": ".1%"}
    rows = []
    for entry in document["ranking"]:
        *expected, measured = entry.values()
        times = (value for regime in measured.values() for value in regime.values())
        rows.append((*expected, *times))
    count = len(rows)
    rows += [
        (*row, *(cell for one in document["measured"].values() for cell in _reference(one)))
        for row in _library_rows(document["library"])
    ]
    title = (
        f"{problem} {problem.operands} on {document['gpu']}, {document['power']}: "
        f"{count} of {document['candidates']} candidates"
    )
    names = ("feature", "value", "effect", "meaning")
    reasons = [[reason[name] for name in names] for reason in document["reasons"]]
    decided = {"feature": "", "value": ".4g", "effect on cost": "+.1%", "meaning": ""}
    return [
        Table(title, columns, rows),
        *([document["borrowed"]] if "borrowed" in document else []),
        "roofline {microseconds:.1f} us, set by {bound}".format(**document["roofline"]),
        *(_oracle_line(problem, regime, oracle) for regime, oracle in document["measured"].items()),
        *([] if document["measured"] else ["not in the data set: no measured times"]),
        "",
        Table("What decided for the first, against its rivals", decided, reasons),
    ]


def _reference(oracle: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """The time of cuBLAS, and that over the best config's time, less 1."""
    time = oracle["reference_microseconds"]
    return time, None if time is None else time / oracle["microseconds"] - 1


def _oracle_line(problem: GemmProblem, regime: str, oracle: Mapping[str, Any]) -> str:
    rank, reference = oracle["rank"], oracle["reference_microseconds"]
    return (
        f"measured in {regime}: best is {oracle['best']} with {oracle['microseconds']:.1f} us, "
        + (f"ranked {rank}" if rank else "no candidate")
        + (f"; {problem.library_call} takes {reference:.1f} us" if reference else "")
    )


def _library_rows(library: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """The row of cuBLAS below a ranking, in the order of `_COLUMNS`; none where none is known.

    Its time is a lower estimate, unlike those above it, so that it stands in none of their columns.
    """
    if library["at_least_microseconds"] is None:
        return []
    instead = "; timed beside it at k = 1" if library["deferred"] else ""
    shown = (
        f"{library['name']}: >= {library['at_least_microseconds']:.1f} us, "
        f"{library['at_least_over_first']:.2f}x the first, in nine cases of ten{instead}"
    )
    return [(None, shown, None, None)]
