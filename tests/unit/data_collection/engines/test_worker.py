"""A worker is a process that dies with its kernels; more of it is in tests/slow/data_collection."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

from collection_bed import Bed, failed
from fake_session import CONFIGS, PROBLEMS, Fault

from tilecast.data_collection.engines.worker import LocalEngine


def test_a_kernel_that_ends_its_process_is_blamed_and_the_rest_is_measured(tmp_path: Path) -> None:
    before = set(multiprocessing.active_children())
    bed, broken = Bed(tmp_path), CONFIGS[2]
    factory = bed.factory(faults=(Fault(broken, "check", "exit"),))
    bed.collect(factory, engine=LocalEngine(), workload=dict.fromkeys(PROBLEMS[:2], CONFIGS))
    crashed = {(p.m, "screen", "crashed: exit code 139") for p in PROBLEMS[:2]}
    assert failed(bed.rows()) == {broken.name: crashed}
    assert bed.verified() == {problem.m for problem in PROBLEMS[:2]}
    assert len({line[-1] for line in bed.logged()}) > 1
    assert set(multiprocessing.active_children()) <= before
