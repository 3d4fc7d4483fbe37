"""The one evaluator: every heuristic is fitted, asked and scored in the same way.

Families of problems with the same (n, k) are dealt into folds; a heuristic is fitted on the labels
of all folds but one and ranks the problems of that one. Regret is by the truth, at equal numbers
of distinct kernels. First choices are also compared with cuBLAS, with and without the problems
that `tilecast.models.learning.fit_deferral` would leave to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from tilecast.heuristics.heuristic import Heuristic, rank
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.evaluation.regret import BUCKETS, HeldOut, groups, summarise
from tilecast.models.learning.fit_deferral import beside_library, held_out_choices, speed
from tilecast.models.learning.folds import Splits, folds, side_by_side
from tilecast.models.learning.held_out import ask_about_unseen
from tilecast.models.learning.labels import MAX_K, ProblemLabels, noise_floor
from tilecast.models.runtime.ranker import ConfigRanker

Fit = Callable[[Sequence[ProblemLabels], str], Heuristic]
"""Fits a heuristic to labels, for an objective."""


@dataclass(frozen=True)
class SpeedRow:
    """How fast the first choices for a group of problems are beside cuBLAS, held out."""

    power: str
    """The objective, under the name of the option; ``robust`` in the regime where a choice is
    slower beside cuBLAS."""
    problems: str
    """``all``, one of `ORIGINS`, or ``other families``."""
    deferral: bool
    """Whether some problems are left to cuBLAS, whose speed is 1."""
    count: int
    """Problems in the group that cuBLAS was timed on."""
    left: float
    """Share of them that are left to it."""
    geomean: float
    """Geometric mean of cuBLAS's time over that of what runs."""
    slower: float
    """Share of the problems below `tilecast.models.learning.fit_deferral.SLOWER`."""
    worst: float
    """The least of them."""


def unfitted(table: Sequence[ProblemLabels]) -> Splits:
    """Splits that fit on nothing and ask about every problem: for heuristics as they are."""
    return [(np.arange(0), np.arange(len(table)))]


def held_out(
    fit: Fit, table: Sequence[ProblemLabels], objective: str, splits: Splits, jobs: int = 1
) -> HeldOut:
    """Fit and ask a heuristic as `all_held_out` does."""
    (result,) = all_held_out([fit], table, objective, splits, jobs)
    return result


def all_held_out(
    fits: Sequence[Fit],
    table: Sequence[ProblemLabels],
    objective: str,
    splits: Splits,
    jobs: int = 1,
) -> list[HeldOut]:
    """Fit and ask heuristics split by split, `folds` of the table, ``jobs`` splits side by side.

    Raises:
        TilecastError: a heuristic broke the contract of `tilecast.heuristics.heuristic.rank`.
    """
    calls = [partial(_fold, fit, objective, table, *split) for fit in fits for split in splits]
    asked = iter(side_by_side(jobs, calls))
    results = []
    for _ in fits:
        fitted, parts = zip(*(next(asked) for _ in splits), strict=True)
        picks = {i: pick for part in parts for i, pick in part.items()}
        every = tuple(picks.get(i, ()) for i in range(len(table)))
        results.append(HeldOut(fitted[0].name, objective, every, fitted))
    return results


def _fold(
    fit: Fit,
    objective: str,
    table: Sequence[ProblemLabels],
    fitted: np.ndarray,
    asked: np.ndarray,
) -> tuple[Heuristic, dict[int, tuple[int, ...]]]:
    heuristic = fit([table[i] for i in fitted], objective)
    picks = {}
    for i in asked.tolist():
        candidates = table[i].candidates
        ranking = rank(heuristic, table[i].problem, candidates, limit=MAX_K)
        picks[i] = tuple(candidates.index(config) for config in ranking)
    return heuristic, picks


def speeds(
    rankers: Sequence[ConfigRanker],
    table: Sequence[ProblemLabels],
    splits: Splits,
    among: Collection[GemmProblem] | None = None,
    jobs: int = 1,
) -> list[SpeedRow]:
    """Compare the first choices with cuBLAS, with deferral and without, for each objective.

    Empty where cuBLAS was not timed. Deferral is learned and its margin chosen on the other folds
    than it is scored on. These folds are not nested: what the margin is chosen by comes from trees
    and rankers that have seen the fold that is scored.

    Args:
        rankers: what was fitted in each of the splits.
        table: labels of all problems.
        splits: the `folds` of the table.
        among: the problems that are scored; all when left out.
        jobs: fits at a time.
    """
    rows = []
    parts = [beside_library(part) for part in ask_about_unseen(rankers, table, splits)]
    for objective, choices in held_out_choices(parts, jobs=jobs).items():
        scored = np.array([among is None or problem in among for problem in choices.problems])
        masks = {name: scored & mask for name, mask in groups(choices.problems).items()}
        rows += [
            SpeedRow(
                objective,
                name,
                deferral,
                int(group.sum()),
                **speed(choices.measured[group], choices.deferred[group] & deferral),
            )
            for name, group in masks.items()
            if group.any() and name not in BUCKETS
            for deferral in (False, True)
        ]
    return rows


def evaluate(
    fits: Sequence[Fit],
    table: Sequence[ProblemLabels],
    objectives: Sequence[str],
    jobs: int = 1,
    *,
    among: Collection[GemmProblem] | None = None,
) -> dict[str, object]:
    """Score heuristics side by side, with ``jobs`` folds at a time.

    Args:
        fits: what fits the heuristics.
        table: labels of all problems, which are fitted on whether or not they are scored; none that
            was measured on another GPU is scored.
        objectives: what to ask for, and score by.
        jobs: folds at a time.
        among: the problems that are scored, at least one of which is in the table; all when left
            out.

    Returns:
        ``regret``, a list of `RegretRow` as dicts; ``beside_library``, one of `SpeedRow` where the
        learned ranker is asked about problems of every fold; ``noise_floor`` by objective;
        ``problems`` and ``families``, the numbers of those scored.
    """
    own = [labels.elsewhere is None for labels in table]
    wanted = np.array(own) & [among is None or labels.problem in among for labels in table]
    whole = folds(table)
    asking = ((fitted, asked[wanted[asked]]) for fitted, asked in whole)
    splits = [(fitted, asked) for fitted, asked in asking if asked.size]
    scored = [labels for labels, is_wanted in zip(table, wanted, strict=True) if is_wanted]
    asked = [one for aim in objectives for one in all_held_out(fits, table, aim, splits, jobs)]
    learned = [one.fitted for one in asked if one.heuristic == ConfigRanker.name]
    rankers = [one for one in learned[0] if isinstance(one, ConfigRanker)] if learned else []
    beside = speeds(rankers, table, whole, among, jobs) if len(rankers) == len(whole) else []
    return {
        "problems": len(scored),
        "families": len({labels.problem.family for labels in scored}),
        "noise_floor": {objective: noise_floor(scored, objective) for objective in objectives},
        "regret": [asdict(row) for result in asked for row in summarise(result, table)],
        "beside_library": [asdict(row) for row in beside if row.power in objectives],
    }
