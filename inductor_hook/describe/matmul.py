"""A product in a graph: its problem, what is added to it, and which extents are symbolic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.describe.product import OPERATORS

LARGEST_M, LARGEST_BATCH = 16384, 1024
"""Where the sweep over a symbolic extent ends; larger problems want what these do."""


class NotCovered(Exception):
    """A product gets no tilecast choice; the message says why, in a few words."""


class Deferred(Exception):
    """A product is deferred to cuBLAS: it gets ATen's choices alone; the message says why."""


@dataclass(frozen=True)
class Matmul:
    """A product in a graph."""

    hint: GemmProblem
    """Its extents; of a symbolic one, those that Inductor benchmarks with. Where it has `any_rows`,
    n is that of the next longer rows that TMA stores, which the model knows."""
    batched: bool
    """Whether its operands carry a batch."""
    m_range: tuple[int, int] | None = None
    """Least and greatest m of a symbolic one; None where it is fixed."""
    batch_range: tuple[int, int] | None = None
    alpha: float = 1
    """Factor of the product, where something is added."""
    beta: float = 1
    """Factor of what is added."""
    inputs: tuple[str, ...] = OPERATORS["mm"].inputs
    """Those of its operator's inputs that it has, under the names of the extras that they are."""
    any_rows: bool = False
    """Whether rows of out begin anywhere, not at multiples of 16 bytes, so that TMA does not store
    them and a kernel's threads do."""

    @property
    def dynamic(self) -> bool:
        """Whether an extent is symbolic, so that each call has its own."""
        return bool(self.m_range or self.batch_range)

    def sweep(self) -> Iterator[GemmProblem]:
        """Problems that stand for all extents that there may be.

        Powers of two of a symbolic extent, and the midpoints between them where it is the only one.
        """
        alone = not (self.m_range and self.batch_range)
        for batch in _steps(self.batch_range, self.hint.batch, LARGEST_BATCH, alone):
            for m in _steps(self.m_range, self.hint.m, LARGEST_M, alone):
                yield replace(self.hint, m=m, batch=batch)


def _steps(extents: tuple[int, int] | None, fixed: int, largest: int, alone: bool) -> Sequence[int]:
    """Values that stand for all of a symbolic extent, or the fixed one, ascending."""
    if extents is None:
        return [fixed]
    least, most = extents[0], min(extents[1], largest)
    powers = [2**exponent for exponent in range(largest.bit_length())]
    middles = [3 * power // 2 for power in powers] if alone else []
    inside = (step for step in (*powers, *middles) if least <= step <= most)
    return sorted({min(least, most), most, *inside})
