"""What a campaign measures when, and who chooses among the candidates of its problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from tilecast.data_collection.dataset.dataset import Dataset
from tilecast.data_collection.run.cards import spread
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.apply.guidance import Guided
from tilecast.models.learning.fit_ranker import fit_ranker
from tilecast.models.learning.labels import label_table
from tilecast.models.runtime.artifact import Artifact
from tilecast.models.runtime.known_operands import ranks_for
from tilecast.models.runtime.learned import LearnedHeuristic

FIRST_PROBLEMS = 24
"""Problems whose candidates are all measured where no model says which are worth it."""


class Guide(Enum):
    """Who chooses among candidates."""

    NOBODY = "nobody"
    """All are measured."""
    SHIPPED = "shipped"
    """The shipped model of the nearest GPU."""
    MEASURED = "measured"
    """A ranker that learns from what was measured before."""


@dataclass(frozen=True)
class Stage:
    """One part of a campaign; the store says how far it is."""

    name: str
    """What it is called."""
    problems: tuple[GemmProblem, ...]
    """What is measured by its end, beside what was before."""
    guide: Guide
    """Who chooses among their candidates."""


def stages(problems: Sequence[GemmProblem], guided: bool) -> tuple[Stage, ...]:
    """The parts of a campaign in their order.

    Args:
        problems: all that is to be measured.
        guided: whether a shipped model can guide it.
    """
    cards, all_ = spread(problems), tuple(problems)
    if guided:
        return Stage("cards", cards, Guide.SHIPPED), Stage("collect", all_, Guide.SHIPPED)
    first = tuple(dict.fromkeys([*cards, *spread(problems, FIRST_PROBLEMS)]))
    return (
        Stage("cards", cards, Guide.NOBODY),
        Stage("explore", first, Guide.NOBODY),
        Stage("collect", all_, Guide.MEASURED),
    )


def can_guide(artifact: Artifact | None, problems: Sequence[GemmProblem]) -> bool:
    """Whether a model ranks for the operands of all problems."""
    kinds = {problem.operands for problem in problems}
    return artifact is not None and all(ranks_for(artifact.operands, kind) for kind in kinds)


def guided(
    guide: Guide, gpu: Hardware, shipped: Artifact | None, measured: Callable[[], Dataset]
) -> Guided | None:
    """What chooses among candidates; None where all are measured.

    Args:
        guide: who.
        gpu: the GPU that is measured.
        shipped: the model of `Guide.SHIPPED`.
        measured: reads what `Guide.MEASURED` learns from, in seconds.

    Raises:
        TilecastError: there is nothing to learn from.
    """
    if guide is Guide.SHIPPED and shipped is not None:
        return Guided(LearnedHeuristic(shipped), gpu)
    if guide is Guide.MEASURED:
        return Guided(fit_ranker(label_table(measured()), hardware=gpu), gpu)
    return None
