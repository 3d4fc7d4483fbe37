"""The one evaluator: every heuristic, ours or not, is fitted, asked and scored in the same way.

Families of problems with the same (n, k) are dealt into folds; a heuristic is fitted on the labels
of all folds but one and ranks the problems of that one. Regret is by the truth, at equal numbers
of distinct kernels. First choices are also set beside the library, with those left to it that
`tilecast.models.runtime.deferral` would leave.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TypeVar, cast

import numpy as np

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.heuristic import Heuristic, rank
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.evaluation.regret import (
    BUCKETS,
    MAX_K,
    HeldOut,
    groups,
    noise_floor,
    summarise,
)
from tilecast.models.learning.fit_network import one_thread
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.runtime.deferral import BesideLibrary, beside_library, held_out_choices, speed
from tilecast.models.runtime.ranker import ConfigRanker

FOLDS = 5
"""Parts of the families; each is held out once."""

Result = TypeVar("Result")

Splits = Sequence[tuple[np.ndarray, np.ndarray]]
"""For each fold the indices of the problems to fit on, and of those to be scored on."""

MakeHeuristic = Callable[[str], Heuristic]
"""Makes an unfitted heuristic for a power."""


@dataclass(frozen=True)
class SpeedRow:
    """How fast the first choices for a group of problems are beside the library, held out."""

    power: str
    """What was asked for; ``robust`` in the regime where a choice is slower beside the library."""
    problems: str
    """``all``, one of `ORIGINS`, or ``other families``."""
    deferral: bool
    """Whether some problems are left to the library, whose speed is 1."""
    count: int
    """Problems in the group that the library was timed on."""
    left: float
    """Share of them that are left to it."""
    geomean: float
    """Geometric mean of the library's time over that of what runs."""
    slower: float
    """Share of the problems below `tilecast.models.runtime.deferral.SLOWER`."""
    worst: float
    """The least of them."""


def too_few(problems: Iterable[GemmProblem]) -> str | None:
    """Why the families of some problems cannot be dealt into `FOLDS`; None where they can."""
    count = len({problem.family for problem in problems})
    if count >= FOLDS:
        return None
    return (
        f"{count} (n, k) families are too few for {FOLDS} folds; "
        f"allowed: {FOLDS} or more; collect more problems"
    )


