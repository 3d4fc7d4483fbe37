"""For which operands a model ranks, and for which it decides, by those that it has seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import MATRIX, GemmOperands


def lends(trained: Iterable[GemmOperands], asked: GemmOperands) -> bool:
    """Whether a model of some operands ranks for others: it has seen elements and results as wide.

    What differs beside that (another type of as many bits, another major of A or B, another vector,
    activation or scale in the epilogue) costs little where it was not seen
    (benchmarks/results/operand_transfer.json). A matrix that is added has to have been seen.
    """
    return any(_shared(one) == _shared(asked) for one in trained)


def decides(measured: Iterable[GemmOperands], asked: GemmOperands) -> bool:
    """Whether such a model may choose without a benchmark: it has seen their majors, too.

    It has seen them on the GPU that it is for: what was measured elsewhere ranks and decides not.
    """
    return lends((one for one in measured if one.layout == asked.layout), asked)


def check_decides(measured: Sequence[GemmOperands], asked: GemmOperands) -> None:
    """Refuse operands that a model of others does not choose for without a benchmark.

    Raises:
        TilecastError: it `decides` for none such.
    """
    if not decides(measured, asked):
        raise TilecastError(
            f"no model has seen operands such as {asked}; allowed without a benchmark: "
            f"as wide and stored as {', '.join(map(str, measured))}; train one, or take k=5 and a "
            "fixed m"
        )


def _shared(operands: GemmOperands) -> tuple[object, ...]:
    """What operands have in common that a model is lent among."""
    widths = (operands.a.dtype.bits, operands.b.dtype.bits, operands.out.dtype.bits)
    return *widths, operands.out.major, any(extra.kind == MATRIX for extra in operands.extras)


def check_lends(trained: Sequence[GemmOperands], asked: GemmOperands) -> None:
    """Refuse operands that a model of others does not rank for.

    Raises:
        TilecastError: it `lends` to none such.
    """
    if not lends(trained, asked):
        raise TilecastError(
            f"no model is for {asked}; allowed: what is stored in as many bits as one of "
            f"{', '.join(map(str, trained))}; train one with `tilecast train`"
        )
