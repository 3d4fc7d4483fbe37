"""Choices that compete for one multiplication: each is timed in a graph, the fastest are kept."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.timing.cuda_graph import Call, Captured, Stock, benchmark


class Contest:
    """Choices for one multiplication, which are timed in graphs one after the other.

    Graphs of those near the fastest are kept, and their kernels loaded, until it is closed.
    """

    def __init__(self, near: float | None):
        """Take how much slower than the fastest, as a share, is near; None keeps no graph."""
        self.near = near
        self.graphs: dict[Any, Captured] = {}
        self._unload: dict[Any, Call] = {}

    def enter(self, choice: Any) -> None:
        """Have a choice for the GPU be benchmarked as it runs in a model.

        Inductor's own timing is used where it cannot be captured.
        """
        vars(choice).update(
            benchmark=partial(self.benchmark, choice, choice.benchmark), tilecast_contest=self
        )

    def benchmark(
        self, choice: Any, stock: Stock, *inputs: torch.Tensor, out: torch.Tensor
    ) -> float:
        """Milliseconds of a call of a choice; its graph is kept where it may be the fastest."""
        self._drop(choice)
        # Not as an attribute, which some choices refuse to have before they are benchmarked.
        unload = kept_loaded(vars(choice).get("bmreq"))
        found: list[Captured] = []
        try:
            taken = self._timed(stock, *inputs, out=out, keep=found.append)
        except BaseException:
            unload()
            raise
        if not found or self.near is None:
            for captured in found:
                captured.graph.reset()  # before its kernel is unloaded
            unload()
            return taken
        self.graphs[choice], self._unload[choice] = found[0], unload
        fastest = min(captured.milliseconds for captured in self.graphs.values())
        for other in [*self.graphs]:
            if self.graphs[other].milliseconds > fastest * (1 + self.near):
                self._drop(other)
        return taken

    def _timed(self, stock: Stock, *inputs: torch.Tensor, **options: Any) -> float:
        """As `benchmark` in a graph; by Inductor where there is no memory for that.

        Graphs that are kept hold what their launches allocate, and go first.
        """
        try:
            return benchmark(stock, *inputs, **options)
        except torch.OutOfMemoryError as error:
            if not self.graphs:
                telemetry.warn_once(
                    "timing in a CUDA graph", error, then="Inductor times one by one"
                )
                return stock(*inputs, out=options["out"])
        self.close()
        return self._timed(stock, *inputs, **options)

    def close(self) -> None:
        """Let go of all graphs."""
        for choice in [*self.graphs]:
            self._drop(choice)

    def _drop(self, choice: Any) -> None:
        if captured := self.graphs.pop(choice, None):
            # Before its kernel is unloaded.
            captured.graph.reset()
            self._unload.pop(choice)()


def contest_of(choices: Iterable[Any]) -> Contest | None:
    """Where some choices were to be timed; None where Inductor times them by itself."""
    return next(
        (vars(c)["tilecast_contest"] for c in choices if "tilecast_contest" in vars(c)), None
    )


def kept_loaded(request: Any) -> Call:
    """Have a kernel that Inductor benchmarks stay loaded, until what this returns is called.

    Inductor unloads it after each benchmark: Triton's since 2.15, and CUTLASS's. ``request`` is
    None for a kernel of a library.
    """
    if request is None:
        return lambda: None
    vars(request)["cleanup_run_fn"] = lambda: None

    def unload() -> None:
        if vars(request).pop("cleanup_run_fn", None):
            request.cleanup_run_fn()

    return unload
