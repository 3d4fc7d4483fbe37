"""Choices that compete for one product: which stay, and how each is timed, in a graph."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.select_algorithm import ExternKernelCaller

from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.describe.arguments import row
from tilecast.inductor_hook.names import names
from tilecast.inductor_hook.offer.template import TilecastCaller
from tilecast.inductor_hook.patch.torch_versions import benchmarks_calls_here
from tilecast.inductor_hook.settings import Settings, asked
from tilecast.inductor_hook.timing.cuda_graph import Call, Captured, Stock, benchmark
from tilecast.inductor_hook.timing.power_limit import near
from tilecast.inductor_hook.timing.stand_in import StandIn


def benchmarked(choices: list[Any]) -> list[Any]:
    """The choices to benchmark, of all for a product. Inductor calls this before its benchmark."""
    settings = asked()
    try:
        return _benchmarked(choices, settings) if settings else choices
    # Inductor calls it bare, and compiles on without tilecast.
    except Exception as error:
        telemetry.warn_once("selecting choices to benchmark", error)
        return choices


def _benchmarked(choices: list[Any], settings: Settings) -> list[Any]:
    for choice in choices:
        time_as_it_runs(choice)
    first = next((choice for choice in choices if isinstance(choice, TilecastCaller)), None)
    # Other operators' choices, such as convolutions', come without a template; so does ATen's for
    # groups of rows, but what stands beside a tilecast kernel is for a product.
    atens = [c for c in choices if _is_atens(c) and (first or "ktc" in c.annotations)]
    if (first or atens) and benchmarks_calls_here(choices):
        # Products that tilecast does not cover, too: timed by their calls, Triton's kernels seem
        # faster than ATen's where they are slower in a graph. Choices that compute different things
        # are not timed at the power limit.
        within = None
        if first and not any(isinstance(choice, StandIn) for choice in choices):
            within = near(first.choice.matmul.hint, settings.power)
        contest = Contest(within)
        for choice in choices:
            if choice.layout.device.type == "cuda":
                contest.enter(choice)
    if first and first.choice.settings.k == 1:
        return [c for c in choices if c is first or first.choice.unsure and c in atens]
    if first and first.choice.settings.invariant:
        return [choice for choice in choices if isinstance(choice, TilecastCaller)]
    if names(config.max_autotune_gemm_backends, "ATEN"):
        return choices
    # ATen was asked for the sake of products that no other backend covers.
    return [choice for choice in choices if choice not in atens] or choices


def _is_atens(choice: Any) -> bool:
    return isinstance(choice, ExternKernelCaller) and not isinstance(choice, StandIn)


def time_as_it_runs(choice: Any) -> None:
    """Have ATen's ``addmm`` with a row be benchmarked with the row, as it runs in a graph.

    Since 2.12 Inductor benchmarks it with the row expanded to a matrix, which ATen copies first:
    1.31x the time (kernels/EXPERIMENTS.md), so that slower kernels would win.
    """
    if not isinstance(choice, ExternKernelCaller) or choice.name != "addmm":
        return
    if [*choice.input_nodes[0].get_size()] == [choice.layout.size[-1]]:
        stock = choice.benchmark
        vars(choice)["benchmark"] = lambda bias, *rest, out: stock(row(bias), *rest, out=out)


class Contest:
    """Choices for one product, which are timed in graphs one after the other.

    Graphs of those near the fastest are kept, and their kernels loaded, until it is closed.
    """

    def __init__(self, near: float | None):
        """Keep graphs that are slower than the fastest by a share of ``near`` at most; or none."""
        self.near = near
        self.graphs: dict[Any, Captured] = {}
        self._unload: dict[Any, Call] = {}

    def enter(self, choice: Any) -> None:
        """Have a choice for the GPU be benchmarked in a graph, or by Inductor if that fails."""
        vars(choice).update(
            benchmark=partial(self.benchmark, choice, choice.benchmark), tilecast_contest=self
        )

    def benchmark(
        self, choice: Any, stock: Stock, *inputs: torch.Tensor, out: torch.Tensor
    ) -> float:
        """Milliseconds of a call of a choice; its graph is kept where it may be the fastest."""
        self._drop(choice)
        # Some choices refuse the attribute before they are benchmarked.
        unload = kept_loaded(vars(choice).get("bmreq"))
        found: list[Captured] = []
        try:
            taken = self._timed(stock, *inputs, out=out, keep=found.append)
        # Inductor passes over most choices that fail: the graphs of others stay for the race.
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
        """Time in a graph. If memory is short, drop the kept graphs, then have Inductor time."""
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
    """The contest that some choices are in; None where Inductor times them by itself."""
    return next(
        (vars(c)["tilecast_contest"] for c in choices if "tilecast_contest" in vars(c)), None
    )


def kept_loaded(request: Any) -> Call:
    """Have a kernel that Inductor benchmarks stay loaded, until what this returns is called.

    Inductor unloads it after each benchmark: Triton's since 2.15, and CUTLASS's. ATen's kernels
    have no ``request``.
    """
    if request is None:
        return lambda: None
    vars(request)["cleanup_run_fn"] = lambda: None

    def unload() -> None:
        if vars(request).pop("cleanup_run_fn", None):
            request.cleanup_run_fn()

    return unload