def folds(table: Sequence[ProblemLabels]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Deal problems into `FOLDS` by family, evenly and the same way every time, as `Splits`.

    Those that were measured elsewhere are always fitted on and never asked about, but for those of
    the families that are held out, which are not fitted on either.

    Raises:
        TilecastError: there are fewer families than folds.
    """
    from sklearn.model_selection import GroupKFold

    own = np.array([labels.elsewhere is None for labels in table], bool)
    problems = [labels.problem for labels in table if labels.elsewhere is None]
    if why := too_few(problems):
        raise TilecastError(why)
    names = sorted({problem.family for problem in problems})
    number = {name: place for place, name in enumerate(names)}
    family = np.array([number.get(labels.problem.family, -1) for labels in table])
    dealt = GroupKFold(FOLDS).split(family[own], groups=family[own])
    held_out = [np.flatnonzero(own)[asked] for _, asked in dealt]
    return [(np.flatnonzero(~np.isin(family, family[asked])), asked) for asked in held_out]


def unfitted(table: Sequence[ProblemLabels]) -> Splits:
    """Splits that fit on nothing and ask about every problem: for heuristics as they are."""
    return [(np.arange(0), np.arange(len(table)))]


def held_out(
    make: MakeHeuristic,
    table: Sequence[ProblemLabels],
    power: str,
    splits: Splits,
    jobs: int = 1,
) -> HeldOut:
    """Fit and ask a heuristic as `all_held_out` does."""
    (result,) = all_held_out([make], table, power, splits, jobs)
    return result


def all_held_out(
    makers: Sequence[MakeHeuristic],
    table: Sequence[ProblemLabels],
    power: str,
    splits: Splits,
    jobs: int = 1,
) -> list[HeldOut]:
    """Fit and ask heuristics fold by fold, ``jobs`` folds side by side, whosever they are.

    The ``fit(table)`` of a heuristic, where it has one, is called for each of the splits, `folds`
    of the table.

    Raises:
        TilecastError: a heuristic broke the contract of `tilecast.heuristics.heuristic.rank`.
    """
    calls = [partial(_fold, make(power), table, *split) for make in makers for split in splits]
    asked = iter(side_by_side(jobs, calls))
    results = []
    for make in makers:
        fitted, parts = zip(*(next(asked) for _ in splits), strict=True)
        picks = {i: pick for part in parts for i, pick in part.items()}
        every = tuple(picks.get(i, ()) for i in range(len(table)))
        results.append(HeldOut(make(power).name, power, every, fitted))
    return results


def side_by_side(jobs: int, calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run calls in ``jobs`` threads and return their results in order.

    Threads and not processes: fitting happens inside libraries that let go of the interpreter's
    lock, and the labels need no copy. numpy and torch multiply in the same threads and in none of
    their own, which would wait for cores that the others have.
    """
    from joblib import Parallel, delayed
    from threadpoolctl import threadpool_limits

    with one_thread(), threadpool_limits(1, user_api="blas"):
        return cast("list[Result]", Parallel(jobs, prefer="threads")(delayed(c)() for c in calls))


def _fold(
    heuristic: Heuristic, table: Sequence[ProblemLabels], fitted: np.ndarray, asked: np.ndarray
) -> tuple[Heuristic, dict[int, tuple[int, ...]]]:
    if fit := getattr(heuristic, "fit", None):
        heuristic = fit([table[i] for i in fitted])
    picks = {}
    for i in asked.tolist():
        candidates = table[i].candidates
        ranking = rank(heuristic, table[i].problem, candidates, limit=MAX_K)
        picks[i] = tuple(candidates.index(config) for config in ranking)
    return heuristic, picks


def parts_beside_library(
    rankers: Sequence[ConfigRanker], table: Sequence[ProblemLabels], splits: Splits
) -> list[tuple[BesideLibrary, ...]]:
    """What the ranker of each split says of the problems, other GPUs' too, that it has not seen."""
    return [
        beside_library(ranker, [table[i] for i in np.setdiff1d(np.arange(len(table)), seen)])
        for ranker, (seen, _) in zip(rankers, splits, strict=True)
    ]


def speeds(
    result: HeldOut,
    table: Sequence[ProblemLabels],
    splits: Splits,
    among: Collection[GemmProblem] | None = None,
) -> list[SpeedRow]:
    """Set our first choices beside the library, with deferral and without.

    Nothing of other heuristics, or where the library was not timed. Deferral is learned and its
    margin chosen on the other folds than it is scored on. These folds are not nested: what the
    margin is chosen by comes from trees and rankers that have seen the fold that is scored.

    Args:
        result: what was asked in each of the splits.
        table: labels of all problems.
        splits: the `folds` of the table.
        among: the problems that are scored; all when left out.
    """
    rankers = [one for one in result.fitted if isinstance(one, ConfigRanker)]
    if not rankers:
        return []
    choices = held_out_choices(parts_beside_library(rankers, table, splits))
    if choices is None:
        return []
    scored = np.array([among is None or problem in among for problem in choices.problems])
    masks = {name: scored & mask for name, mask in groups(choices.problems).items()}
    return [
        SpeedRow(
            result.power,
            name,
            deferral,
            int(group.sum()),
            **speed(choices.measured[group], choices.left[group] & deferral),
        )
        for name, group in masks.items()
        if group.any() and name not in BUCKETS
        for deferral in (False, True)
    ]


def evaluate(
    makers: Sequence[MakeHeuristic],
    table: Sequence[ProblemLabels],
    powers: Sequence[str],
    jobs: int = 1,
    *,
    among: Collection[GemmProblem] | None = None,
) -> dict[str, object]:
    """Score heuristics side by side, with ``jobs`` folds at a time.

    Args:
        makers: what makes the heuristics.
        table: labels of all problems, which are fitted on whether or not they are scored; none that
            was measured elsewhere is.
        powers: what to ask for, and score by.
        jobs: folds at a time.
        among: the problems that are scored, at least one of which is in the table; all when left
            out.

    Returns:
        ``regret``, a list of `RegretRow` as dicts; ``beside_library``, one of `SpeedRow` where our
        ranker is asked about problems of every fold; ``noise_floor`` by power; ``problems`` and
        ``families``, the numbers of those scored.
    """
    own = [labels.elsewhere is None for labels in table]
    wanted = np.array(own) & [among is None or labels.problem in among for labels in table]
    whole = folds(table)
    asking = ((fitted, asked[wanted[asked]]) for fitted, asked in whole)
    splits = [(fitted, asked) for fitted, asked in asking if asked.size]
    scored = [labels for labels, is_wanted in zip(table, wanted, strict=True) if is_wanted]
    # The longest fits come first, and the last of them beside what the others fit.
    asked = [one for power in powers for one in all_held_out(makers, table, power, splits, jobs)]
    by_fold = len(splits) == len(whole)
    ours = [result for result in asked if result.heuristic == ConfigRanker.name and by_fold]
    return {
        "problems": len(scored),
        "families": len({labels.problem.family for labels in scored}),
        "noise_floor": {power: noise_floor(scored, power) for power in powers},
        "regret": [asdict(row) for result in asked for row in summarise(result, table)],
        "beside_library": [asdict(row) for one in ours for row in speeds(one, table, whole, among)],
    }
