"""How fast are the kernels that Inductor selects with each set of GEMM backends?

``python benchmarks/kernels/kernel_speed.py --gpus 4``. On the layers and the random problems of
`held_out_problems` each variant compiles, Triton's kernels once (`variants.share_ptxas`). Then all
that they selected and `torch.mm` are timed side by side as `tilecast collect` times kernels: CUDA
graphs over several operand sets, from a clean L2, rounds interleaved, with idle gaps (``burst``)
and, where the power limit can matter, under load (``sustained``). Everything is timed twice; how
far the two differ, and how far two variants that selected the same kernel do, is the noise. The
outputs are what each call allocates, since that is what compiled code does.
"""

import math
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from statistics import geometric_mean, median
from typing import cast

import numpy as np
import torch

from tilecast.data_collection.timing.drift import without_drift
from tilecast.data_collection.timing.protocol import Entrant
from tilecast.data_collection.timing.tensors import random_inputs
from tilecast.heuristics.problem import GemmProblem

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from held_out_problems import PROBLEMS, RANDOM
from races import Races
from runner import Row, Sweep
from variants import (
    NVGEMM,
    Variant,
    available,
    competing,
    compiled,
    linear,
    selection,
    share_ptxas,
)

# In this order, because Inductor takes timings from its cache where that has all choices. So TRITON
# and TILECAST alone select from what was timed when they competed with the others, side by side.
OURS = ("ATEN,TRITON,TILECAST k=5", "TILECAST k=5", "TILECAST k=1", "TILECAST k=auto")
VARIANTS = tuple(map(Variant, ("ATEN,TRITON", "TRITON", *OURS, NVGEMM)))
CUBLAS = "cuBLAS"  # `torch.mm`, as eager PyTorch calls it
RIVALS = (CUBLAS, "TRITON", NVGEMM, "ATEN,TRITON")
COMPARED = (*product(OURS, RIVALS), ("TRITON", CUBLAS), ("ATEN,TRITON", CUBLAS))
SUSTAINED_FROM_M = 256  # with fewer rows, problems stay below the power limit
ROUNDS = {"burst": 12, "sustained": 24}
BATCHES = 2  # times that everything is timed, each with its own graphs
LEVEL = 0.01  # within this of each other
MAX_RELATIVE_ERROR = 1e-2  # of ||out - reference|| / ||reference||


class SelectionSession(Races):
    """Times what variants selected, each call with an output of its own."""

    def __init__(self):
        """Bind the first device that is visible."""
        share_ptxas()
        super().__init__()
        self.outputs: list[object] = []

    def launcher(self, entrant: Entrant, problem: GemmProblem) -> Callable[..., object]:
        """What makes the call of a name."""
        call = super().launcher(entrant, problem)
        # Kept until the graphs are gone, so that each launch writes to memory of its own.
        return lambda a, b, out: self.outputs.append(call(a, b.mT))

    def measure(self, problem: GemmProblem) -> list[Row]:
        """Compile a problem with each variant, check what was selected, and time it by batch."""
        from torch._inductor.utils import fresh_cache

        torch._dynamo.reset()
        self.calls = {CUBLAS: lambda x, w: torch.mm(x, w.t())}
        with fresh_cache():
            facts = self._compile_all(problem)
            return [{"device": self.card, **facts, "microseconds": self._time_all(problem)}]

    def _compile_all(self, problem: GemmProblem) -> Row:
        """Errors are relative, or say why there is no kernel; what is right joins the calls."""
        a, b = random_inputs(problem)
        x, w = a, b.mT
        reference = a.float() @ b.float()
        selected, errors, seconds = {}, {}, {}
        for variant in available(VARIANTS):
            start = time.perf_counter()
            # What one backend cannot compile is a result; the others go on.
            try:
                with competing(variant) as sources:
                    call = compiled(linear, variant)
                    call(x, w)
                    torch.cuda.synchronize()
                seconds[variant.name] = time.perf_counter() - start
                selected[variant.name] = selection("\n".join(sources))
                # Freed at once, so that the call most likely gets this memory for its output: what
                # it leaves unwritten is then no number.
                torch.full_like(reference, math.nan, dtype=x.dtype)
                difference = torch.linalg.norm(call(x, w).float() - reference)
                errors[variant.name] = error = (difference / torch.linalg.norm(reference)).item()
                if error <= MAX_RELATIVE_ERROR:
                    self.calls[variant.name] = call
            except Exception as failure:
                errors[variant.name] = f"{type(failure).__name__}: {failure}"[:300]
        return {"selected": selected, "error": errors, "compile_seconds": seconds}

    def _time_all(self, problem: GemmProblem) -> dict[str, dict[str, list[float]]]:
        names = list(self.calls)
        bench = self.bench(problem, careful=False)
        times = {regime: {name: [] for name in names} for regime in regimes(problem)}
        for regime, _ in product(times, range(BATCHES)):
            # A bench compares entrants and asks the session what launches them, no more.
            rounds = bench.time(cast("list[Entrant]", names), regime, ROUNDS[regime])
            self.outputs.clear()
            for name, row in zip(names, without_drift(rounds), strict=True):
                times[regime][name].append(median(row))
        return times


