"""Files that are read whole or not at all, and folders that only their user may write."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from tilecast.heuristics.errors import TilecastError

TEMPORARY = ".tilecast-tmp"
"""How names of temporary files end; they begin with a dot."""
STALE_SECONDS = 3600.0
"""A temporary file this old was left by a process that was killed."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_regular(path: Path, most: int) -> None:
    """See, before it is opened, that a path is a regular file of some bytes at most.

    Whoever opens a pipe waits for a writer, and a device may have no end.

    Raises:
        OSError: it is none, is longer, or cannot be looked at.
    """
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    if found.st_size > most:
        raise OSError(errno.EFBIG, f"it is longer than {most >> 20} MiB")


def read_whole(path: Path, most: int) -> bytes:
    """Read a regular file of some bytes at most.

    Raises:
        OSError: as `check_regular`, or it cannot be read.
    """
    check_regular(path, most)
    with path.open("rb") as file:
        # Python makes room for as much as is asked for.
        content = file.read(min(os.fstat(file.fileno()).st_size, most + 1))
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is longer than {most >> 20} MiB")
    return content


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, flush it and rename it to ``path``.

    Behind a link, the file that it leads to is replaced. One that is there keeps its mode; a new
    one is given what the umask allows. Missing folders are made. Temporary files that killed
    writers left in the folder are removed when a process first writes there.

    Raises:
        TilecastError: as `destination`; or the folder is read-only or the disk full, say; ``path``
            is as it was.
    """
    target, mode = destination(path)
    _put(target, write, mode)


def replace_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """The same for a file that is tilecast's own: whatever stands in its place goes.

    No link is followed, and nobody else may write the file, whatever the umask.

    Raises:
        TilecastError: a folder stands there, or it cannot be written; ``path`` is as it was.
    """
    _put(path, write, 0o644)


def destination(path: Path) -> tuple[Path, int | None]:
    """The file that is written when a path is, which links lead to, and its mode if it is there.

    Raises:
        TilecastError: a folder, a device, a pipe or the like is there, or it cannot be looked at.
    """
    mode = None
    try:
        kind = path.stat().st_mode
        mode = stat.S_IMODE(kind)
        if not stat.S_ISREG(kind):
            what = "a folder" if stat.S_ISDIR(kind) else "no regular file"
            raise TilecastError(f"cannot write {path} ({what}); allowed: a file")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise unwritable(path, error) from error
    return Path(os.path.realpath(path)), mode


def _put(path: Path, write: Callable[[Path], object], mode: int | None) -> None:
    """Write a file whole; without a mode it has what the umask allows."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        # Nobody reads of it what the file itself would not show.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        os.close(os.open(temporary, flags, 0o666 if mode is None else 0o600))
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        write(temporary)
        _flush(temporary)
        if mode is not None:
            temporary.chmod(mode)
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


@cache
def _sweep(folder: Path) -> None:
    """Once a process: to look through 50,000 entries takes 0.1 s."""
    oldest = time.time() - STALE_SECONDS
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") and entry.name.endswith(TEMPORARY):
                # Another process may sweep it at the same time.
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < oldest:
                        Path(entry).unlink()
