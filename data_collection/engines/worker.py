"""The child process that touches the GPU and dies with its kernels, and its parent's hold on it.

The engine of one host: a worker per GPU, each a child of this process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import NoReturn

from tilecast.data_collection.gpu.out_of_memory import is_out_of_memory
from tilecast.data_collection.jobs.jobs import Failed, Job, Ready, Result, Running, SessionFactory
from tilecast.data_collection.timing.protocol import CardFailure, KernelFailure
from tilecast.heuristics.errors import TilecastError, one_line
from tilecast.kernels.build.workers import end_with, interrupts_held
from tilecast.kernels.spec import KernelSpec

START_FACTOR = 4
"""A worker that starts loads libraries and makes a GPU context, and may be silent longer."""


class LocalWorker:
    """A worker that is a child process. See `tilecast.data_collection.jobs.engine.Worker`."""

    def __init__(self, factory: SessionFactory, silence: float):
        """Start it; ``silence`` is how many seconds without a message count as a hang."""
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, factory), daemon=True)
        with interrupts_held():
            self._process.start()
        theirs.close()
        self.factory = factory
        self.card: str | None = None
        self.job: Job | None = None
        self.name = ""
        self.strikes = 0
        self._running: KernelSpec | None = None
        self._heard = time.monotonic()
        self._silence = silence

    def give(self, job: Job) -> None:
        """Start a job."""
        self.job, self._running, self._heard = job, None, time.monotonic()
        with contextlib.suppress(OSError):  # it has died; `hear` will find out
            self.connection.send(job)

    def hear(self) -> Result | Failed | None:
        """Read one message, which is there; None when it is nothing to act on."""
        try:
            message: Ready | Running | Result | Failed = self.connection.recv()
        except (EOFError, OSError):
            self._process.join(timeout=5)
            code = self._process.exitcode
            # Nobody kills a process with this signal but an administrator or the lack of memory.
            killed = code == -signal.SIGKILL
            reason = "killed (out of memory?)" if killed else f"crashed: exit code {code}"
            message = Failed(None, reason, innocent=killed)
        self._heard = time.monotonic()
        match message:
            case Ready(card):
                self.card = self.name = card
            case Running(kernel):
                self._running = kernel
            case Failed(None, reason, innocent=False):
                return self._failed(reason)
            case _:
                return message

    def silent(self) -> Failed | None:
        """Its failure, once it has said nothing for too long; it may while it has no job."""
        allowed = self._silence * (1 if self.card else START_FACTOR)
        idle = self.card and not self.job
        if idle or time.monotonic() - self._heard <= allowed:
            return None
        return self._failed(f"hung: no sign of life for {allowed:g} s")

    def _failed(self, reason: str) -> Failed:
        """A failure without a name is that of the running kernel, where they run one by one."""
        return Failed(self._running if self.job and self.job.careful else None, reason)

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.join(timeout=10)
        self.connection.close()


class LocalEngine:
    """Workers on this host. See `tilecast.data_collection.jobs.engine.Engine`."""

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
    # Its next message may be far off, and the GPU must not stay taken until then.
    parent = multiprocessing.parent_process()  # which may be gone by now
    assert parent and parent.pid
    end_with(parent.pid)
    try:
        session = make_session(lambda spec: connection.send(Running(spec)))
    except Exception as error:
        _die(connection, Failed(None, one_line(error)))
    with contextlib.suppress(EOFError, OSError):
        connection.send(Ready(session.card))
        while True:
            job: Job = connection.recv()
            try:
                connection.send(job.run(session))
            except KernelFailure as failure:
                _die(connection, Failed(failure.culprit, failure.reason))
            except CardFailure as failure:
                _die(connection, Failed(None, str(failure), innocent=True))
            except Exception as error:  # the parent decides; this process's GPU context may be gone
                # The machine lacks memory or a file, whichever kernel is running.
                lacking = isinstance(error, OSError | TilecastError) or is_out_of_memory(error)
                _die(connection, Failed(None, one_line(error), innocent=lacking))


def _die(connection: Connection, last_word: Failed) -> NoReturn:
    with contextlib.suppress(OSError):  # the parent may be gone, and its GPU must not stay taken
        connection.send(last_word)
    # A regular exit would wait for the GPU, and a hanging kernel never ends.
    os._exit(1)
