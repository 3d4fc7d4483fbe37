"""How short may the pauses of the measurement protocol be?

``python benchmarks/pauses.py`` on one GPU. Most of the seconds that a problem takes are the idle
gap before each replay in the burst regime and the warming up before the first one in the sustained
regime. Shortlists and the library are timed with one pause after the other, the longest twice: what
the others change, of all times at once and of one against the other, stands beside how far that one
repeats.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from time import perf_counter, sleep
from unittest.mock import patch

import numpy as np
from inductor_timing import FAMILIES, ROUNDS, K, medians, shortlisted
from runner import Row, Sweep, quantiles

from tilecast.data_collection.timing import gpu_session
from tilecast.data_collection.timing.protocol import regimes
from tilecast.heuristics.problem import GemmProblem

M = (16, 512, 2048)
REST_SECONDS = 0.2  # for the card, before each
PAUSES = {
    "burst": ("GAP_SECONDS", (5e-3, 5e-3, 2e-3, 1e-3, 5e-4, 2e-4)),
    "sustained": ("WARM_UP_SECONDS", (0.5, 0.5, 0.25, 0.15, 0.1)),
}
"""By regime what is varied, and in which steps; the first is what the others are held against."""


def measure(problem: GemmProblem) -> list[Row]:
    """Seconds and microseconds of a shortlist with the library in front, by regime and pause."""
    configs, session = shortlisted(problem)
    bench = session.bench(problem, careful=False)
    entrants = [None, *configs]
    bench.time(entrants, "burst", ROUNDS)  # kernels are loaded
    row: Row = {"configs": [config.name for config in configs]}
    for regime in regimes(problem):
        name, steps = PAUSES[regime]
        row[regime] = [
            _timed(name, pause, partial(bench.time, entrants, regime, ROUNDS)) for pause in steps
        ]
    return [row]


def _timed(name: str, pause: float, rounds: Callable[[], list[list[float]]]) -> Row:
    # What else would end a pause does not.
    with (
        patch.object(gpu_session, name, pause),
        patch.object(gpu_session, "GAP_PER_BUSY", math.inf),
        patch.object(gpu_session, "WARM_UP_PER_IDLE", math.inf),
    ):
        sleep(REST_SECONDS)
        start = perf_counter()
        times = rounds()
        seconds = perf_counter() - start
    return {"pause": pause, "seconds": seconds, "microseconds": medians(times)}


def figures(rows: Sequence[Row]) -> Row:
    """By regime, what each pause changes against the longest; and what that one does repeated."""
    found: Row = {}
    for regime, (_, steps) in PAUSES.items():
        if of_regime := [row[regime] for row in rows if regime in row]:
            names = ["longest", "repeated", *(f"{pause:g}" for pause in steps[2:])]
            found[regime] = {name: _changes(of_regime, at) for at, name in enumerate(names) if at}
    return found


def _changes(rows: Sequence[Sequence[Row]], at: int) -> Row:
    """Of the times with the pause at a place, against those with the first."""
    logs = [np.log(row[at]["microseconds"]) - np.log(row[0]["microseconds"]) for row in rows]
    levels = [change.mean() for change in logs]
    among = [abs(change - level) for change, level in zip(logs, levels, strict=True)]
    lost = [_lost(row[at]["microseconds"], row[0]["microseconds"]) for row in rows]
    return {
        "problems": len(rows),
        "seconds": statistics.mean(row[at]["seconds"] for row in rows),
        "level": float(np.expm1(np.mean(levels))),
        "relative": quantiles(np.concatenate(among), p50=0.5, p90=0.9, most=1.0),
        "regret": statistics.mean(lost),
    }


def _lost(chosen_by: Sequence[float], times: Sequence[float]) -> float:
    """What the fastest of ours by some times loses by others."""
    ours = times[1:]
    return ours[int(np.argmin(chosen_by[1:]))] / min(ours) - 1


PROBLEMS = {str(p): p for m in M for n, k in FAMILIES for p in [GemmProblem(m, n, k)]}
SETTINGS = {"k": K, "rounds": ROUNDS, "rest_seconds": REST_SECONDS}
SWEEP = Sweep("problem", PROBLEMS, lambda: nullcontext(measure), figures, 15.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
