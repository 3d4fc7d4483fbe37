"""Writing a file so that a reader sees the old one or the new one, never half of one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from tilecast.heuristics.errors import TilecastError


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, flush it and rename it to ``path``.

    Args:
        path: where the file shall be; missing folders are made.
        write: takes the temporary path and writes the whole content to it.

    Raises:
        TilecastError: the folder is read-only or the disk full, say; ``path`` is as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
    except OSError as error:
        raise _unwritable(path, error) from error
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> TilecastError:
    return TilecastError(
        f"cannot write {path}: {error.strerror or error}; allowed: a writable folder with free "
        "space; name another one or free some"
    )
