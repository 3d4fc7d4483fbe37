"""How problems are held out: by families, fold by fold, and what runs side by side meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

import numpy as np

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.learning.labels import ProblemLabels

FOLDS = 5
"""Parts of the families; each is held out once."""

Splits = Sequence[tuple[np.ndarray, np.ndarray]]
"""For each fold the indices of the problems to fit on, and of those to be scored on."""

Result = TypeVar("Result")


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

    Problems that were measured on another GPU are fitted on, unless their family is held out, and
    never scored on.

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


def side_by_side(
    jobs: int, calls: Sequence[Callable[[], Result]], done: Callable[[], object] = lambda: None
) -> list[Result]:
    """Run calls in ``jobs`` threads and return their results in order; ``done`` is called by each.

    Threads and not processes: fitting happens inside packages that release the interpreter's lock,
    and the labels need no copy. numpy and torch multiply in the same threads and start none of
    their own, which would wait for cores that the others have.
    """
    from joblib import Parallel, delayed
    from threadpoolctl import threadpool_limits

    def run(call: Callable[[], Result]) -> Result:
        result = call()
        done()
        return result

    with one_thread(), threadpool_limits(1, user_api="blas"):
        every = Parallel(jobs, prefer="threads")(delayed(run)(call) for call in calls)
        return cast("list[Result]", every)


@contextmanager
def one_thread() -> Iterator[None]:
    """Have torch add up in one order, whatever the host; other fits run side by side.

    The number of threads is the process's. What runs side by side is therefore to be inside one of
    these as a whole: the first fit to end would give the others more threads, and the last one
    would restore what another had set.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
