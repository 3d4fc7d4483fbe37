"""What a model would run for many problems, where it doubts, and the same as a file."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import write_atomically
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.models.evaluation.regret import by_rows
from tilecast.models.runtime.learned import LearnedHeuristic
from tilecast.reporting.plots import COLOURS, Figure, axis, extent_axis, figure, stretch

KINDS = (".csv", ".json")
"""Ends of the names of files that choices are written to."""


@dataclass(frozen=True)
class Choice:
    """A config that a model would choose for a problem, and how sure it is of the first."""

    problem: GemmProblem
    """What is multiplied."""
    rank: int
    """Place in the model's ranking, from 1 on."""
    config: str
    """Name of the config."""
    predicted_microseconds: float
    """Expected run time of one launch."""
    predicted_slowdown: float
    """Expected cost over the best candidate's, less 1."""
    library_at_least_over_first: float | None
    """What the run time of the library over the first's is at least, in nine cases of ten; None
    where the model does not know it."""
    left_to_library: bool
    """Whether the model would leave the problem to the library."""
    shortlist: int
    """How many configs it thinks worth compiling: 1 where it is sure, more where it is not."""


def choices(
    heuristic: LearnedHeuristic,
    problems: Iterable[GemmProblem],
    gpu: Hardware,
    top: int | str = 1,
) -> list[Choice]:
    """Ask a model about problems, of which each has a candidate.

    Args:
        heuristic: the model.
        problems: what is to be multiplied.
        gpu: the GPU.
        top: how many choices for each, best first; ``auto`` for as many as the model thinks worth
            compiling.

    Raises:
        TilecastError: the model does not rank for the operands of one.
    """
    found = []
    for problem in problems:
        among = candidates(problem, gpu)
        first, worth = heuristic.first(problem, among), heuristic.shortlist(problem, among)
        chosen = worth if isinstance(top, str) else heuristic.predict(problem, among, limit=top)
        found += [
            Choice(
                problem,
                rank,
                one.config.name,
                one.microseconds,
                one.slowdown - 1,
                first.library_over,
                first.deferred,
                len(worth),
            )
            for rank, one in enumerate(chosen, 1)
        ]
    return found


def check_kind(path: Path) -> None:
    """See that a file's name says how choices are to be written to it.

    Raises:
        TilecastError: it does not.
    """
    if path.suffix.lower() not in KINDS:
        raise TilecastError(
            f"choices cannot be written to {path}; allowed: a name that ends in "
            f"{' or '.join(KINDS)}"
        )


def write_choices(found: Sequence[Choice], path: Path) -> None:
    """Write a row for each choice, as CSV or JSON by the name, whole or not at all.

    Raises:
        TilecastError: the file cannot be written.
    """
    names = [field.name for field in fields(Choice)][1:]
    rows = [
        dict(zip(PROBLEM_FIELDS, choice.problem.row(), strict=True))
        | {name: getattr(choice, name) for name in names}
        for choice in found
    ]

    def write(at: Path) -> None:
        with at.open("w", encoding="utf-8", newline="") as file:
            if path.suffix.lower() == ".json":
                json.dump(rows, file, indent=1)
            else:
                writer = csv.DictWriter(file, (*PROBLEM_FIELDS, *names), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)

    write_atomically(path, write)


def doubt(found: Sequence[Choice]) -> Figure:
    """How many kernels the model thinks worth compiling: a dot a problem, and the mean by rows."""
    m, n = ([getattr(choice.problem, name) for choice in found] for name in "mn")
    sizes = np.array([choice.shortlist for choice in found])
    means = {
        bucket: float(sizes[inside].mean())
        for bucket, inside in by_rows([choice.problem for choice in found]).items()
        if inside.any()
    }
    scale = {"title": {"text": "kernels"}, "x": stretch(0, 2)[1], "thickness": 10}
    colours = {"color": sizes.tolist(), "colorscale": "Viridis", "colorbar": scale}
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": m,
            "y": n,
            "text": [f"{choice.problem}: {choice.shortlist}, {choice.config}" for choice in found],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"size": 7} | colours,
        },
        {
            "type": "bar",
            "x": list(means),
            "y": list(means.values()),
            "xaxis": "x2",
            "yaxis": "y2",
            "marker": {"color": COLOURS[1]},
            "hovertemplate": "%{x}: %{y:.1f}<extra></extra>",
        },
    ]
    axes = {
        "xaxis": extent_axis("m", m, domain=stretch(0, 2)),
        "yaxis": extent_axis("n", n),
        "xaxis2": axis("", domain=stretch(1, 2)),
        "yaxis2": axis("kernels, on average", anchor="x2"),
    }
    return figure(data, axes, showlegend=False)
