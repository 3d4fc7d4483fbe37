"""What the hook meets and what is measured of it, written down in files that processes share.

A CSV file of problems, as the command line reads them, and one of the times that Inductor's
autotuner took, as `tilecast train --add` does.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Hashable

from tilecast.data_collection.dataset import autotuned
from tilecast.data_collection.dataset.autotuned import Autotuned
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem
from tilecast.inductor_hook import telemetry

SUFFIX = ".csv"
"""How the name of a file of problems ends, in whatever case."""
_HEADER = ",".join(PROBLEM_FIELDS) + "\n"

_written: set[tuple[str, Hashable]] = set()
"""Files, and what this process wrote to them."""
_lock = threading.Lock()


def record(path: str, problem: GemmProblem) -> None:
    """Append a problem to a file, the first time that this process meets it.

    Any number of processes may write to one file. Where it cannot be written, one warning says why.
    """
    line = ",".join(map(str, problem.row())) + "\n"
    _append_once("recording problems", path, _HEADER, line, problem)


def record_times(path: str, found: Autotuned) -> None:
    """Append what the autotuner measured, unless this process did: Inductor keeps times.

    As with `record`, any number of processes may write, and one warning says that none can.
    """
    measured = (found.problem, *found.milliseconds.items())
    _append_once("recording times", path, autotuned.HEADER, found.line(), measured)


def _append_once(what: str, path: str, header: str, line: str, content: Hashable) -> None:
    with _lock:
        if (path, content) in _written:
            return
        try:
            _append(path, header.encode(), line.encode())
        # A TilecastError is a ValueError, and so is a path that no file can have.
        except (OSError, ValueError) as error:
            telemetry.warn_once(what, error, f"some lines are missing from {path}")
        else:
            _written.add((path, content))


def _append(path: str, header: bytes, line: bytes) -> None:
    """Add one line to a file that is new, empty or begins with the header; under a lock."""
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        size = os.fstat(handle).st_size
        if size and os.pread(handle, len(header), 0) != header:
            raise TilecastError(
                f"{path} does not begin with {header.decode().strip()}; allowed: a new file, or "
                "one that the same setting wrote"
            )
        if size and os.pread(handle, 1, size - 1) != b"\n":
            line = b"\n" + line
        wanted = line if size else header + line
        if os.write(handle, wanted) < len(wanted):
            os.ftruncate(handle, size)
            raise TilecastError(f"{path}: the disk is full; allowed: a file with room to grow")
    finally:
        os.close(handle)
