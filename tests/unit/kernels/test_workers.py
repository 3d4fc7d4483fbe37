"""Calls in forked processes: what comes of each, and that nobody waits for what will not come."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import odd_caches
import pytest
from processes import alive, until

from tilecast.heuristics.errors import TilecastError
from tilecast.kernels.build import workers
from tilecast.kernels.build.workers import WorkerDied, Workers
from tilecast.kernels.families import parse_config


@pytest.fixture
def pool() -> Iterator[Workers]:
    found = Workers(2, odd_caches.nothing, odd_caches.nothing, {"TILECAST_TOLD": "yes"})
    yield found
    found.close()


def test_each_call_has_a_process_of_its_own_and_its_result(pool: Workers) -> None:
    first, second = (pool.submit(60, os.getpid) for _ in range(2))
    assert len({os.getpid(), pool._server.pid, first.result(60), second.result(60)}) == 4
    assert pool.submit(60, os.getppid).result(60) == pool._server.pid
    assert pool.submit(60, os.getenv, "TILECAST_TOLD").result(60) == "yes"


def test_a_refusal_is_raised_as_it_is_and_whatever_else_is_told(pool: Workers) -> None:
    with pytest.raises(TilecastError, match="'none' is not a config name"):
        pool.submit(60, parse_config, "none").result(60)
    beside = pool.submit(60, time.sleep, 0.3)
    for call, told in ((odd_caches.fail_oddly, "OfTwo: one"), (odd_caches.leave, "SystemExit: 3")):
        with pytest.raises(WorkerDied, match=told):
            pool.submit(60, call).result(60)
    assert beside.result(60) is None


def test_so_many_run_at_a_time(pool: Workers) -> None:
    calls = [pool.submit(60, odd_caches.span, 0.2) for _ in range(5)]
    spans = [call.result(60) for call in calls]
    assert max(sum(first <= begin < last for first, last in spans) for begin, _ in spans) == 2


def test_one_that_takes_too_long_is_ended_and_the_others_are_not(pool: Workers) -> None:
    late, other = pool.submit(0.5, time.sleep, 60), pool.submit(60, time.sleep, 1.0)
    with pytest.raises(WorkerDied, match="no result after 0.5 s"):
        late.result(60)
    assert other.result(60) is None


def test_an_answer_that_cannot_be_read_leaves_nobody_waiting(pool: Workers) -> None:
    with pytest.raises(WorkerDied, match="cannot be read: OfTwo: one"):
        pool.submit(60, odd_caches.Unreadable).result(60)
    with pytest.raises(WorkerDied):
        pool.submit(60, os.getpid)


def test_asking_does_not_wait_for_what_is_made_ready(tmp_path: Path) -> None:
    """Preparing goes on until all have asked: it would never end if one of them waited for it."""
    asked = tmp_path / "asked"
    pool = Workers(1, partial(odd_caches.await_file, asked), odd_caches.nothing, {})
    calls = [pool.submit(60, len, bytes(1000)) for _ in range(500)]
    assert not any(call.done() for call in calls)
    asked.touch()
    assert {call.result(60) for call in calls} == {1000}
    pool.close()


def test_closing_gives_up_what_is_not_done(pool: Workers) -> None:
    call = pool.submit(60, time.sleep, 60)
    pool.close()
    with pytest.raises(WorkerDied, match="given up"):
        call.result(60)
    pool.close()


SCRIPT = """
import os, pathlib, signal, sys
import odd_caches
from tilecast.kernels.build.workers import Workers
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
sys.path.append(pathlib.Path("nowhere"))
pool = Workers(1, odd_caches.nothing, odd_caches.nothing, {})
print(pool.submit(60, divmod, 7, 2).result(60), pool._server.pid, flush=True)
hung = Workers(1, odd_caches.hang, odd_caches.nothing, {})
print(hung._server.pid)
"""


def test_what_a_script_has_set_matters_not_and_what_it_began_ends() -> None:
    """Ignored signals are handed on to what a process begins; and a path need not be text."""
    script = f"from tilecast.kernels.build import workers; workers.SILENT_SECONDS = 3{SCRIPT}"
    told = subprocess.check_output(
        [sys.executable, "-c", script],
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    first, second = told.splitlines()
    assert first.startswith("(3, 1) ")
    for pid in (int(first.split()[-1]), int(second)):
        until(lambda pid=pid: not alive(pid), 30)


def test_what_ends_for_want_of_work_fails_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call comes in at any time, so at the moment of the end, too."""
    monkeypatch.setattr(workers, "IDLE_SECONDS", 0.3)
    pool = Workers(1, odd_caches.nothing, odd_caches.nothing, {})
    accepted = 0
    for pause in (0.29, 0.295, 0.299, 0.3, 0.301, 0.305, 0.31):
        try:
            call = pool.submit(60, os.getpid)
        except WorkerDied:
            pool = Workers(1, odd_caches.nothing, odd_caches.nothing, {})
            call = pool.submit(60, os.getpid)
        call.result(60)
        accepted += 1
        time.sleep(pause)
    assert accepted == 7
    pool._server.wait(60)
