"""How far may a benchmark of choices be trusted, Inductor's own and the hook's?

``python benchmarks/hook/inductor_timing.py`` on one GPU. For each problem the shortlist and
cuBLAS are timed carefully, in interleaved rounds, with the card idle in between and with the card
at work; and one choice after another, cuBLAS first, several times over: as Inductor's
autotuner does, and in CUDA graphs as the hook has it do, on a quiet host and on one whose every
core is busy.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from tilecast.data_collection.timing.drift import without_drift
from tilecast.data_collection.timing.gpu_session import GpuSession
from tilecast.data_collection.timing.tensors import empty_out, random_inputs
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.select.selection import shortlist
from tilecast.inductor_hook.settings import Settings
from tilecast.inductor_hook.timing import cuda_graph
from tilecast.inductor_hook.timing.power_limit import at_the_limit, near
from tilecast.kernels.build.builder import object_builder
from tilecast.kernels.candidates import spec_for

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from runner import Row, Sweep, quantiles

M = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096)
FAMILIES = ((6400, 2560), (2560, 6912), (9216, 3072), (3072, 8640))
"""(n, k) pairs that the shipped model never saw, which a test asserts."""
K, REPEATS, ROUNDS = 5, 5, 24  # shortlist; of Inductor's benchmark; of the careful timing
REST_SECONDS = 0.1  # for the card, before choices are benchmarked
SLOWER = 0.01  # than cuBLAS, that is


def built(problem: GemmProblem, configs: Sequence[KernelConfig]) -> GpuSession:
    """A session on the current GPU, once all kernels that it will be asked for are compiled."""
    builder = object_builder()
    for step, config in product((builder.start, builder.wait), configs):
        step(spec_for(config, problem))
    return GpuSession(builder.objects, 0, lambda entrant: None)


def shortlisted(problem: GemmProblem) -> tuple[list[KernelConfig], GpuSession]:
    """The model's first `K`, best first, and a session for which they are compiled."""
    predictions = shortlist(Settings(k=K), problem, hardware(torch.cuda.get_device_name()))
    configs = [prediction.config for prediction in predictions]
    return configs, built(problem, configs)


def medians(rounds: Sequence[Sequence[float]]) -> list[float]:
    """Of the times of each entrant in interleaved rounds, less what all of a round share."""
    return [statistics.median(times) for times in without_drift(rounds)]


def measure(problem: GemmProblem) -> list[Row]:
    """Microseconds of a shortlist in the model's order and of cuBLAS, in every way."""
    configs, session = shortlisted(problem)
    entrants = [None, *configs]
    bench = session.bench(problem, careful=False)
    careful = {
        name: medians(bench.time(entrants, regime, ROUNDS)) for name, regime in CAREFUL.items()
    }
    operands, out = random_inputs(problem), empty_out(problem)
    stocks = [partial(_by_inductor, session.launcher(entrant, problem)) for entrant in entrants]
    found, seconds = {}, {}
    for host, state in (("", nullcontext()), (BUSY, busy_host())):
        with state:
            for way, benchmark in WAYS.items():
                call = partial(benchmark, problem, stocks, *operands, out=out)
                repeats = [_rested(call) for _ in range(REPEATS)]
                found[way + host] = [times for times, _ in repeats]
                seconds[way + host] = statistics.median(took for _, took in repeats) / len(stocks)
    library = {name: times[0] for name, times in careful.items()}
    library |= {way: [times[0] for times in repeats] for way, repeats in found.items()}
    ours = {name: times[1:] for name, times in careful.items()}
    ours |= {way: [times[1:] for times in repeats] for way, repeats in found.items()}
    names = [config.name for config in configs]
    return [{"configs": names, "library": library, "seconds_a_choice": seconds, **ours}]


def _rested(call: Callable[[], list[float]]) -> tuple[list[float], float]:
    """Microseconds that a benchmark in milliseconds finds on a rested card; and what it takes."""
    time.sleep(REST_SECONDS)
    start = time.perf_counter()
    return [1e3 * found for found in call()], time.perf_counter() - start


def _by_inductor(launch: Callable[..., object], *operands: torch.Tensor, out: Any) -> float:
    """Milliseconds of one call, as Inductor benchmarks a choice."""
    from torch._inductor.runtime.benchmarking import benchmarker

    a, b, *extras = operands
    return benchmarker.benchmark(launch, (a, b, out, *extras), {})


