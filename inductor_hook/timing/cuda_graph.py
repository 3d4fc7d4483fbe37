"""How long the choices for a product take in a model, whatever the host is busy with.

Inductor times one call after another, each between two events of its own, so a host that comes late
with a launch is in the time of what it launches. Here the calls are the launches of one CUDA graph,
which come back to back, each on operands that the L2 cache has not seen for a while: as the layers
of a model follow one another, and as `tilecast.data_collection.timing.gpu_session` measures what
the model learns from. So picks from a shortlist and cuBLAS lose 0.25% instead of 1% of the best
one's speed, for a fifth of the time (benchmarks/results/inductor_timing.json).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from threading import Lock, get_ident
from typing import Any

import torch
from torch._inductor.runtime.benchmarking import benchmarker
from torch.utils.weak import WeakTensorKeyDictionary

from tilecast.data_collection.timing.gpu_session import COLD_FACTOR, MAX_LAUNCHES, REPLAY_SECONDS
from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.patch import patching
from tilecast.inductor_hook.run.static import errors_raised

REPLAYS = 5
"""Of a graph, whose median counts; one more comes before them."""

Call = Callable[[], object]

Stock = Callable[..., float]
"""Has Inductor benchmark a choice on some operands: milliseconds."""

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
            Exception: whatever keeps them from being captured.
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


def benchmark(
    stock: Stock,
    *inputs: torch.Tensor,
    out: torch.Tensor,
    keep: Callable[[Captured], object] = lambda captured: None,
) -> float:
    """Milliseconds of one call that writes ``out``, which ``stock`` has Inductor benchmark.

    ``keep`` is given what was captured, if anything was.

    Raises:
        OutOfMemoryError: the card is full.
    """
    device = out.device
    given = torch.cuda.current_stream(device)
    with torch.cuda.device(device):
        # On the caller's stream, which can use the memory again once they are gone.
        sets = _operand_sets([*inputs, out], l2_bytes(device.index))
    with torch.cuda.device(device), torch.cuda.stream(stream(device.index)):
        # Where Inductor has made the operands.
        torch.cuda.current_stream().wait_stream(given)
        calls: list[Call] = []
        for *others, result in sets:
            known = len(calls)
            with _noted(calls):
                found = stock(*others, out=result)
            if len(calls) == known:
                return found  # it failed, or was timed in another way
            if len(calls) > known + 1:
                return stock(*inputs, out=out)  # its own call is not the only one
        try:
            # torch's product would pass for that of a tilecast kernel that fails.
            with errors_raised():
                captured = Captured.of(calls)
                captured.milliseconds = _milliseconds(captured)
        except torch.OutOfMemoryError:
            raise
        # Whatever cannot be captured, such as a call that waits for the card.
        except Exception as error:
            telemetry.warn_once("timing in a CUDA graph", error, then="Inductor times one by one")
            torch.cuda.synchronize()
        else:
            keep(captured)
            return captured.milliseconds
    return stock(*inputs, out=out)


_noting: ContextVar[list[Call] | None] = ContextVar("tilecast_noting", default=None)
"""Where this thread notes what Inductor would benchmark; None where it benchmarks."""
_lock = Lock()
_noting_threads = 0


@contextmanager
def _noted(calls: list[Call]) -> Iterator[None]:
    """Inside, what Inductor would benchmark in this thread runs once and is noted instead."""
    _count(+1)
    token = _noting.set(calls)
    try:
        yield
    finally:
        _noting.reset(token)
        _count(-1)


def _count(change: int) -> None:
    """Have `_note` be called while any thread notes."""
    global _noting_threads
    with _lock:
        if not _noting_threads:
            patching.replace(benchmarker, "benchmark", partial(_note, benchmarker.benchmark))
        _noting_threads += change
        if not _noting_threads:
            patching.restore(benchmarker, "benchmark")


def _note(
    stock: Callable[..., float],
    fn: Callable[..., object],
    fn_args: Any = None,
    fn_kwargs: Any = None,
    *rest: Any,
    **options: Any,
) -> float:
    """What Inductor's benchmark does meanwhile, in every thread; its callers use its names."""
    calls = _noting.get()
    if calls is None:
        return stock(fn, fn_args, fn_kwargs, *rest, **options)
    call = partial(fn, *(fn_args or ()), **(fn_kwargs or {}))
    # The first call may compile something, and benchmark it.
    token = _noting.set(None)
    try:
        call()
    finally:
        _noting.reset(token)
    calls.append(call)
    return 0.0


def _operand_sets(tensors: Sequence[torch.Tensor], l2: int) -> list[list[torch.Tensor]]:
    """Tensors, and as many copies of all of them that no launch finds its own in the L2 cache.

    Without copies where there is no memory for them.
    """
    sets = [[*tensors]]
    count = set_count(sum(tensor.untyped_storage().nbytes() for tensor in tensors), l2)
    try:
        sets += [[_copy(tensor, number) for tensor in tensors] for number in range(1, count)]
    except torch.OutOfMemoryError:
        for tensor in tensors:
            _copies.pop(tensor, None)
    return sets


def set_count(set_bytes: int, l2: int) -> int:
    """Operand sets of so many bytes that a graph goes through, for a cache of ``l2`` bytes."""
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


def stream(device: int) -> torch.cuda.Stream:
    """Where this thread's graphs are captured: not the default stream, which allows none."""
    return _stream(device, get_ident())


@cache
def _stream(device: int, thread: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@cache
def l2_bytes(device: int) -> int:
    """Size of a GPU's L2 cache."""
    return torch.cuda.get_device_properties(device).L2_cache_size
