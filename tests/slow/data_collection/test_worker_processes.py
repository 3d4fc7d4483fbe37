"""Collections with real worker processes around a fake GPU, hung, killed and interrupted."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path

# Spawned workers get this process's path, and find the module that their factories come from.
import fake_session
import odd_caches
import pytest
from collection_bed import (
    ALL_VERIFIED,
    ENTRANTS,
    Bed,
    Row,
    expected,
    failed,
    jobs,
    timed,
)
from fake_session import CONFIGS, FOR_EVER, PROBLEMS, Fault
from odd_caches import OddCache
from processes import alive, until

from tilecast.data_collection.engines.worker import LocalEngine
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.run.scheduler import Progress, Scheduler
from tilecast.data_collection.timing.protocol import regimes
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.build import builder as builder_module
from tilecast.kernels.build.builder import compile_all
from tilecast.kernels.objects.keys import kernel_key
from tilecast.kernels.spec import KernelSpec

SILENCE = 5.0
"""Seconds after which a worker counts as hung, and a quarter of the time that it has to start; more
than a stall of a busy machine."""


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    # Another file's test may have left the processes of its compile pool on their way out.
    before = set(multiprocessing.active_children())
    yield Bed(tmp_path)
    assert set(multiprocessing.active_children()) <= before


def _run(bed: Bed, *options: str, group: bool = False) -> subprocess.Popen[str]:
    """A collection in a process of its own, and in a group of its own where that is asked for."""
    return subprocess.Popen(
        [sys.executable, fake_session.__file__, str(bed.path), str(bed.log), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=group,
        # Tests that run in the background ignore it, and what they start would, too.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def _wait_for(bed: Bed, stage: str) -> None:
    """Return once something is logged of a stage."""
    until(lambda: any(line[0] == stage for line in bed.logged()))


# The nth statement of each run, most rows being one: while the tables are made, amid the checks, at
# their commit and after it, amid the first measurements and after them, amid and at the commit of
# later ones, amid the first and a later verification.
DEATHS = (3, 8, 14, 17, 24, 27, 31, 34, 19, 21, 36, 30, 40, 47, 22, 28, 55, 26, 33, 32)


def test_killed_at_any_moment_nothing_is_lost_or_measured_twice(bed: Bed) -> None:
    seen = 0
    checked: set[str] = set()
    before: list[Row] = []
    for statements in (*DEATHS, 0):
        process = _run(bed, "--statements", str(statements))
        output, errors = process.communicate(timeout=300)
        assert process.returncode == (-9 if statements else 0), errors
        assert errors == ""
        lines = bed.logged()
        fresh, seen = lines[seen:], len(lines)
        rows = bed.rows()
        # Nothing lost: what was there, and what the run had told before it died.
        assert set(before) <= set(rows)
        told = [line.split() for line in output.splitlines()]
        assert len(rows) >= max([int(words[1]) for words in told], default=0)
        # Nothing twice: what was kept before this run is not run again.
        kept = {line[:3] for line in expected(before)}
        again = {line[:3] for line in jobs(fresh) if line[0] != "check"}
        assert kept & again == set()
        assert not checked & {line[1] for line in fresh if line[0] == "check"}
        # Nothing half: a problem has all rows of a job or none.
        for problem in PROBLEMS:
            stages = Counter(row.stage for row in rows if row.m == problem.m)
            raced = len(regimes(problem))
            assert (stages["screen"], stages["race"]) in {(0, 0), (ENTRANTS, raced * ENTRANTS)}
        done = bed.checks()
        checked = {c.name for c in CONFIGS if kernel_key(KernelSpec(c, LINEAR_BF16)) in done}
        assert len(checked) in (0, len(CONFIGS))
        before = rows
    whole = Bed(bed.folder / "undisturbed")
    whole.collect()
    assert {row[:12] for row in before} == {row[:12] for row in whole.rows()}
    # The kills did hit: more was run than was kept.
    assert len(bed.logged()) > len(whole.logged())


@pytest.mark.parametrize("amid", ["screen", "long job"])
def test_workers_do_not_outlive_a_collection_that_is_killed(bed: Bed, amid: str) -> None:
    process = _run(bed, "--pace", "0.3" if amid == "screen" else "3600")
    if amid == "screen":
        _wait_for(bed, "screen")
    else:
        until((bed.folder / "card.screen").exists)  # the timing has begun
    worker = bed.logged()[0][-1]
    assert alive(worker)
    process.kill()
    # The worker holds the other end of stderr: this returns when it is gone, and it says nothing.
    output, errors = process.communicate(timeout=300)
    assert errors == ""
    assert not alive(worker)
    assert "finished" not in output


@pytest.mark.parametrize("stage", ["check", "time"])
def test_a_kernel_that_hangs_is_found_and_left_out(bed: Bed, stage: str) -> None:
    broken = CONFIGS[2]
    factory = bed.factory(faults=(Fault(broken, stage, "hang"),))
    bed.collect(factory, engine=LocalEngine(), silence_seconds=SILENCE)
    rows, reason = bed.rows(), f"hung: no sign of life for {SILENCE:g} s"
    assert failed(rows) == {broken.name: {(p.m, "screen", reason) for p in PROBLEMS}}
    assert timed(rows, broken.name) == set()


def test_a_worker_that_never_starts_ends_the_run(
    bed: Bed, capfd: pytest.CaptureFixture[str]
) -> None:
    slow = bed.factory(slow_start=FOR_EVER)
    with pytest.raises(TilecastError, match="no kernel to blame .hung: no sign of life for 2 s"):
        bed.collect(slow, engine=LocalEngine(), silence_seconds=0.5)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("ends", ["interrupted", "late"])
def test_no_compiler_that_hangs_holds_up_a_run_that_ends(
    bed: Bed, object_file: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    for step in ("prepare", "rehearse"):
        monkeypatch.setattr(builder_module, step, odd_caches.nothing)
    victim = KernelSpec(CONFIGS[-1], LINEAR_BF16)
    cache = OddCache(bed.folder / "objects", object_file(168, 0), victim, hangs=True)
    build = partial(compile_all, cache=cache, workers=1)

    def end(progress: Progress) -> None:
        if progress.done == len(CONFIGS) - 1:
            until(cache.tries)
            if ends == "interrupted":
                raise KeyboardInterrupt
            collecting._until = 0.0

    with closing(MeasurementStore(bed.path)) as store:
        store.begin_run({"gpu": "none"})
        collecting = Scheduler(store, [bed.factory()], build, report=end)
        with pytest.raises(KeyboardInterrupt) if ends == "interrupted" else nullcontext():
            collecting.collect(PROBLEMS[:1], lambda problem: CONFIGS)
    # Killed, but the system may take a moment to end it.
    until(lambda: not any(map(alive, cache.tries())))
    assert bed.rows() == []


@pytest.mark.parametrize("hangs", [False, True], ids=["measuring", "hanging"])
def test_ctrl_c_ends_it(bed: Bed, hangs: bool) -> None:
    process = _run(bed, "--pace", "3600" if hangs else "0.2", group=True)
    _wait_for(bed, "check" if hangs else "screen")
    worker = bed.logged()[0][-1]
    # As a terminal does it: to the collection and its workers alike.
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert errors.count("Traceback") == 1
    assert not alive(worker)
    part = bed.rows()
    assert set(Counter(row.m for row in part if row.stage == "screen").values()) <= {ENTRANTS}
    bed.collect()
    assert set(part) <= set(bed.rows())
    assert bed.verified() == ALL_VERIFIED
