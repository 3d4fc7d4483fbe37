"""Regret: what choices of kernels lose against the best one that was measured, by groups."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np

from tilecast.data_collection.problems import suites
from tilecast.heuristics.heuristic import Heuristic
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.learning.labels import ProblemLabels, spread_and_share

BUCKETS = {
    "m 1 to 16": (1, 16),
    "m 17 to 64": (17, 64),
    "m 65 to 256": (65, 256),
    "m 257 to 1024": (257, 1024),
    "m from 1025": (1025, 2**31),
}
"""Groups of problems that are reported apart, with the smallest and largest m."""
ORIGINS = {
    "random families": ("random",),
    "layers of language models": ("llm", "llama_shapes", "deepgemm"),
}
"""Others, with the suites that their families are of; each belongs to the first that has it."""


RESAMPLES = 2_000
"""Draws of families that tell how far a mean is known."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What a heuristic proposed for every problem while its family was held out."""

    heuristic: str
    """Its name."""
    objective: str
    """What it was asked for."""
    picks: tuple[tuple[int, ...], ...]
    """For each problem the indices of its configs, best first, at most `MAX_K`; none where no split
    asks about it."""
    fitted: tuple[Heuristic, ...] = ()
    """The heuristic that was asked in each split, where they are kept."""


def by_rows(problems: Sequence[GemmProblem]) -> dict[str, np.ndarray]:
    """Which problems are of each of `BUCKETS`: by name, bool [problems]."""
    m = np.array([problem.m for problem in problems])
    return {name: (m >= low) & (m <= high) for name, (low, high) in BUCKETS.items()}


def groups(problems: Sequence[GemmProblem]) -> dict[str, np.ndarray]:
    """Which problems are reported together: all, those of `BUCKETS`, batches, those of `ORIGINS`.

    Returns:
        By name, bool [problems]; "other families" are of no suite of `ORIGINS`. No batch is of any.
    """
    found = {"all": np.ones(len(problems), bool), **by_rows(problems)}
    found["batches"] = np.array([problem.batch > 1 for problem in problems])
    other = ~found["batches"]
    for name, names in ORIGINS.items():
        families = {problem.family for problem in suites.problems(names)}
        found[name] = np.array([problem.family in families for problem in problems]) & other
        other = other & ~found[name]
    return {**found, "other families": other}


def regrets(result: HeldOut, table: Sequence[ProblemLabels]) -> np.ndarray:
    """Regret of every problem at every k, `ProblemLabels.regret`; float64 [problems, MAX_K]."""
    asked = zip(table, result.picks, strict=True)
    return np.array([labels.regret(result.objective, picks) for labels, picks in asked])


def error_of_mean(regret: np.ndarray, families: Sequence[Hashable]) -> np.ndarray:
    """How far the geometric mean is known: half of the interval that holds 95% of such means.

    Families are drawn with replacement, not problems: those of one are right or wrong together.

    Args:
        regret: float64 [problems, k].
        families: of each problem.

    Returns:
        float64 [k].
    """
    places = {family: place for place, family in enumerate(dict.fromkeys(families))}
    of = [places[family] for family in families]
    sums = np.zeros((len(places), regret.shape[1]))
    np.add.at(sums, of, np.log1p(regret))
    even = np.full(len(places), 1 / len(places))
    drawn = np.random.default_rng(0).multinomial(len(places), even, RESAMPLES)
    means = np.expm1(drawn @ sums / (drawn @ np.bincount(of))[:, None])
    low, high = np.quantile(means, (0.025, 0.975), axis=0)
    return (high - low) / 2


def summarise(result: HeldOut, table: Sequence[ProblemLabels]) -> list[dict[str, Any]]:
    """Regret over all problems and over each of their `groups`, for k = 1 to `MAX_K`.

    A problem for which the heuristic proposed nothing counts in none of its rows.

    Returns:
        Rows with ``heuristic``; ``power``, the objective; ``problems``, the name of a group;
        ``count`` of its problems; ``k``, kernels that might be proposed, and how many were
        ``proposed`` on average; and the regret of the best of these, `spread_and_share`, with the
        ``error`` of its mean.
    """
    regret = regrets(result, table)
    proposed = np.array([len(picks) for picks in result.picks])
    problems = [labels.problem for labels in table]
    masks = {name: mask & (proposed > 0) for name, mask in groups(problems).items()}
    families = [problem.family for problem in problems]
    return [
        {
            **{"heuristic": result.heuristic, "power": result.objective, "problems": name},
            **{"count": int(group.sum()), "k": k},
            "proposed": float(np.minimum(proposed[group], k).mean()),
            **spread_and_share(regret[group, k - 1]),
            "error": float(error),
        }
        for name, group in masks.items()
        if group.any()
        for k, error in enumerate(error_of_mean(regret[group], [*compress(families, group)]), 1)
    ]
