"""What `torch.compile` makes of a function: whether it is right, and timed beside others."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from races import MAX_RELATIVE_ERROR, ROUNDS, Call, Races, medians
from runner import Row
from variants import Variant, competing, compiled, selection, share_ptxas

from tilecast.data_collection.timing.protocol import Bench, Entrant
from tilecast.data_collection.timing.tensors import poisoned
from tilecast.heuristics.problem import GemmProblem


class CompiledRaces(Races):
    """Times compiled functions, each call with an output of its own."""

    def __init__(self):
        """Bind the first device that is visible, and have Triton's kernels compiled once."""
        share_ptxas()
        super().__init__()
        self.outputs: list[object] = []

    def launcher(self, entrant: Entrant, problem: GemmProblem) -> Call:
        """What makes the call of a name."""
        call = super().launcher(entrant, problem)
        # Kept until the graphs are gone, so that each launch writes to memory of its own.
        return lambda *tensors: self.outputs.append(call(*tensors))

    def timed(self, bench: Bench, regime: str) -> dict[str, float]:
        """Microseconds of all calls, by name."""
        times = medians(bench, self.calls, regime, ROUNDS[regime])
        self.outputs.clear()
        return times


def with_weight(call: Callable[..., object]) -> Call:
    """A call of A and of B as a weight is stored, of what a launch is given."""
    return lambda a, b, out, *extras: call(a, b.mT, *extras)


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
        # Freed at once, so that the next call most likely gets this memory for its output: what it
        # leaves unwritten is then no number.
        poisoned(out)
        del out
        difference = torch.linalg.norm(call(*arguments).float() - right)
        error = (difference / torch.linalg.norm(right)).item()
    except Exception as failure:
        return {"failed": f"{type(failure).__name__}: {failure}"[:300]}, None
    selected = selection("\n".join(sources))
    row = {"compile_seconds": seconds, "selected": selected, "error": error}
    return row, call if error <= MAX_RELATIVE_ERROR else None
