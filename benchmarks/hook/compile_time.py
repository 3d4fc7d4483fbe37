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
    gemm_calls,
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
BARS = {
    "k=5 warm at most 0.35 of TRITON": ("TILECAST k=5", "TRITON", 0.35),
    "k=5 cold at most TRITON": (COLD, "TRITON", 1.0),
    "k=1 warm at most 0.1 of TRITON": ("TILECAST k=1", "TRITON", 0.1),
    "k=5 warm at most 0.1 of NVGEMM": ("TILECAST k=5", NVGEMM, 0.1),
    "beside both warm at most 1.05 of both": (f"{ALL} k=5", "ATEN,TRITON", 1.05),
    "beside both cold at most 1.15 of both": (f"{ALL} cold k=5", "ATEN,TRITON", 1.15),
}
"""What was promised: a variant, its rival, and the most that the ratio of sums may be."""
PROBLEMS = (
    (16, 6144, 4096), (256, 28672, 4096), (64, 4096, 14336), (4, 10240, 8192),
    (1024, 5120, 5120), (4096, 4096, 4096), (2, 4096, 4096), (2048, 8192, 28672),
)  # fmt: skip
"""m, n, k. None with one row, which Inductor's max-autotune modes multiply without a GEMM, whatever
the backends."""
NVGEMM_PROBLEMS = PROBLEMS[:3]  # it takes some ten seconds each
WARM_UP = (128, 512, 384)
HANG_SECONDS, STOP_SECONDS = 120.0, 10.0  # silence that ends the run; what ending may take

Extents = tuple[int, int, int]


class Job(NamedTuple):
    """What is compiled as one graph: GEMMs of some m, n, k; and the variants that compile it."""

    name: str
    extents: Sequence[Extents]
    variants: list[str]


def jobs(names: Sequence[str]) -> list[Job]:
    """Every GEMM."""
    found = []
    for extents in PROBLEMS:
        wanted = [name for name in names if name != NVGEMM or extents in NVGEMM_PROBLEMS]
        found.append(Job("x".join(map(str, extents)), [extents], wanted))
    return found


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
                call = pools[name].submit(compile_job, job.extents, variants[name])
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

    first_call([WARM_UP], Variant("ATEN"))
    AsyncCompile.wait_pool_ready()


def compile_job(extents: Sequence[Extents], variant: Variant) -> Row:
    """`first_call`, or its error: a backend that cannot is a result, too."""
    try:
        return first_call(extents, variant)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def products(*operands: torch.Tensor) -> list[torch.Tensor]:
    """Multiply each two by `linear`."""
    return [linear(*pair) for pair in zip(operands[::2], operands[1::2], strict=True)]


def first_call(extents: Sequence[Extents], variant: Variant) -> Row:
    """Seconds until the first result of some GEMMs, and what was selected."""
    from torch._inductor.utils import fresh_cache

    torch._dynamo.reset()
    arguments = [
        torch.randn(rows, k, dtype=torch.bfloat16, device="cuda")
        for m, n, k in extents
        for rows in (m, n)
    ]
    with fresh_cache(), torch.no_grad(), competing(variant) as sources:
        torch.cuda.synchronize()
        start = time.perf_counter()
        compiled(products, variant)(*arguments)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    code = "\n".join(sources)
    selected = selection(code) if len(extents) == 1 else dict(gemm_calls(code))
    return {"seconds": seconds, "selected": selected}


def figures(rows: Sequence[Row]) -> Row:
    """Sums, medians, ratios and bars."""
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
    bars = {
        promise: compared[ours]["to"][rival] <= limit
        for promise, (ours, rival, limit) in BARS.items()
        if rival in compared.get(ours, {}).get("to", {})
    }
    return {"gemm": compared, "failed": failed, "bars": bars}


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
SWEEP = Sweep("job", {job.name: job for job in jobs(NAMES)}, measuring, figures, 40.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
