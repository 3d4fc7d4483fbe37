"""What a fused kernel would replace, as a choice that is benchmarked beside it and never taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor.runtime.benchmarking import benchmarker
from torch._inductor.select_algorithm import ExternKernelCaller, ExternKernelChoice

MARGIN = 0.02
"""How much faster than what it replaces a fused kernel has to be: more than the benchmark's own
spread."""


def _never(*operands: torch.Tensor, out: torch.Tensor, what: str) -> None:
    """What Inductor finds for a stand-in by its name; a stand-in runs what it was made with."""
    raise RuntimeError(f"{what} is only timed")


# Made once, on import: Inductor allows one of each name.
_CHOICE = ExternKernelChoice(_never, name="tilecast_stand_in")


class StandIn(ExternKernelCaller):
    """A way to compute what a fused kernel does, or the greater part of it."""

    def __init__(
        self,
        what: str,
        run: Callable[..., object],
        nodes: Sequence[Any],
        layout: Any,
        *,
        spared_ms: float | None = None,
        library: bool = False,
    ):
        """Take what is timed.

        Args:
            what: tells it from others, in the key that Inductor keeps its time under.
            run: computes it, of the nodes and ``out``, which it need not write.
            nodes: what a fused kernel reads.
            layout: of its result.
            spared_ms: where it does less than a fused kernel, what the rest takes at least.
            library: whether these are PyTorch's own operators for the very same operands.
        """
        super().__init__(_CHOICE, nodes, layout, {"what": what})
        self.run, self.spared_ms, self.library = run, spared_ms, library

    def benchmark(self, *inputs: torch.Tensor, out: torch.Tensor) -> float:
        """Milliseconds of one call."""
        return benchmarker.benchmark(self.run, inputs, {"out": out})

    def output_node(self) -> Any:
        """Nothing: where Inductor takes a stand-in, the graph is lowered as without tilecast."""
        return None

    def limit(self, milliseconds: float) -> float:
        """Milliseconds that a fused kernel may take beside it."""
        if self.spared_ms is None:
            return milliseconds * (1 - MARGIN)
        return milliseconds + self.spared_ms
