"""A kernel that takes the CUDA context with it costs its own time and no other's."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from straying_session import StrayingSession

from tilecast.data_collection.engines.worker import LocalEngine, LocalWorker
from tilecast.data_collection.jobs.jobs import SessionFactory
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.run.scheduler import Scheduler
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import spec_for
from tilecast.kernels.objects.keys import kernel_key

if TYPE_CHECKING:
    from compiled_kernels import Kernels

PROBLEMS = (GemmProblem(16, 1024, 1024), GemmProblem(512, 1024, 1024))


class Counting(LocalEngine):
    """Knows how many workers it has started."""

    started = 0

    def start(self, factory: SessionFactory, silence: float) -> LocalWorker:
        self.started += 1
        return super().start(factory, silence)


@pytest.mark.parametrize(
    ("stage", "workers"),
    # The only card has to blame it twice. Checked one by one, it has its name at once; timed beside
    # others, only when that is repeated.
    [("check", 3), ("time", 4)],
)
def test_a_kernel_that_corrupts_the_context_is_left_out_and_all_others_are_measured(
    kernels: Kernels, tmp_path: Path, stage: str, workers: int
) -> None:
    configs, bad = kernels.configs[:4], kernels.configs[2]
    engine = Counting()
    with closing(MeasurementStore(tmp_path / "store")) as store:
        store.begin_run({"gpu": "none"})
        factory = partial(StrayingSession, kernels.objects, bad, stage)
        Scheduler(store, [factory], engine=engine).collect(PROBLEMS, lambda problem: configs)
        (run,), rows, checks = store.runs(), store.export().rows, store.checks()
        assert store.measured("verify") == set(PROBLEMS)
    assert engine.started == workers
    # Nobody but the kernel is to blame, in every problem.
    assert "troubles" not in run
    failures = {key: reason for key, reason in checks.items() if reason}
    assert failures.keys() == {kernel_key(spec_for(bad, PROBLEMS[0]))}
    assert all("illegal memory access" in reason for reason in failures.values())
    failed = rows[rows["failure"].notna()]
    assert set(failed["config"]) == {bad.name}
    assert set(failed["m"]) == {problem.m for problem in PROBLEMS}
    for problem in PROBLEMS:
        timed = rows[(rows["m"] == problem.m) & rows["microseconds"].notna()]
        assert set(timed["config"]) == {*(c.name for c in configs if c != bad), "torch.mm"}
