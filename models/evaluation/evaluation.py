"""The one evaluator: every heuristic is fitted, asked and scored in the same way.

Families of problems with the same (n, k) are dealt into folds; a heuristic is fitted on the labels
of all folds but one and ranks the problems of that one. Regret is by the truth, at equal numbers
of distinct kernels. First choices are also compared with cuBLAS, with and without the problems
that `tilecast.models.learning.fit_deferral` would leave to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
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


def unfitted(table: Sequence[ProblemLabels]) -> Splits:
    """Splits that fit on nothing and ask about every problem: for heuristics as they are."""
    return [(np.arange(0), np.arange(len(table)))]


def held_out(
    fit: Fit,
    table: Sequence[ProblemLabels],
    objective: str,
    splits: Splits,
    jobs: int = 1,
    done: Callable[[], object] = lambda: None,
) -> HeldOut:
    """Fit and ask a heuristic split by split, `folds` of the table, ``jobs`` splits side by side.

    Each split calls ``done`` at its end.

    Raises:
        TilecastError: the heuristic broke the contract of `tilecast.heuristics.heuristic.rank`.
    """

    def ask(seen: np.ndarray, asked: np.ndarray) -> tuple[Heuristic, dict[int, tuple[int, ...]]]:
        heuristic = fit([table[i] for i in seen], objective)
        picks = {}
        for i in asked.tolist():
            candidates = table[i].candidates
            ranking = rank(heuristic, table[i].problem, candidates, limit=MAX_K)
            picks[i] = tuple(candidates.index(config) for config in ranking)
        return heuristic, picks

    asked = side_by_side(jobs, [partial(ask, *split) for split in splits], done)
    fitted, parts = zip(*asked, strict=True)
    picks = {i: pick for part in parts for i, pick in part.items()}
    every = tuple(picks.get(i, ()) for i in range(len(table)))
    return HeldOut(fitted[0].name, objective, every, fitted)


def speeds(
    rankers: Sequence[ConfigRanker],
    table: Sequence[ProblemLabels],
    splits: Splits,
    among: Collection[GemmProblem] | None = None,
    jobs: int = 1,
) -> list[dict[str, object]]:
    """Compare the first choices with cuBLAS, with deferral and without, for each objective.

    Deferral is learned and its margin chosen on the other folds than it is scored on. These folds
    are not nested: what the margin is chosen by comes from trees and rankers that have seen the
    fold that is scored.

    The rankers were fitted in each of the splits, the `folds` of the table. Scored are the problems
    that are ``among`` some, or all.

    Returns:
        For each objective, ``power``, and each group of ``problems`` (all, batches, or one of the
        `ORIGINS`) a row with ``deferral`` and one without: ``count`` of the problems that cuBLAS
        was timed on, and their `speed`. None where cuBLAS was not timed.
    """
    rows: list[dict[str, object]] = []
    parts = [beside_library(part) for part in ask_about_unseen(rankers, table, splits)]
    for objective, choices in held_out_choices(parts, jobs=jobs).items():
        scored = np.array([among is None or problem in among for problem in choices.problems])
        masks = {name: scored & mask for name, mask in groups(choices.problems).items()}
        rows += [
            {
                **{"power": objective, "problems": name, "deferral": deferral},
                "count": int(group.sum()),
                **speed(choices.measured[group], choices.deferred[group] & deferral),
            }
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
    done: Callable[[], object] = lambda: None,
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
        done: called after each fit of a heuristic, for each objective and fold.

    Returns:
        ``regret``, what `summarise` says of each; ``beside_library``, the `speeds` where the
        learned ranker is asked about problems of every fold; ``noise_floor`` by objective;
        ``problems`` and ``families``, the numbers of those scored.
    """
    own = [labels.elsewhere is None for labels in table]
    wanted = np.array(own) & [among is None or labels.problem in among for labels in table]
    whole = folds(table)
    asking = ((fitted, asked[wanted[asked]]) for fitted, asked in whole)
    splits = [(fitted, asked) for fitted, asked in asking if asked.size]
    scored = [labels for labels, is_wanted in zip(table, wanted, strict=True) if is_wanted]
    asked = [held_out(fit, table, aim, splits, jobs, done) for aim in objectives for fit in fits]
    every = (one for result in asked for one in result.fitted)
    rankers = [one for one in every if isinstance(one, ConfigRanker)][: len(whole)]
    complete = rankers and len(splits) == len(whole)
    beside = speeds(rankers, table, whole, among, jobs) if complete else []
    return {
        "problems": len(scored),
        "families": len({labels.problem.family for labels in scored}),
        "noise_floor": {objective: noise_floor(scored, objective) for objective in objectives},
        "regret": [row for result in asked for row in summarise(result, table)],
        "beside_library": [row for row in beside if row["power"] in objectives],
    }
