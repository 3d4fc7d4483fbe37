"""Which configs the first choices for many problems have in common: what to compile in advance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from tilecast.data_collection.problems import suites
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import K_GROUPS, ROW_GROUPS, GemmOperands
from tilecast.heuristics.problem import GemmProblem

ASKED_SUITES, ASKED_RANDOM = ("training", "llm"), 4_000
"""Whose problems are asked about: layers that people run; and so many of the suite ``random``, with
extents of every size."""
_OF_GROUPS = {ROW_GROUPS: "grouped", K_GROUPS: "gradients"}
"""The suite whose problems are asked about where rows or k come in groups."""
FIRST = 5
"""Configs a problem, as many as the hook takes unless it is told otherwise."""


def common_problems(operands: GemmOperands) -> list[GemmProblem]:
    """Problems of many suites as of some operands; without those whose extents these forbid.

    Of groups those of one suite.
    """
    if operands.groups:
        asked = suites.suite(_OF_GROUPS[operands.groups])
    else:
        asked = (*suites.problems(ASKED_SUITES), *suites.suite("random")[:ASKED_RANDOM])
    found = []
    for problem in asked:
        with suppress(TilecastError):
            found.append(replace(problem, operands=operands))
    return found


def by_frequency(shortlists: Iterable[Iterable[KernelConfig]]) -> list[KernelConfig]:
    """The configs of some shortlists, those that stand in most of them first; ties by name."""
    counts = Counter(config for shortlist in shortlists for config in shortlist)
    return sorted(counts, key=lambda config: (-counts[config], config.name))
