"""Steps of a model timed side by side, in turns, on a card kept busy, as a model keeps it."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

ROUNDS = 15
ROUND_SECONDS = 5e-3  # of steps between two events, so that their resolution does not matter
WARM_UP_SECONDS = 0.5

Step = Callable[[], Any]


def seconds(step: Step) -> float:
    """How long a step takes until its last kernel is done; the first time, to compile it, too."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def captured(step: Step) -> Step:
    """A step as a CUDA graph; launching it costs the host next to nothing."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        step()
    return graph.replay


def timed(steps: Mapping[str, Step]) -> dict[str, dict[str, float]]:
    """The median time of each step, which has run before, and its interquartile range over it."""
    busy_until = time.perf_counter() + WARM_UP_SECONDS
    while time.perf_counter() < busy_until:
        for step in steps.values():
            milliseconds(step, 1)
    found = {}
    for name, times in interleaved(steps, ROUNDS, milliseconds).items():
        median = statistics.median(times)
        low, _, high = statistics.quantiles(times, n=4, method="inclusive")
        found[name] = {"milliseconds": median, "spread": (high - low) / median}
    return found


def milliseconds(step: Step, count: int) -> float:
    """Time of one of ``count`` steps in a row on the GPU."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count


def interleaved(
    steps: Mapping[str, Step], rounds: int, timer: Callable[[Step, int], float]
) -> dict[str, list[float]]:
    """Milliseconds of all steps, which have run before, once a round in a rotating order."""
    once = {name: timer(step, 2) for name, step in steps.items()}
    counts = {name: max(1, round(1e3 * ROUND_SECONDS / time)) for name, time in once.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            times[name].append(timer(steps[name], counts[name]))
    return times
