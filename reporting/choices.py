"""What a model chooses for many problems, as data and as a file."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import write_atomically
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.models.runtime.learned import FirstChoice, LearnedHeuristic, Prediction

KINDS = (".csv", ".json")
"""Ends of the names of files that choices are written to."""
_COLUMNS = (
    *(*PROBLEM_FIELDS, "rank", "config", "predicted_microseconds", "predicted_slowdown"),
    *("library_at_least_over_first", "left_to_library", "shortlist"),
)
"""Of a file of choices; docs/inductor.md describes them."""


@dataclass(frozen=True)
class Choices:
    """What a model chooses for a problem, and how sure it is."""

    problem: GemmProblem
    """What is multiplied."""
    candidates: int
    """How many configs there are to choose from."""
    chosen: tuple[Prediction, ...]
    """The first of the ranking, at least one."""
    first: FirstChoice
    """The first beside cuBLAS."""
    shortlist: int
    """How many configs the model thinks worth compiling: 1 where it is sure, more where not."""


def choices(
    heuristic: LearnedHeuristic,
    problems: Iterable[GemmProblem],
    gpu: Hardware,
    top: int | str = 1,
    *,
    invariant: bool = False,
) -> list[Choices]:
    """Ask a model about problems, each of which has a candidate.

    Args:
        heuristic: the model.
        problems: what is multiplied.
        gpu: the GPU.
        top: how many choices for each; ``auto`` for as many as the model thinks worth compiling.
        invariant: whether a row has to have the same bits in every batch; nothing falls back then.

    Raises:
        TilecastError: the model does not rank the operands of a problem.
    """
    found = []
    for problem in problems:
        among = candidates(problem, gpu, invariant=invariant)
        worth = heuristic.shortlist(problem, among)
        chosen = worth if isinstance(top, str) else heuristic.predict(problem, among, limit=top)
        first = heuristic.first(problem, among)
        first = replace(first, deferred=first.deferred and not invariant)
        found.append(Choices(problem, len(among), tuple(chosen), first, len(worth)))
    return found


def predicted(rank: int, prediction: Prediction) -> dict[str, object]:
    """One row of a ranking, as documents and files of choices have it."""
    return {
        "rank": rank,
        "config": prediction.config.name,
        "predicted_microseconds": prediction.microseconds,
        "predicted_slowdown": prediction.slowdown - 1,
    }


def check_kind(path: Path) -> None:
    """See that the name of a file says in which format choices are written to it."""
    if path.suffix.lower() not in KINDS:
        raise TilecastError(
            f"choices cannot be written to {path}; allowed: a name that ends in "
            f"{' or '.join(KINDS)}"
        )


def write_choices(found: Sequence[Choices], path: Path) -> None:
    """Write a row for each choice, as CSV or JSON by the name, whole or not at all.

    Raises:
        TilecastError: the file cannot be written.
    """
    rows = [
        dict(zip(PROBLEM_FIELDS, one.problem.row(), strict=True))
        | predicted(rank, prediction)
        | {
            "library_at_least_over_first": one.first.library_over,
            "left_to_library": one.first.deferred,
            "shortlist": one.shortlist,
        }
        for one in found
        for rank, prediction in enumerate(one.chosen, 1)
    ]

    def write(at: Path) -> None:
        with at.open("w", encoding="utf-8", newline="") as file:
            if path.suffix.lower() == ".json":
                json.dump(rows, file, indent=1)
            else:
                writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)

    write_atomically(path, write)
