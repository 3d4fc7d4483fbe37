"""Choices that are nearly the fastest are timed again while the card is at its power limit.

They are timed one by one on a card that stays cool. One that multiplies for some 100 ms meets its
power limit, and kernels that were equal before may then be 10% apart: so those near the fastest
take turns until the card is there, and then once more.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tilecast.data_collection.timing.protocol import regimes
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.timing.cuda_graph import Captured, stream

NEAR = 0.05
"""Slower than the fastest by more than this on a cool card: not timed again."""
WARM_SECONDS = 0.1
"""Busy time, after which times are those of sustained load within 0.3% at the median."""
ROUNDS = 10
"""In which all of them are timed once; their median counts."""


def near(problem: GemmProblem, power: str) -> float | None:
    """The share by which a choice that races may be slower than the fastest; None without a race.

    Only problems that can reach the power limit race, and not if ``power`` is ``burst``.
    """
    return NEAR if power != "burst" and "sustained" in regimes(problem) else None


def at_the_limit(
    timings: Mapping[Any, float], graphs: Mapping[Any, Captured], power: str, device: int
) -> dict[Any, float]:
    """Milliseconds of the choices near the fastest, raised by what they lose at the power limit.

    For ``sustained`` what they lose there against the best of them there; for ``robust`` that, or
    what they lose against the fastest on a cool card, if this is more. Nothing where fewer than
    two are near, or one of them was not timed in a graph.

    Args:
        timings: milliseconds of all choices on a cool card.
        graphs: those of the choices near the fastest.
        power: the objective.
        device: the CUDA device.
    """
    fastest = min(timings.values())
    racing = [choice for choice, time in timings.items() if time <= fastest * (1 + NEAR)]
    if len(racing) < 2 or not graphs.keys() >= set(racing):
        return {}
    limited = race([graphs[choice] for choice in racing], device)
    best = min(limited)
    cool = 1.0 if power == "robust" else 0.0
    return {
        choice: max(fastest * time / best, cool * timings[choice])
        for choice, time in zip(racing, limited, strict=True)
    }


def race(graphs: Sequence[Captured], device: int) -> list[float]:
    """Milliseconds of a launch of each of several graphs, with the card at its power limit."""
    once = sum(one.milliseconds * one.launches for one in graphs) / 1e3
    times: list[list[float]] = [[] for _ in graphs]
    with torch.cuda.device(device), torch.cuda.stream(stream(device)):
        for one in [*graphs] * math.ceil(WARM_SECONDS / once):
            one.graph.replay()
        over = [torch.cuda.Event() for _ in graphs]
        before: int | None = None
        # One is always queued behind the one that is waited for, so that the card never idles.
        for place in [*range(len(graphs))] * ROUNDS:
            graphs[place].graph.replay()
            over[place].record()
            if before is not None:
                over[before].synchronize()
                times[before].append(graphs[before].elapsed())
            before = place
        torch.cuda.synchronize()
        times[-1].append(graphs[-1].elapsed())
    return [statistics.median(found) for found in times]
