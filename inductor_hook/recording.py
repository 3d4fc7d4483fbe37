"""What the hook meets, written down: a CSV file of problems, as the command line reads them."""

from __future__ import annotations

import fcntl
import os
import threading

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem
from tilecast.inductor_hook import report

SUFFIX = ".csv"
"""How the file's name ends, in whatever case."""
_HEADER = (",".join(PROBLEM_FIELDS) + "\n").encode()

_written: set[tuple[str, GemmProblem]] = set()
"""Files, and what this process wrote to them."""
_lock = threading.Lock()


def record(path: str, problem: GemmProblem) -> None:
    """Append a problem to a file, the first time that this process meets it.

    Any number of processes may write to one file. Where it cannot be written, one warning says why.
    """
    with _lock:
        if (path, problem) in _written:
            return
        try:
            _append(path, problem)
        # A TilecastError is a ValueError, and so is a path that no file can have.
        except (OSError, ValueError) as error:
            report.warn_once("recording problems", error, f"{path} lacks some")
        else:
            _written.add((path, problem))


def _append(path: str, problem: GemmProblem) -> None:
    """Add one line to a file that is new, empty or of our making, while no other process does."""
    line = (",".join(map(str, problem.row())) + "\n").encode()
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        size = os.fstat(handle).st_size
        if size and os.pread(handle, len(_HEADER), 0) != _HEADER:
            raise TilecastError(
                f"{path} does not begin with {_HEADER.decode().strip()}; allowed: a new file, or "
                "one that TILECAST_RECORD wrote"
            )
        if size and os.pread(handle, 1, size - 1) != b"\n":
            line = b"\n" + line
        wanted = line if size else _HEADER + line
        if os.write(handle, wanted) < len(wanted):
            os.ftruncate(handle, size)
            raise TilecastError(f"{path}: the disk is full; allowed: a file with room to grow")
    finally:
        os.close(handle)
