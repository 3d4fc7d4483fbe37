"""Does max-autotune compile Triton's choices twice, and how long does that take?

``python benchmarks/compiled_twice.py`` on one GPU. Inductor's workers compile all choices at once;
then the process loads each to benchmark it, which compiles it again if it does not find what they
did. GEMMs of `compile_time.py` are compiled with ATen's and Triton's kernels and fresh caches, by
turns in a process as it comes and in one that shares its ptxas with the workers
(`variants.share_ptxas`). A row has the seconds of each, how many Triton kernels it compiled itself
and how many it found.
"""

import importlib
import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from compile_time import HANG_SECONDS, PROBLEMS, Extents, first_call, ratio_of_sums, warm_up
from runner import PROCESS_SECONDS, Measure, Row, Sweep
from variants import Variant, share_ptxas

PROCESSES = {"as it comes": None, "shared ptxas": share_ptxas}


@contextmanager
def measuring() -> Iterator[Measure]:
    """Start both processes; inside, they compile a GEMM by turns."""
    spawn = multiprocessing.get_context("spawn")
    pools = {name: ProcessPoolExecutor(1, spawn, begin) for name, begin in PROCESSES.items()}

    def measure(extents: Extents) -> list[Row]:
        calls = {n: pool.submit(counted, extents).result(HANG_SECONDS) for n, pool in pools.items()}
        return [{"processes": calls}]

    try:
        for pool in pools.values():
            pool.submit(warm_up).result(PROCESS_SECONDS)
        yield measure
    finally:
        for pool in pools.values():
            pool.shutdown(cancel_futures=True)


def counted(extents: Extents) -> Row:
    """Compile a GEMM; its seconds, and how many Triton kernels were compiled here and found."""
    knobs = importlib.import_module("triton").knobs
    asked: Counter[bool] = Counter()

    def note(*_: Any, cache_hit: bool, **more: Any) -> None:
        asked[cache_hit] += 1

    with patch.object(knobs.compilation, "listener", note):
        call = first_call([extents], Variant("ATEN,TRITON"))
    return call | {"compiled": asked[False], "found": asked[True]}


def figures(rows: Sequence[Row]) -> Row:
    """Sums over all GEMMs, and how many times one takes the other's seconds."""

    def sums(what: str) -> Row:
        return {name: sum(row["processes"][name][what] for row in rows) for name in PROCESSES}

    seconds = [
        {row["job"]: row["processes"][name]["seconds"] for row in rows} for name in PROCESSES
    ]
    return {
        **{what: sums(what) for what in ("seconds", "compiled", "found")},
        "as it comes to shared": ratio_of_sums(*seconds),
    }


ITEMS = {"x".join(map(str, extents)): extents for extents in PROBLEMS}
SWEEP = Sweep("job", ITEMS, measuring, figures, 20.0, {})

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