def regimes(problem: GemmProblem) -> tuple[str, ...]:
    """Power regimes in which a problem is timed."""
    return ("burst", "sustained") if problem.m >= SUSTAINED_FROM_M else ("burst",)


def figures(rows: Sequence[Row]) -> Row:
    """Comparisons for each group of problems and every power regime."""
    failed = [
        f"{row['problem']} {name}: {error}"
        for row in rows
        for name, error in row["error"].items()
        if isinstance(error, str) or not error <= MAX_RELATIVE_ERROR
    ]
    groups = {}
    for group, problems in GROUPS.items():
        names = {*map(str, problems)}
        if own := [row for row in rows if row["problem"] in names]:
            problems = len({row["problem"] for row in own})
            groups[group] = {"problems": problems, "compared": compared(own)}
    return {"failed": failed, "groups": groups}


def compared(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, Row]]]:
    """The `comparison` of all pairs of `COMPARED` by regime, variant and rival."""
    found: dict[str, dict[str, dict[str, Row]]] = {}
    for regime, (ours, theirs) in product(ROUNDS, COMPARED):
        if pairs := ratios(rows, regime, ours, theirs):
            names = ((row, row["selected"]) for row in rows if row["problem"] in pairs)
            same = {
                row["problem"] for row, n in names if n.get(ours, ours) == n.get(theirs, theirs)
            }
            part = found.setdefault(regime, {})
            part.setdefault(ours, {})[theirs] = comparison(pairs, same)
    return found


def ratios(rows: Sequence[Row], regime: str, ours: str, theirs: str) -> dict[str, list[float]]:
    """Time of one over time of another by problem, once per batch; below 1 is faster.

    Both times are of one process and one run. Of several runs the last one counts.
    """
    found = {}
    for row in rows:
        times = row["microseconds"].get(regime, {})
        if ours in times and theirs in times:
            pairs = zip(times[ours], times[theirs], strict=True)
            found[row["problem"]] = [mine / other for mine, other in pairs]
    return found


def comparison(pairs: Mapping[str, Sequence[float]], alike: Collection[str] = ()) -> Row:
    """Figures of ratios by problem, one a batch, from the geometric mean of each problem's batches.

    On problems that are ``alike`` both selected the same kernel, so that all of the difference is
    where their memory lies and when they run. ``noise`` is what a difference must exceed to be one,
    the larger of two 95th percentiles: how far the ratios of two batches are apart, and those of
    the same kernel from 1. ``slower_beyond_noise`` counts problems that every batch finds slower
    by more than that, of those on which the two selected different kernels.
    """
    levels = {problem: geometric_mean(r) for problem, r in pairs.items()}
    repeats = [abs(math.log(r[0] / r[-1])) for r in pairs.values()]
    same = [abs(math.log(levels[problem])) for problem in alike]
    noise = max(float(np.quantile(sample, 0.95)) for sample in (repeats, same) if sample)
    slower = [min(r) > 1 + noise for problem, r in pairs.items() if problem not in alike]
    worst, level = max(levels, key=lambda name: levels[name]), np.array([*levels.values()])
    return {
        "problems": len(levels),
        "geomean": geometric_mean(levels.values()),
        "faster": float((level < 1 - LEVEL).mean()),
        "level": float((abs(level - 1) <= LEVEL).mean()),
        "worst": levels[worst],
        "worst_problem": worst,
        "noise": noise,
        "same_kernel": len(alike),
        "slower_beyond_noise": sum(slower),
    }


SETTINGS = {"rounds": ROUNDS, "batches": BATCHES, "sustained_from_m": SUSTAINED_FROM_M}
GROUPS = {"layers": PROBLEMS, "random": RANDOM}
ITEMS = {str(problem): problem for problems in GROUPS.values() for problem in problems}
SWEEP = Sweep(
    "problem", ITEMS, lambda: nullcontext(SelectionSession().measure), figures, 30.0, SETTINGS
)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
