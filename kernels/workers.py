"""Processes that compile kernels: they load the compiler once, and end with whom they work for."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import warnings
from typing import Any

from tilecast.kernels.families import FAMILIES

IDLE_SECONDS = 60
"""After which workers without work leave, and with them the memory that the compiler takes."""
_WATCH_SECONDS = 0.25


def new_pool(workers: int) -> Any:
    """Processes that compile and load the compiler first; idle ones leave, all with this one."""
    # Not multiprocessing: its spawned workers import the user's script again, which would run it
    # anew where nothing guards it.
    from joblib.externals.loky import ProcessPoolExecutor

    # A worker whose memory has grown, as the compiler's does with every kernel, is replaced.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
    return ProcessPoolExecutor(
        workers, timeout=IDLE_SECONDS, initializer=_prepare, initargs=(os.getpid(),)
    )


def end_workers(pool: Any) -> None:
    """End the processes of a pool, whatever they are doing; what they are at is broken then."""
    from joblib.externals.loky.backend.utils import kill_process_tree

    for process in list(pool._processes.values()):
        kill_process_tree(process)


def _prepare(parent: int) -> None:
    """Make a worker end with its parent, which alone is interrupted, and load the compiler."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(parent)
    # It takes longer than compiling a kernel; why it fails, compiling tells.
    with contextlib.suppress(Exception):
        for family in FAMILIES.values():
            family.preload()


def end_with(parent: int) -> None:
    """End this process soon after its parent, however that ends."""
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    # Not a signal at its death: the kernel sends that when the thread ends that began the worker.
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)
