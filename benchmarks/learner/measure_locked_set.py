"""Measures the locked set on all GPUs of this host, for ``locked_set.py``.

``python benchmarks/learner/measure_locked_set.py STORE --budget 150``; the same command resumes.
With a new store, as other versions of kernels want, only what `DATA` lacks is measured. No model
has a say in what is measured: of each problem the first candidates by the analytic time, and a few
others by chance. To have fewer kernels to compile, only those are taken that are among the very
first of some problem, and only problems of `LINEAR_BF16`.
"""

import argparse
import json
import os
import random
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd

from tilecast.data_collection.dataset.dataset import joined, read_dataset, write_dataset
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.problems.suites import suite
from tilecast.data_collection.run.collect import CollectOptions, collect, target_gpu
from tilecast.data_collection.run.scheduler import Progress
from tilecast.heuristics.config import Candidates
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
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


def lacking(rows: pd.DataFrame) -> tuple[GemmProblem, ...]:
    """The problems that no row is of."""
    known = {*rows[["m", "n", "k"]].itertuples(index=False, name=None)}
    return tuple(problem for problem in PROBLEMS if (problem.m, problem.n, problem.k) not in known)


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
    left = lacking(known.rows)
    wanted = CollectOptions(
        left,
        options.store,
        ObjectCache(default_root()),
        gpu,
        tuple(range(count)),
        Chosen(PROBLEMS, gpu),
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
