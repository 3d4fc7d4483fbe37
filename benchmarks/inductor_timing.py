"""How far may Inductor's own benchmark be trusted against the model's first choice?

``python benchmarks/inductor_timing.py`` on one GPU. For each problem the shortlist is timed twice:
carefully, in interleaved rounds with the card idle in between, and as Inductor's autotuner does,
one choice after another, several times over. Where the model's first choice is right and Inductor's
benchmark picks another, it was overturned.
"""

import math
import statistics
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product

import torch
from runner import Row, Sweep, quantiles

from tilecast.data_collection.gpu_session import GpuSession
from tilecast.data_collection.protocol import without_drift
from tilecast.data_collection.tensors import empty_out, random_inputs
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.selection import shortlist
from tilecast.inductor_hook.settings import Settings
from tilecast.kernels.builder import object_builder
from tilecast.kernels.spec import KernelSpec

M = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096)
FAMILIES = ((6400, 2560), (2560, 6912), (9216, 3072), (3072, 8640))
"""(n, k) pairs that the shipped model never saw; tests/unit/test_hook_measurements.py checks."""
K, REPEATS, ROUNDS = 5, 5, 24  # shortlist; of Inductor's benchmark; of the careful timing
RIGHT = 0.003  # a first choice this close to the best of the shortlist is right
BANDS = (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.08, math.inf)
"""Tie bands that are tried: within one, the model's order decides; the last is the model alone."""


def built(problem: GemmProblem, configs: Sequence[KernelConfig]) -> GpuSession:
    """A session on the current GPU, once all kernels that it will be asked for are compiled."""
    builder = object_builder()
    for step, config in product((builder.start, builder.wait), configs):
        step(KernelSpec.for_problem(config, problem))
    return GpuSession(builder.objects, 0, lambda entrant: None)


def measure(problem: GemmProblem) -> list[Row]:
    """Microseconds of a shortlist in the model's order, with care and by Inductor's repeats."""
    from torch._inductor.runtime.benchmarking import benchmarker

    predictions = shortlist(Settings(k=K), problem, hardware(torch.cuda.get_device_name()))
    configs = [prediction.config for prediction in predictions]
    session = built(problem, configs)
    rounds = session.bench(problem, careful=False).time(configs, "burst", ROUNDS)
    careful = [statistics.median(times) for times in without_drift(rounds)]
    a, b = random_inputs(problem)
    out = empty_out(problem)
    calls = [partial(session.launcher(config, problem), a, b, out) for config in configs]
    inductor = [[1e3 * benchmarker.benchmark_gpu(call) for call in calls] for _ in range(REPEATS)]
    return [{"configs": [c.name for c in configs], "careful": careful, "inductor": inductor}]


def pick(times: Sequence[float], band: float) -> int:
    """The first, in the model's order, whose time is within ``band`` of the least."""
    limit = min(times) * (1 + band)
    return next(index for index, time in enumerate(times) if time <= limit)


def figures(rows: Sequence[Row]) -> Row:
    """What the rows say; repeatability is Inductor's most over least time of one kernel, less 1."""
    by_kernel = [times for row in rows for times in zip(*row["inductor"], strict=True)]
    spreads = [max(times) / min(times) - 1 for times in by_kernel]
    return {
        "overturned": overturned(rows),
        "regret_by_tie_band": {f"{band:g}": regret(rows, band) for band in BANDS},
        "repeatability": quantiles(spreads, p50=0.5, p95=0.95),
    }


def overturned(rows: Sequence[Row]) -> Row:
    """How often a right first choice loses in Inductor's benchmark, and what that costs."""
    right = [row for row in rows if row["careful"][0] <= min(row["careful"]) * (1 + RIGHT)]
    picks = [(row["careful"], pick(times, 0)) for row in right for times in row["inductor"]]
    lost = [careful[index] / careful[0] - 1 for careful, index in picks if index]
    return {
        "problems": len(rows),
        "right_first_choices": len(right),
        "benchmarks_of_them": len(picks),
        "overturned_share": len(lost) / max(len(picks), 1),
        "mean_loss_when_overturned": statistics.mean(lost) if lost else 0.0,
        "greatest_loss": max(lost, default=0.0),
    }


def regret(rows: Sequence[Row], band: float) -> Row:
    """What is lost with a tie band against the best of the shortlist."""
    runs = [(row["careful"], times) for row in rows for times in row["inductor"]]
    lost = [careful[pick(times, band)] / min(careful) for careful, times in runs]
    shares = {"geomean": statistics.geometric_mean(lost), **quantiles(lost, p95=0.95)}
    return {name: share - 1 for name, share in shares.items()}


PROBLEMS = {str(p): p for p in (GemmProblem(m, n, k) for n, k in FAMILIES for m in M)}
SETTINGS = {"k": K, "repeats": REPEATS, "rounds": ROUNDS, "right": RIGHT}
SWEEP = Sweep("problem", PROBLEMS, lambda: nullcontext(measure), figures, 20.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
