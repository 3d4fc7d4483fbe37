"""Whose product is fastest on Llama's shapes: ATen's, Inductor's best of Triton, or tilecast's?

``python benchmarks/kernels/llama_shapes.py int8 --gpus 4``, or ``bf16``, ``fp8``, ``mixed``; all
without. The benchmark of pytorch#119685, whose shapes are the suite ``int8_issue``: under
max-autotune ``mm``, ``_int_mm``, ``_scaled_mm`` with scales by row and fast accumulation, and
``mm(a, b.to(a.dtype))`` with an int8 weight. First all backends compete: ``inductor`` is what its
own benchmark says of each, the best and how many ran; what is neither ATen's nor tilecast's counts
as Triton's. It times products alone, for ``mixed`` without the conversion where that is a kernel of
its own, as it is not with tilecast's. Then each backend compiles for itself, with these timings;
the functions race as `tilecast collect` times kernels: CUDA graphs over several operand sets, from
a clean L2, rounds interleaved, with idle gaps and under load. A backend that cannot is missing,
such as ATen where ``_int_mm`` wants more than 16 rows.
"""

# These operators of torch are not exported.
# pyright: reportPrivateImportUsage=false

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tilecast.data_collection.problems.suites import suite
from tilecast.data_collection.timing.protocol import Entrant
from tilecast.data_collection.timing.tensors import random_inputs, reference
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from races import RACED, Races
from runner import Row, Sweep
from variants import Variant, competing, compiled, selection

K = 5
TOGETHER = Variant(f"ATEN,TRITON,TILECAST k={K}")
ALONE = {
    "ATEN": Variant("ATEN"),
    "TRITON": Variant("TRITON"),
    "TILECAST": Variant(f"TILECAST k={K}"),
}
MAX_RELATIVE_ERROR = 1e-2  # of ||out - reference|| / ||reference||


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


class ShapeRaces(Races):
    """Times compiled functions by backend."""

    def __init__(self):
        """Bind the first device that is visible."""
        super().__init__()
        self.outputs: list[object] = []

    def launcher(self, entrant: Entrant, problem: GemmProblem) -> Callable[..., object]:
        """What makes the call of a backend."""
        call = super().launcher(entrant, problem)
        # Kept until the graphs are gone, so that each launch writes to memory of its own.
        return lambda a, b, out, *scales: self.outputs.append(call(a, b, *shaped(scales)))

    def measure(self, item: tuple[Kind, GemmProblem]) -> list[Row]:
        """Have all compete, then compile each backend alone, check, and race what is right."""
        from torch._inductor.utils import fresh_cache

        torch._dynamo.reset()
        kind, problem = item
        a, b, *scales = inputs = random_inputs(problem)
        arguments, right = (a, b, *shaped(scales)), reference(problem, inputs)
        calls, rows = {}, {}
        with fresh_cache():
            with inductor_timings() as timings:
                together, _ = attempt(kind.function, TOGETHER, arguments, right)
            for backend, variant in ALONE.items():
                rows[backend], call = attempt(kind.function, variant, arguments, right)
                # Where a backend offers nothing, Inductor falls back to ATen.
                if call and rows[backend]["selected"].startswith(backend.lower()):
                    calls[backend] = call
        inductor = {
            backend: {"choices": len(times), "microseconds": min(times)}
            for backend, times in timings.items()
        }
        times = self.race(problem, [calls], {}) if calls else {}
        self.outputs.clear()
        facts = {"device": self.card, "together": together, "alone": rows}
        return [{**facts, "inductor": inductor, "microseconds": times}]


def shaped(scales: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Scales of A's rows as a column, and of B's columns as a row."""
    return [scale[:, None] if place == 0 else scale[None] for place, scale in enumerate(scales)]


@contextmanager
def inductor_timings() -> Iterator[dict[str, list[float]]]:
    """Inside, the microseconds that Inductor measures, by the backend of the choice."""
    from torch._inductor.select_algorithm import ExternKernelCaller, get_algorithm_selector_cache

    from tilecast.inductor_hook.offer.template import FAILED_MS, TilecastCaller
    from tilecast.inductor_hook.timing.stand_in import StandIn

    backends = {ExternKernelCaller: "ATEN", TilecastCaller: "TILECAST"}
    found: dict[str, list[float]] = {}

    def note(timings: dict[Any, float], *rest: Any) -> None:
        measured: dict[str, list[float]] = {}
        for choice, milliseconds in timings.items():
            # What the hook compares a fused choice with was noted before, by backend.
            if milliseconds < FAILED_MS and not isinstance(choice, StandIn):
                backend = backends.get(type(choice), "TRITON")
                measured.setdefault(backend, []).append(1e3 * milliseconds)
        found.update(measured)  # of the one product, should it be timed twice

    # Before the hook, which takes away tilecast choices that only seem faster.
    functions = get_algorithm_selector_cache().feedback_saver_fns
    functions.insert(0, note)
    try:
        yield found
    finally:
        functions.remove(note)


def attempt(
    function: Callable[..., Any], variant: Variant, arguments: Sequence[Any], right: torch.Tensor
) -> tuple[Row, Callable[..., Any] | None]:
    """Compile and check; returns what is known of it, and the call, if it is right.

    What one backend cannot compile is a result; the others go on.
    """
    start = time.perf_counter()
    try:
        with competing(variant) as sources:
            call = compiled(function, variant)
            out = call(*arguments)
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        selected = selection("\n".join(sources))
        error = (torch.linalg.norm(out.float() - right) / torch.linalg.norm(right)).item()
    except Exception as failure:
        return {"failed": f"{type(failure).__name__}: {failure}"[:300]}, None
    row = {"compile_seconds": seconds, "selected": selected, "error": error}
    return row, call if error <= MAX_RELATIVE_ERROR else None


def figures(rows: Sequence[Row]) -> Row:
    """Of each kind and m means over the shapes, where a backend has all of them.

    And of each kind, under ``beside``, tilecast beside the better of the others.
    """
    groups: dict[str, list[Row]] = {}
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kind, extents = row["problem"].split()
        groups.setdefault(f"{kind} {extents.split('x')[0]}", []).append(row)
        kinds.setdefault(kind, []).append(row)
    return {
        "means": {name: _group(group) for name, group in groups.items()},
        "beside": {
            kind: {regime: _beside(found, regime) for regime in RACED}
            for kind, found in kinds.items()
        },
    }


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


def _group(rows: Sequence[Row]) -> Row:
    def means(found: Sequence[Row]) -> Row:
        """By backend, of the values by backend of all rows."""
        whole = [backend for backend in ALONE if all(backend in values for values in found)]
        return {b: statistics.geometric_mean(values[b] for values in found) for b in whole}

    def inductor(figure: str) -> list[Row]:
        return [{b: timed[figure] for b, timed in row["inductor"].items()} for row in rows]

    return {
        "problems": len(rows),
        "choices": means(inductor("choices")),
        "inductor": means(inductor("microseconds")),
        **{
            regime: means([row["microseconds"].get(regime, {}) for row in rows]) for regime in RACED
        },
    }


ITEMS = {
    f"{name} {problem}": (kind, replace(problem, operands=kind.operands))
    for (name, kind), problem in product(KINDS.items(), suite("int8_issue"))
}
SETTINGS = {"k": K, "rounds": RACED, "operands": {n: k.operands.text for n, k in KINDS.items()}}
SWEEP = Sweep("problem", ITEMS, lambda: nullcontext(ShapeRaces().measure), figures, 30.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