Stock = Callable[..., float]
BUSY = ", busy host"
CAREFUL = {"careful": "burst", "sustained": "sustained"}
"""What careful times are called, and the power regime that they are of."""


def _one_by_one(
    problem: GemmProblem, stocks: Sequence[Stock], *operands: torch.Tensor, out: torch.Tensor
) -> list[float]:
    return [stock(*operands, out=out) for stock in stocks]


def _in_graphs(
    problem: GemmProblem, stocks: Sequence[Stock], *operands: torch.Tensor, out: torch.Tensor
) -> list[float]:
    return [cuda_graph.benchmark(stock, *operands, out=out) for stock in stocks]


def _at_the_limit(
    problem: GemmProblem, stocks: Sequence[Stock], *operands: torch.Tensor, out: torch.Tensor
) -> list[float]:
    graphs: dict[int, cuda_graph.Captured] = {}
    times = {
        place: cuda_graph.benchmark(
            stock, *operands, out=out, keep=partial(graphs.__setitem__, place)
        )
        for place, stock in enumerate(stocks)
    }
    if near(problem, "robust"):
        times |= at_the_limit(times, graphs, "robust", 0)
    return [*times.values()]


WAYS: dict[str, Callable[..., list[float]]] = {
    "inductor": _one_by_one,
    "in graphs": _in_graphs,
    "at the limit": _at_the_limit,
}
"""How choices are benchmarked, one after the other; those near the fastest then race."""
OURS = "in graphs"
"""How they are timed where tilecast competes, before any race."""


@contextmanager
def busy_host() -> Iterator[None]:
    """Inside, every core has a process that computes and lets nobody wait for it."""
    spin = [sys.executable, "-c", "while True: sum(range(10_000))"]
    busy = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)]
    try:
        time.sleep(0.5)  # until they have begun
        yield
    finally:
        for process in busy:
            process.kill()
        for process in busy:
            process.wait()


def figures(rows: Sequence[Row]) -> Row:
    """What the rows say of every way that all of them have."""
    ways = [way + host for host, way in product(("", BUSY), WAYS)]
    return {way: of_way(rows, way) for way in ways if rows and all(way in row for row in rows)}


def of_way(rows: Sequence[Row], way: str) -> Row:
    """How a way repeats, and what is lost by its picks."""
    return {
        "repeatability": repeatability(row[way] for row in rows),
        **with_library(rows, way),
    }


def repeatability(repeats: Iterable[Sequence[Sequence[float]]]) -> Row:
    """The most over the least time of one kernel, less 1; each item has a kernel's in a column."""
    by_kernel = [times for one in repeats for times in zip(*one, strict=True)]
    return quantiles([max(times) / min(times) - 1 for times in by_kernel], p50=0.5, p95=0.95)


def with_library(rows: Sequence[Row], way: str) -> Row:
    """What picking the least of the shortlist and cuBLAS loses against the best of these.

    By power regime; beside it how often the pick is slower than cuBLAS by more than `SLOWER`.
    """
    repeats = [
        [[library, *ours] for library, ours in zip(row["library"][way], row[way], strict=True)]
        for row in rows
    ]
    seconds = statistics.mean(row["seconds_a_choice"][way] for row in rows)
    found: Row = {"seconds_a_choice": seconds}
    for name, regime in CAREFUL.items():
        lost, beside = [], []
        for row, runs in zip(rows, repeats, strict=True):
            careful = [row["library"][name], *row[name]]
            picked = [careful[times.index(min(times))] for times in runs]
            lost += [time / min(careful) for time in picked]
            beside += [time / careful[0] for time in picked]
        shares = {"geomean": statistics.geometric_mean(lost), **quantiles(lost, p95=0.95, most=1.0)}
        found[f"{regime}, library"] = {figure: share - 1 for figure, share in shares.items()}
        slower = [share > 1 + SLOWER for share in beside]
        found[f"{regime}, library"]["slower_than_library"] = sum(slower) / len(slower)
    return found


PROBLEMS = {str(p): p for p in (GemmProblem(m, n, k) for n, k in FAMILIES for m in M)}
SETTINGS = {"k": K, "repeats": REPEATS, "rounds": ROUNDS}
SWEEP = Sweep("problem", PROBLEMS, lambda: nullcontext(measure), figures, 6.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
