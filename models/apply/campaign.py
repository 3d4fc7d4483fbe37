"""What a campaign measures when, and whether what it measured before chooses what is timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilecast.data_collection.run.cards import spread
from tilecast.heuristics.problem import GemmProblem

FIRST_PROBLEMS = 24
"""Problems whose candidates are all measured where no model says which are worth it."""


@dataclass(frozen=True)
class Stage:
    """One part of a campaign; the store says how far it is."""

    name: str
    """What it is called."""
    problems: tuple[GemmProblem, ...]
    """What is measured by its end, beside what was before."""
    learns: bool = False
    """Whether a ranker of what was measured before chooses among their candidates."""


def stages(problems: Sequence[GemmProblem], guided: bool) -> tuple[Stage, ...]:
    """The parts of a campaign in their order; ``guided``: a model chooses from the beginning."""
    cards, every = Stage("cards", spread(problems)), tuple(problems)
    if guided:
        return cards, Stage("collect", every)
    first = dict.fromkeys([*cards.problems, *spread(problems, FIRST_PROBLEMS)])
    return cards, Stage("explore", tuple(first)), Stage("collect", every, learns=True)
