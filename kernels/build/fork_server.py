"""The process that loads the compiler once and forks itself for each call.

Loading takes longer than compiling a kernel, and the first kernel of a process half as long again
as those after it. What is forked has the first behind it and, but for the first calls, the second,
and the memory of both in common.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import NamedTuple, NoReturn, cast

from tilecast.heuristics.errors import TilecastError, one_line
from tilecast.kernels.build.workers import WATCH_SECONDS, WorkerDied

_DIE_WITH_PARENT = 1
"""``PR_SET_PDEATHSIG`` of prctl(2)."""


def serve(descriptor: int, parent: int) -> NoReturn:
    """Make ready, then run calls until the process that began this one has gone."""
    # As whoever began it has set them, they may be ignored.
    for number in (signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    connection = Connection(descriptor)
    with contextlib.suppress(EOFError, OSError):
        most, prepare, rehearse, seconds = connection.recv()
        _share(prepare, seconds)
        _Server(connection, most).run(parent, partial(_share, rehearse, seconds))
    os.killpg(0, signal.SIGKILL)
    raise AssertionError("a process outlives SIGKILL")


def _share(make: Callable[[], object], seconds: int) -> None:
    """Make what is forked find something made, in memory that it shares as long as nobody writes.

    If it takes longer, this process ends: nobody else might be there to end it.
    """
    signal.alarm(seconds)
    make()
    signal.alarm(0)
    sys.stdout.flush()  # else each that is forked writes it
    # A collection of garbage would write to all of it.
    gc.collect()
    gc.freeze()


class _Call(NamedTuple):
    number: int
    """What whoever asked knows it by."""
    seconds: float
    """How long it may take."""
    packed: bytes
    """A function and its arguments."""


class _Forked(NamedTuple):
    pid: int
    call: _Call
    deadline: float
    """By the monotonic clock."""
    alone: bool
    """Whether no other ran beside it from the first."""


class _Server:
    """Forks a process for each call, some at a time.

    A call whose process dies is run once more, alone, when no other waits: the memory may have been
    short because of others.
    """

    def __init__(self, connection: Connection, most: int):
        self._connection = connection
        self._most = most
        self._waiting: deque[_Call] = deque()
        self._again: deque[_Call] = deque()
        self._forked: dict[Connection, _Forked] = {}

    def run(self, parent: int, rehearse: Callable[[], object]) -> None:
        """Serve while a process lives; rehearse once the first calls run."""
        rehearsed = False
        # Its end may be open elsewhere, in what it forked.
        while os.getppid() == parent:
            self._begin()
            if self._forked and not rehearsed:
                rehearse()
                rehearsed = True
            for ready in wait([self._connection, *self._forked], WATCH_SECONDS):
                if ready is self._connection:
                    self._hear()
                else:
                    self._end(cast(Connection, ready))
            now = time.monotonic()
            for connection in [c for c, forked in self._forked.items() if forked.deadline < now]:
                self._give_up(connection)

    def _hear(self) -> None:
        while self._connection.poll():
            self._waiting.append(_Call(*self._connection.recv()))

    def _begin(self) -> None:
        alone = any(forked.alone for forked in self._forked.values())
        while self._waiting and not alone and len(self._forked) < self._most:
            self._fork(self._waiting.popleft(), alone=False)
        if self._again and not self._forked:
            self._fork(self._again.popleft(), alone=True)

    def _fork(self, call: _Call, alone: bool) -> None:
        server = os.getpid()
        try:
            receiver, sender = Pipe(duplex=False)
            pid = os.fork()
        except OSError as error:
            self._answer(call, one_line(error))
            return
        if pid == 0:
            _run(call, sender, server)
        sender.close()
        self._forked[receiver] = _Forked(pid, call, time.monotonic() + call.seconds, alone)

    def _end(self, connection: Connection) -> None:
        """Pass on what a process has to say, or find that it has died."""
        try:
            answer = connection.recv_bytes()
        except (EOFError, OSError):
            answer = None
        forked = self._forget(connection)
        if answer is not None:
            self._connection.send_bytes(answer)
        elif forked.alone:
            reason = "its process died twice, the second time with no other beside it"
            self._answer(forked.call, f"{reason} (out of memory?)")
        else:
            self._again.append(forked.call)

    def _give_up(self, connection: Connection) -> None:
        os.kill(self._forked[connection].pid, signal.SIGKILL)
        call = self._forget(connection).call
        self._answer(call, f"no result after {call.seconds:g} s")

    def _forget(self, connection: Connection) -> _Forked:
        connection.close()
        forked = self._forked.pop(connection)
        os.waitpid(forked.pid, 0)
        return forked

    def _answer(self, call: _Call, reason: str) -> None:
        self._connection.send((call.number, None, WorkerDied(reason)))


def _run(call: _Call, sender: Connection, server: int) -> NoReturn:
    """Run a call in this process, which does nothing else, and tell what came of it."""
    try:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() == server:
            answer = _answer_to(call)
            # First, while there is a deadline: whoever reads what is printed may have stopped.
            sys.stdout.flush()
            sys.stderr.flush()
            sender.send_bytes(answer)
    finally:
        # Not as other processes end: nothing in here is this one's to clean up.
        os._exit(0)


def _answer_to(call: _Call) -> bytes:
    try:
        function, arguments = pickle.loads(call.packed)
        return pickle.dumps((call.number, function(*arguments), None))
    except TilecastError as error:
        return pickle.dumps((call.number, None, error))
    except (Exception, SystemExit) as error:  # which might not arrive as it is
        return pickle.dumps((call.number, None, WorkerDied(one_line(error))))
