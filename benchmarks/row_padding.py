"""What does it give not to add rows to A where our kernels compete, as Inductor otherwise may?

``python benchmarks/row_padding.py`` on one GPU. Of problems with an odd m and any n and k that TMA
reads, those that Inductor adds rows to, which it finds faster with the library's kernels, are
timed as `kernel_speed` does: the whole, with the copy of A, beside ``torch.mm``.
"""

import math
import random
from collections.abc import Sequence
from contextlib import nullcontext
from statistics import geometric_mean
from typing import Any
from unittest.mock import patch

import torch
from kernel_speed import BATCHES, CUBLAS, ROUNDS, SelectionSession
from runner import Row, Sweep
from variants import Variant, competing, compiled, linear

from tilecast.data_collection.tensors import random_inputs
from tilecast.heuristics.problem import GemmProblem

STOCK, PADDED, OURS = map(
    Variant, ("ATEN,TRITON", "ATEN,TRITON,TILECAST k=5 padded", "ATEN,TRITON,TILECAST k=5")
)
ROWS, LEAST, MOST = (129, 4095), 256, 16384
"""Of m, from where Inductor considers it, and of n and k, drawn log-uniformly."""


def drawn(count: int) -> list[GemmProblem]:
    """Problems with an odd m."""
    draw = random.Random("row padding")

    def extent(least: int, most: int, step: int) -> int:
        return round(math.exp(draw.uniform(math.log(least), math.log(most))) / step) * step

    return [
        GemmProblem(extent(*ROWS, 2) + 1, extent(LEAST, MOST, 8), extent(LEAST, MOST, 8))
        for _ in range(count)
    ]


class PaddingSession(SelectionSession):
    """Times those that are padded."""

    def __init__(self):
        """Bind the first device that is visible."""
        super().__init__((STOCK, PADDED, OURS))

    def measure(self, problem: GemmProblem) -> list[Row]:
        """Whether Inductor adds rows for ATen's sake; where it does, what the whole takes."""
        is_padded = adds_rows(problem)
        return [{"padded": is_padded, **(super().measure(problem)[0] if is_padded else {})}]


def adds_rows(problem: GemmProblem) -> bool:
    """Whether Inductor adds rows to A of a product that only the library's kernels compete for."""
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.utils import fresh_cache

    torch._dynamo.reset()
    a, b = random_inputs(problem)
    decided: list[bool] = []

    def should_pad(*asked: Any, **options: Any) -> bool:
        decided.append(stock(*asked, **options))
        return decided[-1]

    stock = pad_mm.should_pad
    variant = Variant("ATEN")
    with fresh_cache(), competing(variant), patch.object(pad_mm, "should_pad", should_pad):
        compiled(linear, variant)(a, b.mT)
    return any(decided)


def figures(rows: Sequence[Row]) -> Row:
    """Of how many problems rows are padded; by such a one, times beside the library's."""
    beside = {}
    for row in rows:
        if row["padded"]:
            beside[row["problem"]] = {
                regime: {
                    name: geometric_mean(times) / geometric_mean(found[CUBLAS])
                    for name, times in found.items()
                    if name != CUBLAS
                }
                for regime, found in row["microseconds"].items()
            }
    return {"problems": len(rows), "padded": len(beside), "beside_cublas": beside}


PROBLEMS = [GemmProblem(227, 5064, 2192), *drawn(95)]
"""The first is the one of `kernel_speed` that was padded to its loss."""
SETTINGS = {"rounds": ROUNDS, "batches": BATCHES, "m": ROWS, "n, k": (LEAST, MOST)}
ITEMS = {str(problem): problem for problem in PROBLEMS}
SWEEP = Sweep(
    "problem", ITEMS, lambda: nullcontext(PaddingSession().measure), figures, 20.0, SETTINGS
)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
