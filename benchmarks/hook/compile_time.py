"""What does max-autotune cost? Seconds of `torch.compile` and the first call, by GEMM backend.

``python benchmarks/hook/compile_time.py`` on one GPU. Every variant has a process of its own, and
all take turns: problem by problem, in a rotating order, with fresh Inductor caches each time.
Before the first turn each compiles another shape with ATen's kernels, which takes out what all have
in common: imports, the CUDA context and the start of Inductor's own workers. Triton's kernels are
compiled once (`variants.share_ptxas`), which PyTorch 2.11 does not do by itself. What only
tilecast needs is in: its first GEMM loads the model, and without objects starts the pool that
compiles. A ``cold`` variant has an object cache of its own, empty at first, beside what the wheel
brings; the warm ones share that of `COLD`, come after it in each turn and find what it compiled.
Whole models are in ``real_models.py``.
"""

import itertools
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from tilecast.kernels.objects.shipped import shipped_keys

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from runner import PROCESS_SECONDS, Measure, Row, Sweep
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

COLD, ALL = "TILECAST cold k=5", "ATEN,TRITON,TILECAST"
NAMES = (
    *("ATEN", "TRITON", NVGEMM, "ATEN,TRITON", COLD, f"{ALL} cold k=5"),
    *("TILECAST k=1", "TILECAST k=3", "TILECAST k=5", f"{ALL} k=5"),
)
RIVALS = ("TRITON", NVGEMM, "ATEN,TRITON")
PROBLEMS = (
    (16, 6144, 4096), (256, 28672, 4096), (64, 4096, 14336), (4, 10240, 8192),
    (1024, 5120, 5120), (4096, 4096, 4096), (2, 4096, 4096), (2048, 8192, 28672),
)  # fmt: skip
"""m, n, k. None with one row, which Inductor's max-autotune modes multiply without a GEMM, whatever
the backends."""
NVGEMM_PROBLEMS = PROBLEMS[:3]  # it takes some ten seconds each
WARM_UP = (128, 512, 384)
HANG_SECONDS, STOP_SECONDS = 120.0, 10.0  # silence that ends the run; what ending may take


class Job(NamedTuple):
    """A GEMM of some m, n, k, and the variants that compile it."""

    extents: tuple[int, int, int]
    variants: list[str]


def turn(names: Sequence[str], number: int) -> list[str]:
    """The order of one turn: rotated, but cold before all that find its kernels."""
    shift = number % len(names) if names else 0
    return sorted([*names[shift:], *names[:shift]], key=lambda name: name != COLD)


def prepare(folder: str) -> None:
    """Have this process keep tilecast's kernels in a folder, and compile Triton's once."""
    os.environ["TILECAST_CACHE"] = folder
    share_ptxas()


@contextmanager
def measuring() -> Iterator[Measure]:
    """Start a process for each variant; inside, they compile a job by turns, a row for each."""
    spawn = multiprocessing.get_context("spawn")
    variants = {variant.name: variant for variant in available(map(Variant, NAMES))}
    objects = tempfile.TemporaryDirectory()
    pools = {}
    for name in variants:
        cold = name if "cold" in name else COLD
        folder = Path(objects.name) / cold.replace(" ", "_").replace(",", "_")
        folder.mkdir(0o700, exist_ok=True)
        pools[name] = ProcessPoolExecutor(1, spawn, prepare, (str(folder),))
    fresh, numbers = set(pools), itertools.count()

    def measure(job: Job) -> list[Row]:
        rows = []
        for name in turn([name for name in job.variants if name in pools], next(numbers)):
            try:
                call = pools[name].submit(compile_job, job, variants[name])
                answer = call.result(HANG_SECONDS)
            except BrokenProcessPool:
                answer = {"error": "its process died"}
            rows.append({"variant": name, "first": name in fresh, **answer})
            fresh.discard(name)
        return rows

    with objects:
        try:
            for call in [pool.submit(warm_up) for pool in pools.values()]:
                call.result(PROCESS_SECONDS)
            yield measure
        finally:
            processes = multiprocessing.active_children()
            for pool in pools.values():
                pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.join(STOP_SECONDS)
                process.kill()


def warm_up() -> None:
    """Do what every process does once, whatever it compiles."""
    from torch._inductor.async_compile import AsyncCompile

    first_call(WARM_UP, Variant("ATEN"))
    AsyncCompile.wait_pool_ready()


def compile_job(job: Job, variant: Variant) -> Row:
    """`first_call`, or its error: a backend that cannot is a result, too."""
    try:
        return first_call(job.extents, variant)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def first_call(extents: tuple[int, int, int], variant: Variant) -> Row:
    """Seconds until the first result of a GEMM, and what was selected."""
    from torch._inductor.utils import fresh_cache

    torch._dynamo.reset()
    m, n, k = extents
    x, w = (torch.randn(rows, k, dtype=torch.bfloat16, device="cuda") for rows in (m, n))
    with fresh_cache(), torch.no_grad(), competing(variant) as sources:
        torch.cuda.synchronize()
        start = time.perf_counter()
        compiled(linear, variant)(x, w)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "selected": selection("\n".join(sources))}


def figures(rows: Sequence[Row]) -> Row:
    """Sums, medians and ratios."""
    gemms: dict[str, dict[str, float]] = {name: {} for name in NAMES}
    done = [row for row in rows if "seconds" in row]
    first = {row["variant"]: row["seconds"] for row in done if row["first"]}
    for row in done:
        gemms[row["variant"]][row["job"]] = row["seconds"]
    compared = {}
    for name, seconds in gemms.items():
        if seconds:
            common = [rival for rival in RIVALS if gemms[rival].keys() & seconds]
            compared[name] = {
                "problems": len(seconds),
                "first": first.get(name),
                "sum": sum(seconds.values()),
                "median": statistics.median(seconds.values()),
                "to": {rival: ratio_of_sums(seconds, gemms[rival]) for rival in common},
            }
    failed = [f"{row['variant']} {row['job']}: {row['error']}" for row in rows if "error" in row]
    return {"gemm": compared, "failed": failed}


def ratio_of_sums(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float | None:
    """Seconds of one over seconds of another, each summed over the problems that both compiled.

    The sum is what a user waits for; the first GEMM of the process is in it. Returns None where
    they have no problem in common.
    """
    common = ours.keys() & theirs.keys()
    if not common:
        return None
    return sum(ours[name] for name in common) / sum(theirs[name] for name in common)


SETTINGS = {"warm_up": WARM_UP, "shipped_kernels": len(shipped_keys())}
JOBS = {
    "x".join(map(str, extents)): Job(
        extents, [name for name in NAMES if name != NVGEMM or extents in NVGEMM_PROBLEMS]
    )
    for extents in PROBLEMS
}
SWEEP = Sweep("job", JOBS, measuring, figures, 40.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
