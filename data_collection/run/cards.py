"""Comparison of the cards of a run: all of them time the best kernels of the same few problems.

The times are kept with the run's provenance, since a data set has one measurement a kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilecast.data_collection.dataset.measurement import REFERENCE, Measurement
from tilecast.heuristics.problem import GemmProblem

REFERENCE_PROBLEMS = 6
"""Problems that every card times, which takes some ten seconds a card."""


@dataclass(frozen=True)
class CardTimes:
    """The times of one card on one problem."""

    card: str
    """Hash of its UUID."""
    problem: GemmProblem
    """What was multiplied."""
    microseconds: Mapping[tuple[str, str], float]
    """Run time by power regime and config name, of which `REFERENCE` is PyTorch's kernel."""


def spread(
    problems: Sequence[GemmProblem], most: int = REFERENCE_PROBLEMS
) -> tuple[GemmProblem, ...]:
    """At most so many of some problems, evenly from small to large; the same every time."""
    by_size = sorted(problems, key=lambda problem: (problem.flops, problem.row()))
    count = min(most, len(by_size))
    return tuple(by_size[int((i + 0.5) * len(by_size) / count)] for i in range(count))


def comparison(problem: GemmProblem, rows: Iterable[Measurement], card: str) -> dict[str, Any]:
    """Rows that a card measured for a comparison, as plain data that `card_times` reads."""
    times = [
        (row.regime, row.config.name if row.config else REFERENCE, row.microseconds) for row in rows
    ]
    return {"card": card, "problem": problem.row(), "times": times}


def card_times(runs: Iterable[Mapping[str, Any]]) -> list[CardTimes]:
    """All comparisons in the provenance of some runs."""
    return [
        CardTimes(
            found["card"],
            GemmProblem.from_row(found["problem"]),
            {(regime, config): time for regime, config, time in found["times"]},
        )
        for run in runs
        for found in run.get("compared", ())
    ]
