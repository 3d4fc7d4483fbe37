"""What leaves configs out of a space: rules with reasons, asked in one way for every family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilecast.heuristics.candidates import ConfigColumns, ConfigTable
from tilecast.heuristics.config import Geometry, Resources
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.family import PROBLEM, Rule, Violation

L2_SLACK = 3.5
"""How many times the problem's floor a config may take for its loads from L2. On the pilot no
config within 5% of the best took more than 3.21 times."""
FLOOR_SECONDS = 3e-6
"""Added to the roofline: launch and first load, which no small problem escapes."""


@dataclass(frozen=True)
class ConfigRule(Rule):
    """One condition on a config, whatever m, n, k."""

    violation: Callable[[Any, GemmOperands, Hardware], str | None]
    """Returns what is wrong, with the numbers, or None."""


@dataclass(frozen=True)
class ProblemRule(Rule):
    """One inequality between a config and a problem: a quantity may not exceed its limit."""

    quantity: str
    """What is limited."""
    sides: Callable[[ConfigColumns, GemmProblem, Hardware], tuple[np.ndarray, np.ndarray]]
    """Returns the quantity and its limit, an array each, one element per config."""


class RuledFamily:
    """The part of a `tilecast.kernels.family.KernelFamily` that its rules answer."""

    config_rules: ClassVar[tuple[ConfigRule, ...]]
    """What makes a config compile and run, and what a pilot left of that; one named ``axes`` ends
    the list of what is wrong with a config."""
    problem_rules: ClassVar[tuple[ProblemRule, ...]]
    """What arithmetic excludes for one problem."""
    geometry: Callable[[Any], Geometry]
    resources: Callable[[Any, GemmOperands], Resources]

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules, in the order in which they are asked."""
        return (*self.config_rules, *self.problem_rules)

    def excluded(
        self, problem: GemmProblem, columns: ConfigColumns, hardware: Hardware
    ) -> np.ndarray:
        """Where a problem rule is broken; bool [configs]."""
        broken = np.zeros(len(columns.tile_m), bool)
        for rule in self.problem_rules:
            value, limit = rule.sides(columns, problem, hardware)
            broken |= value > limit
        return broken

    def violations(
        self,
        config: Any,
        operands: GemmOperands,
        hardware: Hardware,
        problem: GemmProblem | None = None,
    ) -> Iterator[Violation]:
        """Every rule that a config breaks; none behind ``axes`` where it breaks that one."""
        for rule in self.config_rules:
            text = rule.violation(config, operands, hardware)
            if text:
                yield Violation(rule, text)
                if rule.name == "axes":
                    return
        if problem is None:
            return
        row = (config, self.geometry(config), self.resources(config, operands))
        columns = ConfigTable.of([row]).columns
        for rule in self.problem_rules:
            (value,), (limit,) = rule.sides(columns, problem, hardware)
            if value > limit:
                text = f"{rule.quantity} is {value:.4g}, allowed up to {limit:.4g}"
                yield Violation(rule, text)


def off_axis(name: str, value: object, allowed: tuple) -> str | None:
    """What is wrong where a value is none of those that a family was written for."""
    return None if value in allowed else f"{name} is {value}, allowed {allowed}"


def extents(columns: ConfigColumns, problem: GemmProblem) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel's own m and n run over: the problem's n and m under swap_ab."""
    exchange = (problem.n - problem.m) * columns.swap_ab
    return problem.m + exchange, problem.n - exchange


def tiles(columns: ConfigColumns, problem: GemmProblem) -> tuple[np.ndarray, np.ndarray]:
    """Tiles along the kernel's own m and n."""
    rows, columns_ = extents(columns, problem)
    return np.ceil(rows / columns.tile_m), np.ceil(columns_ / columns.tile_n)


def _l2_traffic(columns: ConfigColumns, problem: GemmProblem, hardware: Hardware):
    dtype = problem.operands.a.dtype
    rows, columns_ = tiles(columns, problem)
    loaded = columns.tile_m / columns.cluster_n + columns.tile_n / columns.cluster_m
    traffic = rows * columns_ * problem.batch * loaded * dtype.bytes(problem.k)
    floor = hardware.roofline_seconds(problem.flops, problem.min_bytes, dtype) + FLOOR_SECONDS
    return traffic / hardware.l2_bytes_per_second * 1e6, 0 * traffic + L2_SLACK * floor * 1e6


def _next_smaller(axis: tuple[int, ...]) -> np.ndarray:
    """For each value of an axis the next smaller one, 0 for the smallest; as a table by value."""
    table = np.zeros(axis[-1] + 1)
    table[list(axis)] = (0, *axis[:-1])
    return table


def idle_rules(tile_m: tuple[int, ...], tile_n: tuple[int, ...]) -> tuple[ProblemRule, ...]:
    """Rules against tiles and clusters that cover nothing, for a family with these tiles."""
    smaller_m, smaller_n = _next_smaller(tile_m), _next_smaller(tile_n)
    return (
        ProblemRule(
            "idle-rows",
            PROBLEM,
            "a smaller tile that already covers the whole extent leaves fewer rows of nothing",
            "the next smaller tile_m",
            lambda c, problem, _: (smaller_m[c.tile_m.astype(int)], extents(c, problem)[0] - 1),
        ),
        ProblemRule(
            "idle-columns",
            PROBLEM,
            "a smaller tile that already covers the whole extent leaves fewer columns of nothing",
            "the next smaller tile_n",
            lambda c, problem, _: (smaller_n[c.tile_n.astype(int)], extents(c, problem)[1] - 1),
        ),
        ProblemRule(
            "idle-cluster-m",
            PROBLEM,
            "a CTA of a cluster that has no tile along m takes an SM and multiplies nothing",
            "cluster_m",
            lambda c, problem, _: (c.cluster_m, tiles(c, problem)[0]),
        ),
        ProblemRule(
            "idle-cluster-n",
            PROBLEM,
            "a CTA of a cluster that has no tile along n takes an SM and multiplies nothing",
            "cluster_n",
            lambda c, problem, _: (c.cluster_n, tiles(c, problem)[1]),
        ),
    )


L2_TRAFFIC = ProblemRule(
    "l2-traffic",
    PROBLEM,
    "small tiles load the same operands so often that L2 alone takes longer than a better "
    "tile needs for everything",
    "microseconds of loads from L2, multicast counted once",
    _l2_traffic,
)
