"""Whether a kernel's results are right as it is used: on the tensors that were timed, in chains.

What is compared bit by bit is what one kernel computes twice: it adds up in the same order each
time, wherever operands lie and whatever runs before.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from tilecast.data_collection.timing.correctness import wrong_elements
from tilecast.data_collection.timing.tensors import in_tiles, of_rows, poisoned, reference
from tilecast.heuristics.operands import COLUMN, GROUP_ENDS, MATRIX, ROW_BLOCKS, ROW_GROUPS
from tilecast.heuristics.problem import ALIGNMENT_BYTES, GemmProblem

MOST_COMPARED = 2**25
"""Elements of a result that are compared with the reference: rows at equal distances where it has
more, which are closer than any tile is high up to a billion elements in rows of 16,384."""
REPEATS = 3
"""How often a chain is run, as it shows only now and then that a kernel does not wait."""
PADDING = 4
"""Multiples of `ALIGNMENT_BYTES` by which padded rows are longer."""

Tensors = tuple
"""A, B, out and the operands' extras: `tilecast.data_collection.timing.tensors.launch_tensors`."""


class InUse:
    """Checks kernels of one problem, of which some operand sets were timed."""

    def __init__(self, problem: GemmProblem, first: Tensors, second: Tensors):
        """Compute the reference of the first set; ``second`` is another one, or the same."""
        self._problem = problem
        self._first, self._second = first, second
        step = math.ceil(first[2].numel() / MOST_COMPARED)
        # The last row, too, which a ragged tile has.
        first_row = (problem.m - 1) % step
        self._rows = torch.arange(first_row, problem.m, step, device=first[0].device)
        a, b, _, *extras = first
        kinds = [extra.kind for extra in problem.operands.extras]
        part = [self._part(kind, value) for kind, value in zip(kinds, extras, strict=True)]
        self._right = reference(problem, (a[..., self._rows, :], b, *part))

    def _part(self, kind: str, value: torch.Tensor | float) -> torch.Tensor | float:
        """What belongs to the rows that are compared of an extra of some kind."""
        if not isinstance(value, torch.Tensor):
            return value
        if kind == ROW_BLOCKS:
            problem = self._problem
            return in_tiles(of_rows(value, problem.m, problem.k)[self._rows])
        if kind not in (MATRIX, COLUMN, GROUP_ENDS):
            return value
        if kind == GROUP_ENDS:
            by_rows = self._problem.operands.groups == ROW_GROUPS
            return torch.searchsorted(self._rows, value) if by_rows else value
        return value[self._rows] if kind == COLUMN else value[..., self._rows, :]

    def wrong(
        self, launch: Callable[..., object], finish: Callable[[], None], *, chains: bool = True
    ) -> str | None:
        """What is wrong with a kernel's results, or None.

        Args:
            launch: its launcher.
            finish: waits for all launches so far.
            chains: whether padded operands and chains are tried, too, which is the same for any
                problem.
        """
        once = self._alone(launch, finish, self._first)
        if found := wrong_elements(once[..., self._rows, :], self._right, self._problem):
            return f"{found}, on the tensors that were timed"
        if not chains:
            return None
        padded = [_padded(one) if isinstance(one, torch.Tensor) else one for one in self._first]
        if not _same(self._alone(launch, finish, tuple(padded)), once):
            return "other results where rows are padded"
        if not self._waits_to_write(launch, finish):
            return "other results where the launch before writes to the same tensor"
        if not self._waits_to_read(launch, finish):
            return "other results where the launch before writes what it reads"
        return None

    def _alone(
        self, launch: Callable[..., object], finish: Callable[[], None], tensors: Tensors
    ) -> torch.Tensor:
        """A copy of the result of a launch that nothing else overlaps."""
        poisoned(tensors[2])
        finish()
        launch(*tensors)
        finish()
        return tensors[2].clone()

    def _waits_to_write(self, launch: Callable[..., object], finish: Callable[[], None]) -> bool:
        """Whether the later of two launches on one result has the last word."""
        a, b, _, *extras = self._second
        out = self._first[2]
        right = self._alone(launch, finish, (a, b, out, *extras))
        for _ in range(REPEATS):
            poisoned(out)
            launch(*self._first)
            launch(a, b, out, *extras)
            finish()
            if not _same(out, right):
                return False
        return True

    def _waits_to_read(self, launch: Callable[..., object], finish: Callable[[], None]) -> bool:
        """Whether a launch reads as its A what the launch before wrote, where the types allow it.

        One tensor is both: the narrower of the two is a part of its columns.
        """
        operands = self._problem.operands
        if operands.out != operands.a:
            return True
        a, b, out, *extras = self._first
        n, k = self._problem.out_n, self._problem.k
        both = (out if n >= k else a).clone()
        written, read = both[..., :n], both[..., :k]

        def chain(between: Callable[[], None]) -> None:
            poisoned(written)
            launch(a, b, written, *extras)
            between()
            launch(read, b, out, *extras)
            finish()

        chain(finish)
        right = out.clone()
        for _ in range(REPEATS):
            poisoned(out)
            chain(lambda: None)
            if not _same(out, right):
                return False
        return True


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    """The same matrix, or matrices, in longer rows; columns where these are contiguous."""
    if tensor.ndim < 2:
        return tensor
    if tensor.stride(-1) != 1:
        return _padded(tensor.mT).mT
    *rows, columns = tensor.shape
    more = PADDING * ALIGNMENT_BYTES // tensor.element_size()
    wide = torch.empty(*rows, columns + more, dtype=tensor.dtype, device=tensor.device)
    return wide[..., :columns].copy_(tensor)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same bits; NaN is like NaN, and 0 not like -0."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32}[one.element_size()]
    return torch.equal(one.view(bits), other.view(bits))
