"""Measures the locked set on all GPUs of this host, for ``locked_set.py``.

``python benchmarks/learner/measure_locked_set.py STORE --budget 150``; the same command resumes.
With a new store, as other versions of kernels want, only what `DATA` lacks is measured: problems
that it has no times of, or none of a family of which kernels are chosen. No model has a say in what
is measured: of each problem the first candidates by the analytic time, and a few others by chance.
To have fewer kernels to compile, only those are taken that are among the very first of some
problem, and only problems of `LINEAR_BF16`.
"""

import argparse
import json
import os
import random
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from tilecast.data_collection.dataset.dataset import (
    Dataset,
    is_reference,
    joined,
    read_dataset,
    write_dataset,
)
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.problems.suites import suite
from tilecast.data_collection.run.collect import CollectOptions, collect, target_gpu
from tilecast.data_collection.run.scheduler import Progress
from tilecast.heuristics.config import Candidates
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.kernels.families import parse_config
from tilecast.kernels.objects.cache import ObjectCache, default_root
from tilecast.models.features.features import leading
from tilecast.models.runtime.ranker import ENTRANTS

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from runner import RESULTS

DATA = RESULTS / "locked_set.parquet"
VERY_FIRST = 32
"""A kernel is measured if it is so early by the analytic time for some problem."""
CHANCE = 32
"""Most of a problem's candidates beyond the first `ENTRANTS`."""
PROBLEMS = tuple(problem for problem in suite("locked") if problem.operands == LINEAR_BF16)


class Chosen:
    """Chooses the candidates of each problem."""

    def __init__(self, problems: Sequence[GemmProblem], gpu: Hardware):
        """Find the kernels of all problems."""
        self.gpu = gpu
        firsts = [self._order(p, candidates(p, gpu)) for p in problems]
        self.kernels = np.unique(np.concatenate([order.rows[:VERY_FIRST] for order in firsts]))

    def __call__(self, problem: GemmProblem, every: Candidates) -> Candidates:
        """Those to measure."""
        order = self._order(problem, every)
        known = np.flatnonzero(np.isin(order.rows, self.kernels))
        first, rest = known[known < ENTRANTS], known[known >= ENTRANTS].tolist()
        drawn = random.Random(f"locked {problem}").sample(rest, min(CHANCE, len(rest)))
        return order.take([*first.tolist(), *drawn])

    def _order(self, problem: GemmProblem, every: Candidates) -> Candidates:
        return every.take(leading(problem, every, self.gpu, len(every))[0])


def lacking(data: Dataset, choose: Chosen) -> tuple[GemmProblem, ...]:
    """The problems of which data have no time of some family whose kernels are chosen."""
    kernels: Any = data.rows[~is_reference(data.rows)]
    known: dict[tuple[int, int, int], set[str]] = {}
    for *extents, config in kernels[["m", "n", "k", "config"]].itertuples(index=False, name=None):
        known.setdefault(tuple(extents), set()).add(parse_config(config).family)

    def complete(problem: GemmProblem) -> bool:
        chosen = choose(problem, candidates(problem, choose.gpu))
        found = known.get((problem.m, problem.n, problem.k), set())
        return {config.family for config in chosen} <= found

    return tuple(problem for problem in PROBLEMS if not complete(problem))


def show(progress: Progress) -> None:
    """Say how far it is, now and then."""
    if progress.done in (1, progress.total) or progress.done % 50 == 0:
        print(f"{progress.seconds:.0f} s: {progress.phase} {progress.done}/{progress.total}")


def main() -> None:
    """Measure what data and store lack, and export both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--budget", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--export", type=Path, default=DATA, metavar="FILE")
    options = parser.parse_args()
    import torch

    gpu, count = target_gpu(0, None), torch.cuda.device_count()
    known = read_dataset(DATA)
    choose = Chosen(PROBLEMS, gpu)
    left = lacking(known, choose)
    wanted = CollectOptions(
        left,
        options.store,
        ObjectCache(default_root()),
        gpu,
        tuple(range(count)),
        choose,
        workers=max(1, len(os.sched_getaffinity(0)) - count),
        seconds=options.budget,
        tell=print,
    )
    collect(wanted, show)
    with closing(MeasurementStore(options.store)) as store:
        write_dataset(joined([known, store.export()]), options.export)
        done = {stage: len(store.measured(stage)) for stage in ("screen", "race", "verify")}
    print(json.dumps({"problems": len(left), **done}))


if __name__ == "__main__":
    main()
