"""Do the screens of a collection say of large products what its races say?

``python benchmarks/kernels/screen_against_race.py`` on one GPU; ``--gpus N`` spreads it. Of each
product the first kernels of the model and some of the whole space are screened twice: before, as
screens were up to protocol 3, in the order of the space; after, as they are. Then all that came
near the best in either screen are raced under sustained load. Of those within `NEAR` in the race:
how far screen over race differs from kernel to kernel, and whether the race's best was among the
finalists that a screen would send there.
"""

import fcntl
import math
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from runner import Measure, Row, Sweep

from tilecast.data_collection.timing.drift import without_drift
from tilecast.data_collection.timing.gpu_session import GpuSession
from tilecast.data_collection.timing.protocol import (
    SCREEN_ROUNDS,
    STILL_SCREENED,
    Entrant,
    finalists_of,
    settled,
)
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.build.builder import compile_all
from tilecast.kernels.objects.cache import ObjectCache, default_root
from tilecast.kernels.spec import KernelSpec
from tilecast.models.runtime.learned import load_heuristic

EXTENTS = (
    *((512, 14336, 4096), (600, 8192, 3584), (777, 4096, 11008), (1000, 5120, 5120)),
    *((1024, 28672, 4096), (1024, 8192, 8192), (1536, 6144, 4096), (2048, 4096, 4096)),
    *((2048, 7168, 2048), (2048, 16384, 2048), (2560, 2112, 7168), (3000, 10240, 8192)),
    *((4096, 4096, 14336), (4096, 7168, 4096), (4096, 8192, 8192), (5000, 7168, 16384)),
    *((6144, 3584, 18944), (8192, 4608, 3584), (8192, 8192, 1024), (8192, 24576, 1536)),
)  # 35 GFLOP to 1.2 TFLOP
FIRST, EVERY = 60, 8  # kernels of the model, and which part of the space
RACED, ROUNDS = 1.2, 24  # over the best of a screen; of the race
NEAR = 1.05  # over the race's best: what is compared
OLD_ROUNDS, OLD_FINALIST, OLD_MOST = 3, 1.15, 32  # up to protocol 3: rounds, and who was raced
GPU = hardware("H200")


def entrants_of(problem: GemmProblem) -> list[KernelConfig]:
    """The kernels that are screened, in the order of the space."""
    heuristic = load_heuristic(GPU, LINEAR_BF16)
    every = heuristic.candidates(problem)
    chosen = set(heuristic.rank(problem, every, limit=FIRST))
    chosen |= set(every.table.configs[::EVERY])
    return [config for config in every if config in chosen]


class Screens(GpuSession):
    """Screens and races kernels."""

    def __init__(self):
        """Bind the first device that is visible."""
        super().__init__(ObjectCache(default_root()), 0, lambda spec: None)

    def measure(self, problem: GemmProblem) -> list[Row]:
        """Times of those near the best, in both screens and in the race."""
        entrants: list[Entrant] = [*entrants_of(problem), None]
        bench = self.bench(problem, careful=False)
        before = dict(zip(entrants, bench.time(entrants, "sustained", OLD_ROUNDS), strict=True))
        screened = map(settled, bench.screen(entrants, SCREEN_ROUNDS, STILL_SCREENED))
        after = dict(zip(entrants, screened, strict=True))
        near = sorted(set(_within(before, RACED)) | set(_within(after, RACED)), key=str)
        raced = without_drift(bench.time([*near, None], "sustained", ROUNDS))[: len(near)]
        finalists = {
            "before": _within(before, OLD_FINALIST)[:OLD_MOST],
            "after": [one for one in finalists_of(problem, after) if one],
        }
        times = {"before": before, "after": after, "race": dict(zip(near, raced, strict=True))}
        return [
            {
                "device": self.card,
                "candidates": len(entrants) - 1,
                "configs": [config.name for config in near],
                "finalists": {
                    name: sorted(near.index(one) for one in few if one in near)
                    for name, few in finalists.items()
                },
                "microseconds": {
                    name: [round(statistics.median(found[config]), 3) for config in near]
                    for name, found in times.items()
                },
            }
        ]


def _within(times: Mapping[Entrant, Sequence[float]], factor: float) -> list[KernelConfig]:
    """The tilecast kernels within a factor of the best of them, best first."""
    medians = {config: statistics.median(row) for config, row in times.items() if config}
    limit = factor * min(medians.values())
    return sorted((one for one in medians if medians[one] <= limit), key=medians.__getitem__)


@contextmanager
def measuring() -> Iterator[Measure]:
    """Compile all kernels; where several processes want to, the first does.

    Raises:
        RuntimeError: one does not compile.
    """
    specs = {KernelSpec(c, LINEAR_BF16) for one in PROBLEMS.values() for c in entrants_of(one)}
    root = default_root()
    root.mkdir(parents=True, exist_ok=True)
    with (root / "screen_against_race.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for result in compile_all(list(specs), ObjectCache(root), len(os.sched_getaffinity(0))):
            if result.error:
                raise RuntimeError(f"{result.spec}: {result.error}")
    yield Screens().measure


def figures(rows: Sequence[Row]) -> Row:
    """How far screens are from races, and whom they send there; before and after."""
    return {name: _figures([_compared(row, name) for row in rows]) for name in ("before", "after")}


def _compared(row: Row, screen: str) -> Row:
    """One screen of a problem beside the race, of the kernels near the race's best."""
    raced, screened = row["microseconds"]["race"], row["microseconds"][screen]
    best, finalists = min(raced), row["finalists"][screen]
    near = [at for at, time in enumerate(raced) if time <= NEAR * best]
    logs = [math.log(screened[at] / raced[at]) for at in near]
    sent = [raced[at] for at in finalists]
    return {
        "near": len(near),
        "finalists": len(finalists),
        "deviation": statistics.pstdev(logs),
        "range": max(logs) - min(logs),
        "found": raced.index(best) in finalists,
        "place": 1 + sum(time < screened[raced.index(best)] for time in screened),
        "lost": min(sent) / best - 1,
    }


def _figures(found: Sequence[Row]) -> Row:
    values = {name: [one[name] for one in found] for name in found[0]}
    return {
        "problems": len(found),
        "deviation": {"median": _median(values, "deviation"), "most": max(values["deviation"])},
        "range": {"median": _median(values, "range"), "most": max(values["range"])},
        "best among finalists": sum(values["found"]),
        "place of the best": {"median": _median(values, "place"), "most": max(values["place"])},
        "most lost where it is not": max(values["lost"]),
        "finalists": _median(values, "finalists"),
        "within 5% in the race": _median(values, "near"),
    }


def _median(values: Mapping[str, list], name: str) -> float:
    return float(statistics.median(values[name]))


PROBLEMS = {f"{m}x{n}x{k}": GemmProblem(m, n, k) for m, n, k in EXTENTS}
SETTINGS = {
    **{"model's first": FIRST, "every nth of the space": EVERY, "rounds": ROUNDS},
    **{"raced within": RACED, "compared within": NEAR},
}
SWEEP = Sweep("problem", PROBLEMS, measuring, figures, 20.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
