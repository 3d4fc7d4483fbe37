"""The engine of one host: each worker is a child process with a GPU, which a bad kernel ends."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import NoReturn

from tilecast.data_collection.gpu.environment import is_out_of_memory
from tilecast.data_collection.jobs.jobs import (
    Failed,
    Job,
    Ready,
    Result,
    Running,
    Session,
    SessionFactory,
    Worker,
)
from tilecast.data_collection.timing.protocol import CardFailure, KernelFailure
from tilecast.heuristics.errors import TilecastError, one_line
from tilecast.kernels.build.workers import end_with, interrupts_held
from tilecast.kernels.spec import KernelSpec

START_FACTOR = 4
"""How many times longer a worker may be silent while it imports and makes a GPU context."""


class LocalWorker(Worker):
    """A worker that is a child process."""

    def __init__(self, factory: SessionFactory, silence: float):
        """Start it; ``silence`` is how many seconds without a message count as a hang."""
        super().__init__(factory)
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, factory), daemon=True)
        with interrupts_held():
            self._process.start()
        theirs.close()
        self._running: KernelSpec | None = None
        self._heard = time.monotonic()
        self._silence = silence

    def give(self, job: Job) -> None:
        """Start a job."""
        self.job, self._running, self._heard = job, None, time.monotonic()
        with contextlib.suppress(OSError):  # it has died; `hear` will find out
            self.connection.send(job)

    def hear(self) -> Result | Failed | None:
        """Read one message, which has arrived; None when there is nothing to act on."""
        try:
            message: Ready | Running | Result | Failed = self.connection.recv()
        except (EOFError, OSError):
            self._process.join(timeout=5)
            code = self._process.exitcode
            # Only an administrator or the lack of memory kills a process with this signal.
            killed = code == -signal.SIGKILL
            reason = "killed (out of memory?)" if killed else f"crashed: exit code {code}"
            message = Failed(None, reason, innocent=killed)
        self._heard = time.monotonic()
        match message:
            case Ready(card):
                self.card = self.name = card
            case Running(kernel):
                self._running = kernel
            case Failed():
                return blamed(message, self.job, self._running)
            case _:
                return message

    def silent(self) -> Failed | None:
        """Its failure, once it has sent nothing for too long while it starts or has a job."""
        allowed = self._silence * (1 if self.card else START_FACTOR)
        idle = self.card and not self.job
        if idle or time.monotonic() - self._heard <= allowed:
            return None
        hung = Failed(None, f"hung: no sign of life for {allowed:g} s")
        return blamed(hung, self.job, self._running)

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.join(timeout=10)
        self.connection.close()


class LocalEngine:
    """Workers on this host. See `tilecast.data_collection.jobs.jobs.Engine`."""

    def start(self, factory: SessionFactory, silence: float) -> LocalWorker:
        """A worker that starts."""
        return LocalWorker(factory, silence)

    def news(
        self, workers: Sequence[LocalWorker], seconds: float
    ) -> Iterator[tuple[LocalWorker, Result | Failed]]:
        """What happens within some seconds."""
        ready = wait([worker.connection for worker in workers], seconds)
        for worker in workers:
            news = worker.hear() if worker.connection in ready else worker.silent()
            if news is not None:
                yield worker, news


def work(connection: Connection, make_session: SessionFactory) -> None:
    """Run jobs until the parent goes away, which alone is interrupted (`interrupts_held`)."""
    # Else the GPU stayed taken until the worker's next message.
    parent = multiprocessing.parent_process()
    assert parent and parent.pid
    end_with(parent.pid)
    try:
        session = make_session(lambda spec: connection.send(Running(spec)))
    except Exception as error:
        _die(connection, Failed(None, one_line(error)))
    with contextlib.suppress(EOFError, OSError):
        connection.send(Ready(session.card))
        while True:
            outcome = done(connection.recv(), session)
            if isinstance(outcome, Failed):  # the GPU context may be lost
                _die(connection, outcome)
            connection.send(outcome)


def done(job: Job, session: Session) -> Result | Failed:
    """Do a job; its result, or what went wrong."""
    try:
        return job.run(session)
    except KernelFailure as failure:
        return Failed(failure.culprit, failure.reason)
    except CardFailure as failure:
        return Failed(None, str(failure), innocent=True)
    except Exception as error:
        # No kernel is to blame where the machine lacks memory or a file.
        lacking = isinstance(error, OSError | TilecastError) or is_out_of_memory(error)
        return Failed(None, one_line(error), innocent=lacking)


def blamed(failed: Failed, job: Job | None, running: KernelSpec | None) -> Failed:
    """A failure, whose culprit is the running kernel where kernels run one by one."""
    if failed.culprit or failed.innocent or not (job and job.careful):
        return failed
    return replace(failed, culprit=running)


def _die(connection: Connection, failed: Failed) -> NoReturn:
    with contextlib.suppress(OSError):  # the parent may be gone
        connection.send(failed)
    # A regular exit would wait for the GPU, and a hanging kernel never ends.
    os._exit(1)
