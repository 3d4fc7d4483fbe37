"""Whose product is fastest on Llama's shapes: ATen's, Inductor's best of Triton, or tilecast's?

``python benchmarks/kernels/llama_shapes.py int8 --gpus 4``, or ``bf16``, ``fp8``, ``mixed``; all
without. The benchmark of pytorch#119685, whose shapes are the suite ``int8_issue``: under
max-autotune ``mm``, ``_int_mm``, ``_scaled_mm`` with scales by row and fast accumulation, and
``mm(a, b.to(a.dtype))`` with an int8 weight. First all backends compete. Then each
compiles for itself, with the timings of Inductor's benchmark of all; the functions race as
`tilecast collect` times kernels: CUDA graphs over several operand sets, from a clean L2, rounds
interleaved, with idle gaps and under load. A backend that cannot is missing, such as ATen where
``_int_mm`` wants more than 16 rows.
"""

# These operators of torch are not exported.
# pyright: reportPrivateImportUsage=false

import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tilecast.data_collection.problems.suites import suite
from tilecast.data_collection.timing.tensors import random_inputs, reference
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from compiled_races import CompiledRaces, attempt
from races import ROUNDS, Call
from runner import Row, Sweep
from variants import Variant

K = 5
TOGETHER = Variant(f"ATEN,TRITON,TILECAST k={K}")
ALONE = {
    "ATEN": Variant("ATEN"),
    "TRITON": Variant("TRITON"),
    "TILECAST": Variant(f"TILECAST k={K}"),
}


def mm(a: Any, b: Any) -> Any:
    """Multiply two matrices of one type."""
    return torch.mm(a, b)


def int_mm(a: Any, b: Any) -> Any:
    """Multiply two matrices of int8 into int32."""
    return torch._int_mm(a, b)


def scaled_mm(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    """Multiply two matrices of fp8 into bf16, with a scale (m, 1) of A and one (1, n) of B."""
    return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=True)


def mixed_mm(a: Any, b: Any) -> Any:
    """Multiply a matrix by a narrower one."""
    return torch.mm(a, b.to(a.dtype))


class Kind(NamedTuple):
    """Operands, and what is compiled for them."""

    operands: GemmOperands
    function: Callable[..., Any]


KINDS = {
    "bf16": Kind(GemmOperands.parse("bf16:rcr"), mm),
    "int8": Kind(GemmOperands.parse("int8:rcr>int32"), int_mm),
    "fp8": Kind(GemmOperands.parse("e4m3:rcr>bf16:row-scales"), scaled_mm),
    "mixed": Kind(GemmOperands.parse("bf16xint8:rcr"), mixed_mm),
}


class ShapeRaces(CompiledRaces):
    """Times compiled functions by backend."""

    def measure(self, item: tuple[Kind, GemmProblem]) -> list[Row]:
        """Have all compete, then compile each backend alone, check, and race what is right."""
        from torch._inductor.utils import fresh_cache

        torch._dynamo.reset()
        kind, problem = item
        a, b, *scales = inputs = random_inputs(problem)
        arguments, right = (a, b, *shaped(scales)), reference(problem, inputs)
        self.calls, rows = {}, {}
        with fresh_cache():
            together, _ = attempt(kind.function, TOGETHER, arguments, right)
            for backend, variant in ALONE.items():
                rows[backend], call = attempt(kind.function, variant, arguments, right)
                # Where a backend offers nothing, Inductor falls back to ATen.
                if call and rows[backend]["selected"].startswith(backend.lower()):
                    self.calls[backend] = _with_shapes(call)
        bench = self.bench(problem, careful=False)
        times = {regime: self.timed(bench, regime) for regime in ROUNDS} if self.calls else {}
        facts = {"device": self.card, "together": together, "alone": rows}
        return [{**facts, "microseconds": times}]


def _with_shapes(call: Callable[..., object]) -> Call:
    return lambda a, b, out, *scales: call(a, b, *shaped(scales))


def shaped(scales: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Scales of A's rows as a column, and of B's columns as a row."""
    return [scale[:, None] if place == 0 else scale[None] for place, scale in enumerate(scales)]


def figures(rows: Sequence[Row]) -> Row:
    """Of each kind tilecast beside the better of the others."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row["problem"].split()[0], []).append(row)
    beside = {
        kind: {regime: _beside(found, regime) for regime in ROUNDS} for kind, found in kinds.items()
    }
    return {"beside": beside}


def _beside(rows: Sequence[Row], regime: str) -> Row:
    """On how many shapes tilecast is ahead, and its relative speed: geometric mean and least."""
    speeds = []
    for row in rows:
        times = dict(row["microseconds"].get(regime, {}))
        ours = times.pop("TILECAST", None)
        if ours and times:
            speeds.append(min(times.values()) / ours)
    ahead = sum(speed > 1 for speed in speeds)
    facts: Row = {"problems": len(speeds), "ahead": ahead}
    if speeds:
        facts |= {"speed": statistics.geometric_mean(speeds), "least": min(speeds)}
    return facts


ITEMS = {
    f"{name} {problem}": (kind, replace(problem, operands=kind.operands))
    for (name, kind), problem in product(KINDS.items(), suite("int8_issue"))
}
SETTINGS = {"k": K, "rounds": ROUNDS, "operands": {n: k.operands.text for n, k in KINDS.items()}}
SWEEP = Sweep("problem", ITEMS, lambda: nullcontext(ShapeRaces().measure), figures, 30.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
