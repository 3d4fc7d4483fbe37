"""What a model chooses for many problems, as data and as a file, which the hook reads."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import write_atomically
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem
from tilecast.kernels.families import parse_config
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
        among = heuristic.candidates(problem, invariant=invariant)
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


def read_choices(path: Path) -> dict[GemmProblem, tuple[KernelConfig, ...]]:
    """The configs that a file names for each problem, by their rank; `write_choices` wrote it.

    A problem that the file leaves to cuBLAS has none. Of the columns only those of a problem and
    ``config`` have to be there; without ``rank`` the order of the rows counts.

    Raises:
        TilecastError: the file cannot be read, or a row says no problem, config or rank.
    """
    # It imports PyArrow.
    from tilecast.data_collection.problems.problem_files import read_rows

    check_kind(path)
    ranked: dict[GemmProblem, list[tuple[int, KernelConfig]]] = {}
    for number, (problem, row) in enumerate(read_rows(path), 1):
        try:
            rank = int(str(row.get("rank") or 0))
            config = parse_config(str(row.get("config")))
        except ValueError as error:  # a TilecastError is one
            raise TilecastError(f"choices {path} are not read: row {number}: {error}") from error
        if str(row.get("left_to_library")).lower() != "true":
            ranked.setdefault(problem, []).append((rank, config))
    return {
        problem: tuple(dict.fromkeys(config for _, config in sorted(found, key=itemgetter(0))))
        for problem, found in ranked.items()
    }


def choices_digest(path: Path) -> str:
    """SHA-256 of a file of choices, once it is read and found sound; raises as `read_choices`."""
    read_choices(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_kind(path: Path) -> None:
    """See that the name of a file says in which format choices are written to it."""
    if path.suffix.lower() not in KINDS:
        raise TilecastError(
            f"{path} cannot hold choices; allowed: a name that ends in {' or '.join(KINDS)}"
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
