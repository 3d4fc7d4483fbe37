"""How long the choices for a multiplication take in a model, whatever the host is busy with.

Inductor times one call after another, each between two events of its own, so a host that comes late
with a launch is in the time of what it launches. Here the calls are the launches of one CUDA graph,
which come back to back, each on operands that the L2 cache has not seen for a while: as the layers
of a model follow one another, and as `tilecast.data_collection.gpu_session` measures what the model
learns from. So picks from a shortlist and the library lose 0.2% instead of 1.0% of the best one's
speed, for a fifth of the time (benchmarks/results/inductor_timing.json).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary, finalize

import torch
from torch._inductor.runtime.benchmarking import benchmarker
from torch.utils.weak import WeakTensorKeyDictionary

from tilecast.data_collection.gpu_session import COLD_FACTOR, MAX_LAUNCHES, REPLAY_SECONDS
from tilecast.inductor_hook import report

REPLAYS = 5
"""Of a graph, whose median counts; one more comes before them."""

Call = Callable[[], object]

_copies: Any = WeakTensorKeyDictionary()
"""Copies of what Inductor benchmarks with, by tensor: they go when it goes."""


@dataclass(eq=False)
class Captured:
    """Launches of one choice, in a graph that goes through all sets of operands."""

    calls: Sequence[Call]
    """What is launched; they keep the operands."""
    launches: int
    """In the graph."""
    graph: torch.cuda.CUDAGraph
    start: torch.cuda.Event
    end: torch.cuda.Event
    milliseconds: float = math.inf
    """Of a launch on a card that is cool."""

    @classmethod
    def of(cls, calls: Sequence[Call]) -> Captured:
        """Capture some calls, each of which has run once, on the current stream.

        Raises:
            RuntimeError: they cannot be captured.
        """
        once = _elapsed(calls[0]) / 1e3
        launches = max(len(calls), min(MAX_LAUNCHES, math.ceil(REPLAY_SECONDS / max(once, 1e-6))))
        start, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate meanwhile.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            start.record()
            for number in range(launches):
                calls[number % len(calls)]()
            end.record()
        finally:
            graph.capture_end()
        return cls(calls, launches, graph, start, end)

    def elapsed(self) -> float:
        """Milliseconds of a launch in the last replay, which is over."""
        return self.start.elapsed_time(self.end) / self.launches


def time_in_a_graph(choice: Any) -> None:
    """Have a choice for the GPU be benchmarked as it runs in a model; as ever if that fails."""
    vars(choice)["benchmark"] = partial(_of_choice, choice, choice.benchmark)


_captured: WeakKeyDictionary[Any, Captured] = WeakKeyDictionary()
"""What choices were captured in, until `graphs_of` takes them."""


def graphs_of(choices: Iterable[Any]) -> dict[Any, Captured]:
    """What those of some choices that were timed in graphs were captured in, once."""
    return {choice: _captured.pop(choice) for choice in choices if choice in _captured}


def _of_choice(
    choice: Any, stock: Callable[..., float], *inputs: torch.Tensor, out: torch.Tensor
) -> float:
    unload = kept_loaded(getattr(choice, "bmreq", None))
    try:
        return benchmark(stock, *inputs, out=out, keep=partial(_captured.__setitem__, choice))
    finally:
        if choice in _captured:
            finalize(_captured[choice], unload).atexit = False
        else:
            unload()


def kept_loaded(request: Any) -> Call:
    """Have a kernel that Inductor benchmarks stay loaded, until what this returns is called.

    Inductor unloads it after each benchmark: Triton's since 2.15, and CUTLASS's. ``request`` is
    None for a kernel of a library.
    """
    if request is None:
        return lambda: None
    vars(request)["cleanup_run_fn"] = lambda: None

    def unload() -> None:
        del vars(request)["cleanup_run_fn"]
        request.cleanup_run_fn()

    return unload


def benchmark(
    stock: Callable[..., float],
    *inputs: torch.Tensor,
    out: torch.Tensor,
    keep: Callable[[Captured], object] = lambda captured: None,
) -> float:
    """Milliseconds of one call on some operands.

    Args:
        stock: has Inductor benchmark it.
        inputs: of the call.
        out: what it writes.
        keep: is given what was captured, if anything was.
    """
    device = out.device
    with torch.cuda.device(device), torch.cuda.stream(stream(device.index)):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        calls: list[Call] = []
        for *others, result in _operand_sets([*inputs, out], l2_bytes(device.index)):
            known = len(calls)
            with _noted(calls):
                found = stock(*others, out=result)
            if len(calls) != known + 1:
                return found  # it failed, or was timed in another way
        try:
            captured = Captured.of(calls)
            captured.milliseconds = _milliseconds(captured)
        # What cannot be captured, such as a call that waits for the card.
        except RuntimeError as error:
            report.warn_once("timing in a CUDA graph", error, then="Inductor times one by one")
            torch.cuda.synchronize()
        else:
            keep(captured)
            return captured.milliseconds
    return stock(*inputs, out=out)


@contextmanager
def _noted(calls: list[Call]) -> Iterator[None]:
    """Inside, what Inductor would benchmark in this thread runs once and is noted instead."""
    before, thread = vars(benchmarker).get("benchmark"), get_ident()
    stock = benchmarker.benchmark

    def note(function: Any, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any):
        if get_ident() != thread:
            return stock(function, args, kwargs, *rest, **options)
        call = partial(function, *(args or ()), **(kwargs or {}))
        # The first call may compile something, and benchmark it.
        vars(benchmarker)["benchmark"] = stock
        try:
            call()
        finally:
            vars(benchmarker)["benchmark"] = note
        calls.append(call)
        return 0.0

    vars(benchmarker)["benchmark"] = note
    try:
        yield
    finally:
        if before is None:
            del vars(benchmarker)["benchmark"]
        else:
            vars(benchmarker)["benchmark"] = before


def _operand_sets(tensors: Sequence[torch.Tensor], l2: int) -> Iterator[list[torch.Tensor]]:
    """Tensors, and as many copies of all of them that no launch finds its own in the L2 cache."""
    yield [*tensors]
    for number in range(1, set_count(sum(t.untyped_storage().nbytes() for t in tensors), l2)):
        yield [_copy(tensor, number) for tensor in tensors]


def set_count(set_bytes: int, l2: int) -> int:
    """Operand sets that a graph goes through, of so many bytes each, for a cache of ``l2``."""
    return max(1, min(MAX_LAUNCHES, math.ceil(COLD_FACTOR * l2 / max(set_bytes, 1))))


def _copy(tensor: torch.Tensor, number: int) -> torch.Tensor:
    """The copy of a tensor of some number, counted from 1, in memory of its own."""
    copies = _copies.setdefault(tensor, [])
    while len(copies) < number:
        # All that it is a view of: what is expanded stays so.
        storage = tensor.untyped_storage().clone()
        copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        copies.append(copy.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride()))
    return copies[number - 1]


def _milliseconds(captured: Captured) -> float:
    """Of a launch, the card being idle before each replay."""
    times = []
    for _ in range(1 + REPLAYS):
        captured.graph.replay()
        torch.cuda.synchronize()
        times.append(captured.elapsed())
    return statistics.median(times[1:])


def _elapsed(call: Call) -> float:
    """Milliseconds of one call, those that the host takes to launch it among them."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


@cache
def stream(device: int) -> torch.cuda.Stream:
    """Where graphs are captured: not the default stream, which allows none."""
    return torch.cuda.Stream(device)


@cache
def l2_bytes(device: int) -> int:
    """Size of a GPU's L2 cache."""
    return torch.cuda.get_device_properties(device).L2_cache_size
