"""Do the cards of a host agree? All of them time the best kernels of the same few problems.

What they find is kept with the run, not among the measurements, of which there is one a kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilecast.data_collection.dataset.measurement import REFERENCE, Measurement
from tilecast.heuristics.problem import GemmProblem

REFERENCE_PROBLEMS = 6
"""Problems that every card times: some ten seconds a card."""


@dataclass(frozen=True)
class CardTimes:
    """What one card made of one problem."""

    card: str
    """Hash of its UUID."""
    problem: GemmProblem
    """What was multiplied."""
    microseconds: Mapping[tuple[str, str], float]
    """Run time by power regime and config name, of which `REFERENCE` is the library's kernel."""


def spread(
    problems: Sequence[GemmProblem], most: int = REFERENCE_PROBLEMS
) -> tuple[GemmProblem, ...]:
    """A few of some problems, from the small ones to the large ones; the same every time."""
    by_size = sorted(problems, key=lambda problem: (problem.flops, problem.row()))
    count = min(most, len(by_size))
    return tuple(by_size[int((i + 0.5) * len(by_size) / count)] for i in range(count))


def timed(problem: GemmProblem, rows: Iterable[Measurement], card: str) -> dict[str, Any]:
    """Verify rows that a card took for a comparison, as plain data; `card_times` reads them."""
    times = [
        (row.regime, row.config.name if row.config else REFERENCE, row.microseconds) for row in rows
    ]
    return {"card": card, "problem": problem.row(), "times": times}


def card_times(runs: Iterable[Mapping[str, Any]]) -> list[CardTimes]:
    """All comparisons that the provenance of some runs tells."""
    return [
        CardTimes(
            found["card"],
            GemmProblem.from_row(found["problem"]),
            {(regime, config): time for regime, config, time in found["times"]},
        )
        for run in runs
        for found in run.get("compared", ())
    ]
