"""For which operands a model ranks, and for which it decides, by those that it has seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import MATRIX, GemmOperands


def ranks_for(trained: Iterable[GemmOperands], asked: GemmOperands) -> bool:
    """Whether a model of some operands ranks for others: elements and results are as wide.

    What differs beside that (another type of as many bits, another major of A or B, another vector,
    activation or scale in the epilogue) costs little where it was not seen
    (models/EXPERIMENTS.md). A matrix that is added has to have been seen. Groups are ranked as a
    batch of as many.
    """
    return any(_shared(one) == _shared(asked) for one in trained)


def decides_for(measured: Iterable[GemmOperands], asked: GemmOperands) -> bool:
    """Whether such a model may choose without a benchmark: it has seen the same majors, and groups.

    ``measured`` are the operands that were timed on the GPU itself: operands that were timed on
    another GPU are ranked, and not decided.
    """
    seen = asked.layout, asked.groups
    return ranks_for((one for one in measured if seen == (one.layout, one.groups)), asked)


def check_decides_for(measured: Sequence[GemmOperands], asked: GemmOperands) -> None:
    """Raise a TilecastError for operands for which a model does not choose without a benchmark."""
    if not decides_for(measured, asked):
        raise TilecastError(
            f"no model has seen operands such as {asked}; allowed without a benchmark: "
            f"as wide and stored as {', '.join(map(str, measured))}; train one, or take k=5 and a "
            "fixed m"
        )


def check_ranks_for(trained: Sequence[GemmOperands], asked: GemmOperands) -> None:
    """Raise a TilecastError for operands for which a model does not rank."""
    if not ranks_for(trained, asked):
        raise TilecastError(
            f"no model is for {asked}; allowed: what is stored in as many bits as one of "
            f"{', '.join(map(str, trained))}; train one with `tilecast train`"
        )


def _shared(operands: GemmOperands) -> tuple[object, ...]:
    """What operands for which one model ranks have in common."""
    widths = (operands.a.dtype.bits, operands.b.dtype.bits, operands.out.dtype.bits)
    added = any(extra.kind == MATRIX for extra in operands.extras)
    return *widths, operands.out.major, added
