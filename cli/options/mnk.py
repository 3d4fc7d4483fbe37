"""A multiplication as a command takes it: its extents, whatever rows its result has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem, read_extents
from tilecast.inductor_hook.describe.layout import padded
from tilecast.kernels.spec import KernelSpec


@dataclass(frozen=True)
class Written:
    """A multiplication as one writes it, ``MxNxK``, whatever rows its result has."""

    problem: GemmProblem
    """What the hook ranks for: where TMA does not store rows of so many columns, with the next
    longer ones that it does."""
    columns: int
    """Of the result."""

    @property
    def any_rows(self) -> bool:
        """Whether rows of the result begin anywhere, so that a kernel's threads store them."""
        return self.columns != self.problem.n

    def specs(self, configs: Iterable[KernelConfig]) -> list[KernelSpec]:
        """The kernels that run it, one for each of some configs."""
        return [KernelSpec.for_problem(config, self.problem, self.any_rows) for config in configs]

    def __str__(self) -> str:
        """The extents, as they were written."""
        problem = self.problem
        prefix = f"{problem.batch}x" if problem.batch > 1 else ""
        return f"{prefix}{problem.m}x{self.columns}x{problem.k}"


def as_written(text: str, operands: GemmOperands) -> Written:
    """A multiplication of ``MxNxK``, or ``BATCHxMxNxK``.

    Args:
        text: the extents.
        operands: dtypes and majors.

    Raises:
        TilecastError: the text is not of that form, or an extent is not allowed.
    """
    batch, m, columns, k = read_extents(text)
    n = columns
    if (operands.b.major, operands.out.major) == ("col", "row"):
        n = padded(columns, operands.out.dtype.bits // 8)
    return Written(GemmProblem(m, n, k, batch, operands), columns)
