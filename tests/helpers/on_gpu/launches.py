"""Kernels behind and beside each other on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch

from tilecast.kernels.launch import Launch

Work = tuple[torch.cuda.Stream, torch.Tensor, torch.Tensor, torch.Tensor]
"""A stream, two factors and where their product is written."""


def replayed_chain(
    launch: Launch, a: torch.Tensor, b: torch.Tensor, steps: Sequence[torch.Tensor], times: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Products by b in a row in one graph, each of the one before it, and the first one of a.

    There a kernel may begin while the one before it ends. ``steps`` are what they write, full of
    NaN before each of so many replays; behind each, all factors and their products are given.
    """
    launch(a, b, steps[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for left, out in pairwise((a, *steps)):
            launch(left, b, out)
    for _ in range(times):
        for out in steps:
            out.fill_(math.nan)
        graph.replay()
        yield from pairwise((a, *steps))


def launch_on_streams(launch: Launch, work: Sequence[Work], times: int = 10) -> None:
    """Compute all products so often, each on its stream, over NaN; then wait for all."""
    for *_, out in work:
        out.fill_(math.nan)
    torch.cuda.synchronize()
    for _ in range(times):
        for stream, a, b, out in work:
            with torch.cuda.stream(stream):
                launch(a, b, out)
    torch.cuda.synchronize()


def captured(call: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A call in a CUDA graph, and where that writes its result."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


def check_replays(call: Callable[[], torch.Tensor], operand: torch.Tensor) -> None:
    """That a CUDA graph of a call gives what the call gives, whatever an operand holds then."""
    graph, result = captured(call)
    for _ in range(3):
        operand.normal_()
        graph.replay()
        assert torch.equal(result, call())
