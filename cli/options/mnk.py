"""A problem as it is typed, ``MxNxK``, whatever the alignment of the rows of its result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem, read_extents
from tilecast.inductor_hook.describe.layout import padded
from tilecast.kernels.candidates import spec_for
from tilecast.kernels.spec import KernelSpec


@dataclass(frozen=True)
class TypedProblem:
    """A problem as it is typed, and as the hook ranks it."""

    problem: GemmProblem
    """What the hook ranks: where TMA cannot store rows of so many columns, n is rounded up to the
    next number of columns that it can store."""
    columns: int
    """Columns of the result, as typed."""

    @property
    def unaligned(self) -> bool:
        """Whether the threads of a kernel store the rows of the result, as TMA cannot."""
        return self.columns != self.problem.n

    def specs(self, configs: Iterable[KernelConfig]) -> list[KernelSpec]:
        """The kernels that run it, one for each config."""
        return [spec_for(config, self.problem, self.unaligned) for config in configs]

    def __str__(self) -> str:
        """The extents as they were typed."""
        problem = self.problem
        prefix = f"{problem.batch}x" if problem.batch > 1 else ""
        return f"{prefix}{problem.m}x{self.columns}x{problem.k}"


def parse_mnk(text: str, operands: GemmOperands) -> TypedProblem:
    """Read ``MxNxK`` or ``BATCHxMxNxK``; TilecastError where it is neither, or too large."""
    batch, m, columns, k = read_extents(text)
    n = columns
    stored_by_threads = operands.a.dtype.bits == 16 and not (operands.groups or operands.gate)
    if stored_by_threads and (operands.b.major, operands.out.major) == ("col", "row"):
        n = padded(columns, operands.out.dtype.bits // 8)
    return TypedProblem(GemmProblem(m, n, k, batch, operands), columns)
