"""Whether the model of one layout and dtype may rank the kernels of others.

The shipped model has seen bf16 with weights as ``torch.nn.Linear`` stores them (rcr). For other
layouts and dtypes the first candidates of its ranking and a random sample of the others are timed
in interleaved rounds; the regret of its first 1, 3 and 5 is taken against the best of all that were
timed.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import result

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import LINEAR_BF16, GemmOperands, GemmProblem
from tilecast.kernels.cutlass_sm90.space import candidates
from tilecast.models.learned import load_heuristic

OPERANDS = (
    LINEAR_BF16,
    GemmOperands.from_layout("rrr"),
    GemmOperands.from_layout("crr"),
    GemmOperands.from_layout("rcr", "float16"),
)
"""The model's own; gradients of the input and of the weight; half precision."""
EXTENTS = (
    (16, 6400, 2560),
    (64, 2560, 6912),
    (128, 9216, 3072),
    (256, 3072, 8640),
    (512, 6400, 2560),
    (1024, 2560, 6912),
    (2048, 9216, 3072),
    (4096, 3072, 8640),
)
"""m, n, k; no (n, k) of them was ever measured for the model."""
RANKED = 20
"""Timed from the head of the ranking."""
SAMPLED = 8
"""Timed from the rest."""
SCREEN_ROUNDS = 3
FINAL_ROUNDS = 16
NEAR = 1.06
"""Within this of the best after the screen: timed again."""


@dataclass(frozen=True)
class Transfer:
    """One problem: times in the model's order, then those of the sample."""

    layout: str
    """Majors of A, B and out."""
    dtype: str
    """Of all operands."""
    problem: str
    """m x n x k."""
    ranked: tuple[float, ...]
    """Microseconds of the model's first candidates, in its order."""
    sampled: tuple[float, ...]
    """Microseconds of candidates that it ranks lower."""

    def regret(self, k: int) -> float:
        """What the best of the first ``k`` loses against the best of all."""
        return min(self.ranked[:k]) / min(*self.ranked, *self.sampled) - 1


def figures(found: Sequence[Transfer]) -> dict[str, Any]:
    """Regret per layout and dtype, and everything it was computed from."""
    groups: dict[str, list[Transfer]] = {}
    for one in found:
        groups.setdefault(f"{one.dtype} {one.layout}", []).append(one)
    regret = {
        name: {
            f"@{k}": {
                "geomean": statistics.geometric_mean([1 + one.regret(k) for one in group]) - 1,
                "max": max(one.regret(k) for one in group),
            }
            for k in (1, 3, 5)
        }
        for name, group in groups.items()
    }
    return {"regret": regret, "measured": [asdict(one) for one in found]}


def entrants(problem: GemmProblem) -> tuple[list[KernelConfig], list[KernelConfig]]:
    """The head of the model's ranking, and a sample of the rest."""
    gpu = hardware("H200")
    model = load_heuristic(gpu, LINEAR_BF16)
    configs = candidates(problem, gpu)
    order = model.rank(replace(problem, operands=LINEAR_BF16), configs)
    rest = order[RANKED:]
    return order[:RANKED], random.Random(0).sample(rest, min(SAMPLED, len(rest)))


def measure(problem: GemmProblem) -> Transfer:
    """Time one problem's entrants on the current GPU."""
    from tilecast.data_collection.gpu_session import GpuSession
    from tilecast.data_collection.protocol import without_drift
    from tilecast.kernels.builder import object_builder

    head, sample = entrants(problem)
    session = GpuSession(object_builder().objects, 0, lambda entrant: None)
    bench = session.bench(problem, careful=False)
    everyone = [*head, *sample]
    screened = bench.time(everyone, "burst", SCREEN_ROUNDS, give_up=1.5)
    times = {c: statistics.median(t) for c, t in zip(everyone, screened, strict=True)}
    near = [c for c in everyone if times[c] <= NEAR * min(times.values())]
    final = without_drift(bench.time(near, "burst", FINAL_ROUNDS))
    times |= {c: statistics.median(t) for c, t in zip(near, final, strict=True)}
    return Transfer(
        problem.operands.layout,
        problem.operands.dtype,
        str(problem),
        tuple(times[c] for c in head),
        tuple(times[c] for c in sample),
    )


def compile_missing(problems: Sequence[GemmProblem], deadline: float) -> None:
    """Compile everything that is timed, in parallel."""
    from tilecast.kernels.builder import compile_all
    from tilecast.kernels.object_cache import ObjectCache, default_root
    from tilecast.kernels.spec import KernelSpec

    specs = [
        KernelSpec.for_problem(config, problem)
        for problem in problems
        for part in entrants(problem)
        for config in part
    ]
    results = compile_all(specs, ObjectCache(default_root()), os.cpu_count() or 1)
    for number, done in enumerate(results):
        if time.monotonic() > deadline:
            break
        if done.error or number % 100 == 0:
            print(number, done.spec.config, done.error or "compiled", flush=True)


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deadline", type=float, default=300, help="seconds after which to stop")
    result.add_out(parser)
    options = parser.parse_args()
    end = time.monotonic() + options.deadline
    os.environ.setdefault("TILECAST_CACHE", str(Path("/tmp/tilecast-objects")))
    problems = [GemmProblem(*extents, 1, operands) for operands in OPERANDS for extents in EXTENTS]
    compile_missing(problems, end)
    found: list[Transfer] = []
    for problem in problems:
        if time.monotonic() > end:
            break
        found.append(measure(problem))
        one = found[-1]
        shown = (f"@{k} {one.regret(k):.2%}" for k in (1, 3, 5))
        print(one.layout, one.dtype, one.problem, *shown, flush=True)
    result.finish(figures(found), options.out)


if __name__ == "__main__":
    main()
