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
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import torch

from tilecast.data_collection.timing.tensors import random_inputs
from tilecast.heuristics.problem import GemmProblem

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from compiled_races import CompiledRaces, attempt, with_weight
from held_out_problems import PROBLEMS, RANDOM
from races import MAX_RELATIVE_ERROR, ROUNDS
from runner import Row, Sweep
from variants import NVGEMM, Variant, available, linear

# In this order, because Inductor takes timings from its cache where that has all choices. So TRITON
# and TILECAST alone select from what was timed when they competed with the others, side by side.
OURS = ("ATEN,TRITON,TILECAST k=5", "TILECAST k=5", "TILECAST k=1", "TILECAST k=auto")
VARIANTS = tuple(map(Variant, ("ATEN,TRITON", "TRITON", *OURS, NVGEMM)))
CUBLAS = "cuBLAS"  # `torch.mm`, as eager PyTorch calls it
RIVALS = (CUBLAS, "TRITON", NVGEMM, "ATEN,TRITON")
COMPARED = (*product(OURS, RIVALS), ("TRITON", CUBLAS), ("ATEN,TRITON", CUBLAS))
SUSTAINED_FROM_M = 256  # with fewer rows, problems stay below the power limit
BATCHES = 2  # times that everything is timed, each with its own graphs
LEVEL = 0.01  # within this of each other


class SelectionRaces(CompiledRaces):
    """Times what variants selected."""

    def measure(self, problem: GemmProblem) -> list[Row]:
        """Compile a problem with each variant, check what was selected, and time it by batch."""
        from torch._inductor.utils import fresh_cache

        torch._dynamo.reset()
        self.calls = {CUBLAS: lambda a, b, out: torch.mm(a, b)}
        with fresh_cache():
            facts = self._compile_all(problem)
            return [{"device": self.card, **facts, "microseconds": self._time_all(problem)}]

    def _compile_all(self, problem: GemmProblem) -> Row:
        """Errors are relative, or say why there is no kernel; what is right joins the calls."""
        a, b = random_inputs(problem)
        right = a.float() @ b.float()
        found: dict[str, Row] = {"selected": {}, "error": {}, "compile_seconds": {}}
        for variant in available(VARIANTS):
            row, call = attempt(linear, variant, (a, b.mT), right)
            row.setdefault("error", row.pop("failed", None))
            for what, value in row.items():
                found[what][variant.name] = value
            if call:
                self.calls[variant.name] = with_weight(call)
        return found

    def _time_all(self, problem: GemmProblem) -> dict[str, dict[str, list[float]]]:
        bench = self.bench(problem, careful=False)
        times = {regime: {name: [] for name in self.calls} for regime in regimes(problem)}
        for regime, _ in product(times, range(BATCHES)):
            for name, time in self.timed(bench, regime).items():
                times[regime][name].append(time)
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
    "problem", ITEMS, lambda: nullcontext(SelectionRaces().measure), figures, 30.0, SETTINGS
)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
