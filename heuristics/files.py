"""Files that are read whole or not at all, and folders that only their user may write."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tilecast.heuristics.errors import TilecastError

TEMPORARY = ".tilecast-tmp"
"""How names of temporary files end; they begin with a dot."""
STALE_SECONDS = 3600.0
"""A temporary file this old was left by a process that was killed."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, flush it and rename it to ``path``.

    Missing folders are made. Temporary files that killed writers left in the folder are removed.

    Raises:
        TilecastError: the folder is read-only or the disk full, say; ``path`` is as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        handle, name = tempfile.mkstemp(TEMPORARY, f".{path.name}.", path.parent)
        os.close(handle)
    except OSError as error:
        raise unwritable(path, error) from error
    temporary = Path(name)
    try:
        write(temporary)
        _flush(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
        # Some file systems cannot flush a folder; the file itself is safe by now.
        with contextlib.suppress(OSError):
            _flush(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def make_own_folder(path: Path) -> None:
    """Make a folder, and those above it, that nobody else may enter, whatever the umask.

    Raises:
        OSError: it cannot be made; one that is there already is left as it is.
    """
    with contextlib.suppress(FileExistsError):
        try:
            path.mkdir(0o700)
        except FileNotFoundError:
            make_own_folder(path.parent)
            path.mkdir(0o700)
        path.chmod(0o700)  # a strict umask may have taken from it


@contextlib.contextmanager
def own_folder(path: Path) -> Iterator[int]:
    """Open a folder that is safe to take code from; what is opened relative to it stays in it.

    Returns:
        Its file descriptor.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such folder.
        TilecastError: it is another user's, others may write it, or it cannot be read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise TilecastError(
            f"cannot read folder {path}: {error.strerror}; allowed: a folder of your own; "
            "name another one"
        ) from error
    try:
        found = os.fstat(handle)
        if not is_own(found):
            raise TilecastError(
                f"folder {path} (owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o}) may "
                f"hold code of others; allowed: one that user {os.geteuid()} owns and nobody else "
                f"may write; run `chmod go-w {path}` if it is yours, or name another one"
            )
        yield handle
    finally:
        os.close(handle)


def is_own(found: os.stat_result) -> bool:
    """Whether a file or folder is this user's and nobody else may write it."""
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE


def unwritable(path: Path, error: OSError) -> TilecastError:
    """What to tell of a file that could not be written."""
    return TilecastError(
        f"cannot write {path}: {error.strerror or error}; allowed: a writable folder with free "
        "space; name another one or free some"
    )


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sweep(folder: Path) -> None:
    oldest = time.time() - STALE_SECONDS
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") and entry.name.endswith(TEMPORARY):
                # Another process may sweep it at the same time.
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < oldest:
                        Path(entry).unlink()
