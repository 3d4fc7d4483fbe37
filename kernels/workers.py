"""Calls that run in processes of their own, forked from one that has prepared for all."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from multiprocessing import Pipe
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
_SERVE = "import sys; from tilecast.kernels.fork_server import serve; serve(int(sys.argv[1]))"
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


class Workers:
    """Runs each call in a process of its own, forked from one that has prepared for all.

    That one, the fork server, ends when it is idle for long and with the process that began it, and
    what it forked ends with it. Calls share no fate. Any thread may call.
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
        self._lock = threading.Lock()
        self._calls: dict[int, Future[Any]] = {}
        self._numbers = itertools.count()
        self._stirred = time.monotonic()
        self._connection, theirs = Pipe()
        # Not multiprocessing: what it spawns imports the user's script again, which would run it
        # anew where nothing guards it. And a session of its own: an interrupt is not for it, and
        # all that it forks can be ended at once.
        self._server = subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVE, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **_ENVIRONMENT, **environment, "PYTHONPATH": _import_path()},
            start_new_session=True,
        )
        theirs.close()
        self._connection.send((most, prepare, rehearse))
        threading.Thread(target=self._listen, daemon=True).start()

    def submit(self, seconds: float, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run a call, and give it up some seconds after it has begun.

        The call, its arguments and what comes of it are pickled. The future has what the call
        returns or raises, or `WorkerDied`.

        Raises:
            WorkerDied: the fork server has ended.
        """
        packed = pickle.dumps((call, arguments))
        with self._lock:
            number = next(self._numbers)
            try:
                self._connection.send((number, seconds, packed))
            except OSError as error:
                raise WorkerDied(_ENDED) from error
            self._stirred = time.monotonic()
            future = self._calls[number] = Future()
        return future

    def close(self) -> None:
        """End all processes, whatever they are doing; calls that are not done have died."""
        # Its number may be another's once it has ended.
        if self._server.poll() is None:
            os.killpg(self._server.pid, signal.SIGKILL)

    def _listen(self) -> None:
        """Hand out results until none comes any more, or is to be expected."""
        reason = _ENDED
        try:
            while (patience := self._patience()) > 0:
                if self._connection.poll(patience):
                    self._hand_out(*self._connection.recv())
        except (EOFError, OSError):
            pass  # that is the reason
        except Exception as error:
            reason = f"what a process answered cannot be read: {one_line(error)}"
        with self._lock:
            self._connection.close()
        self.close()
        self._server.wait()
        for future in self._calls.values():
            future.set_exception(WorkerDied(reason))

    def _patience(self) -> float:
        """Seconds for which the fork server may tell nothing; none are left once it is given up."""
        with self._lock:
            allowed = SILENT_SECONDS if self._calls else IDLE_SECONDS
            left = self._stirred + allowed - time.monotonic()
            if left <= 0:
                self._connection.close()
            return left

    def _hand_out(self, number: int, result: Any, error: Exception | None) -> None:
        with self._lock:
            future, self._stirred = self._calls.pop(number), time.monotonic()
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


_ENDED = "all processes that compile have ended (out of memory?)"


def _import_path() -> str:
    return os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)


def end_with(parent: int) -> None:
    """End this process soon after its parent, however that ends."""
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    # Not a signal at its death: the kernel sends that when the thread ends that began the worker.
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)
