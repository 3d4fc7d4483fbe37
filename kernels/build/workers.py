"""Calls that run in processes of their own, forked from one that has prepared for all."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from multiprocessing import Pipe, resource_tracker
from pathlib import Path
from typing import Any

from tilecast.heuristics.errors import one_line

IDLE_SECONDS = 60
"""After which processes without work leave, and with them the memory that the compiler takes."""
SILENT_SECONDS = 300
"""After which a fork server that should have told something is taken for hung: longer than two
kernels may take."""
WATCH_SECONDS = 0.25
"""How often a process looks whether that which it works for is there."""
_SERVE = (
    "import sys; from tilecast.kernels.build.fork_server import serve; "
    "serve(*map(int, sys.argv[1:]))"
)
_END_SECONDS = 5.0  # for a process that has let go of its connection to end by itself
_AHEAD = 2  # calls that the fork server has for each that it may run, so that none is waited for
_ENVIRONMENT = {
    # What has threads, or a GPU, is not to be forked.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    # tvm-ffi has torch look for one as it is imported: at the management library, not the driver,
    # which begins a thread.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # Where torch is imported to compile, it need not load us.
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
}


class WorkerDied(Exception):
    """A call has no result: its process died or took too long, or there is none to run it."""


class ServerDied(WorkerDied):
    """The same, as all processes have ended; the call's own need not be to blame."""


class Workers:
    """Runs each call in a process of its own, forked from one that has prepared for all.

    That one, the fork server, ends when it is idle for long and with the process that began it, and
    what it forked ends with it. A call whose process dies is run once more when no other is left to
    run; those that come in meanwhile wait. Any thread may call.
    """

    def __init__(
        self,
        most: int,
        prepare: Callable[[], object],
        rehearse: Callable[[], object],
        environment: Mapping[str, str],
    ):
        """Begin the fork server.

        Args:
            most: calls that run at a time.
            prepare: what the fork server does before it forks at all.
            rehearse: what it does while the first calls run, for those behind them.
            environment: variables that all see, beside those that this process has.
        """
        self._most = most
        self._lock = threading.Lock()
        self._calls: dict[int, Future[Any]] = {}
        self._unsent: deque[tuple[int, float, bytes]] = deque()
        self._numbers = itertools.count()
        self._stirred = time.monotonic()
        self._over = ""
        """Why nothing is run any more."""
        self._connection, theirs = Pipe()
        # Not multiprocessing: what it spawns imports the user's script again, which would run it
        # anew where nothing guards it. And a session of its own: an interrupt is not for it, and
        # all that it forks can be ended at once.
        self._server = subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVE, str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **_ENVIRONMENT, **environment, "PYTHONPATH": _import_path()},
            start_new_session=True,
        )
        theirs.close()
        self._connection.send((most, prepare, rehearse, SILENT_SECONDS))
        threading.Thread(target=self._listen, daemon=True).start()

    def submit(self, seconds: float, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run a call, and give it up some seconds after it has begun; returns at once.

        The call, its arguments and what comes of it are pickled. The future has what the call
        returns, the `TilecastError` that it raises, or `WorkerDied`.

        Raises:
            ServerDied: the fork server has ended.
        """
        packed = pickle.dumps((call, arguments))
        with self._lock:
            if self._over:
                raise ServerDied(self._over)
            if not self._calls:
                self._stirred = time.monotonic()
            number = next(self._numbers)
            future = self._calls[number] = Future()
            self._unsent.append((number, seconds, packed))
            self._feed()
        return future

    def close(self) -> None:
        """End all processes, whatever they are doing; calls that are not done have died."""
        self._end("given up")
        # Its number may be another's once it has ended.
        with contextlib.suppress(ProcessLookupError):
            if self._server.poll() is None:
                os.killpg(self._server.pid, signal.SIGKILL)

    def _feed(self) -> None:
        """Send what the fork server may have, but no more than it takes without reading."""
        # Where it has ended, whoever listens finds out.
        with contextlib.suppress(OSError):
            while self._unsent and len(self._calls) - len(self._unsent) < _AHEAD * self._most:
                self._connection.send(self._unsent.popleft())

    def _listen(self) -> None:
        try:
            while (patience := self._patience()) > 0:
                if self._connection.poll(patience):
                    self._hand_out(*self._connection.recv())
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(_END_SECONDS)
            status = self._server.returncode
            memory = " (out of memory?)" if status == -signal.SIGKILL else ""
            self._end(f"the process that compiles ended with status {status}{memory}")
        except Exception as error:
            self._end(f"what a process answered cannot be read: {one_line(error)}")
        self.close()
        self._server.wait()
        self._connection.close()
        for future in self._calls.values():
            future.set_exception(ServerDied(self._over))

    def _patience(self) -> float:
        """Seconds for which the fork server may tell nothing; with none left, it is over."""
        with self._lock:
            allowed = SILENT_SECONDS if self._calls else IDLE_SECONDS
            left = self._stirred + allowed - time.monotonic()
            if left <= 0:
                self._over = f"the process that compiles told nothing for {allowed} s"
            return left

    def _end(self, reason: str) -> None:
        with self._lock:
            self._over = self._over or reason

    def _hand_out(self, number: int, result: Any, error: BaseException | None) -> None:
        with self._lock:
            future, self._stirred = self._calls.pop(number), time.monotonic()
            self._feed()
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _import_path() -> str:
    # What is no text, Python passes over, too.
    folders = (folder for folder in sys.path if isinstance(folder, str))
    return os.pathsep.join(folder or str(Path.cwd()) for folder in folders)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Have processes that are begun inside leave interrupts to this one, from their first moment.

    A terminal interrupts them all, and one that still imports would end with a traceback.
    """
    # It begins with the first process that is spawned, and lets interrupts through then.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with(parent: int) -> None:
    """End this process soon after its parent, however that ends."""
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    # Not a signal at its death: the kernel sends that when the thread ends that began the worker.
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)
