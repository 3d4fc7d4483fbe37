"""Compiled kernels on disk, shared by the processes and sessions of one user.

A compiled kernel is native code, so the folder must belong to the user and nobody else may write
it. ``KEY.o`` is the `Entry` of one spec; one that is not whole counts as absent. What is asked for
and absent is taken from what came with tilecast (`tilecast.kernels.objects.shipped`), or else is to
be compiled.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import (
    TEMPORARY,
    is_own,
    make_own_folder,
    own_folder,
    replace_atomically,
    unwritable,
)
from tilecast.kernels.objects.entry import ENTRY_NAME, MOST_ENTRY_BYTES, Entry, KernelResources
from tilecast.kernels.objects.keys import kernel_key
from tilecast.kernels.objects.shipped import shipped
from tilecast.kernels.spec import KernelSpec

MOST_BYTES = 4 << 30
"""About 90,000 kernels. `ObjectCache.tidy` keeps those that were asked for last."""
LOCK_SECONDS = 60
"""A process that compiles one kernel for longer is waited for no more."""


def default_root() -> Path:
    """``$TILECAST_CACHE``, or ``tilecast`` in the user's cache folder, such as ``~/.cache``.

    An empty variable counts as unset, and so does a relative ``$XDG_CACHE_HOME``, as its standard
    says: no cache shall be whichever folder a process is started in.

    Raises:
        TilecastError: ``$TILECAST_CACHE`` is relative, or the user has no home.
    """
    import platformdirs

    try:
        named = os.environ.get("TILECAST_CACHE")
        root = Path(named).expanduser() if named else platformdirs.user_cache_path("tilecast")
        if not named and not root.is_absolute():  # by its older versions
            root = Path("~/.cache/tilecast").expanduser()
        if root.is_absolute():
            return root
        reason = f"{str(root)!r} is relative"
    except RuntimeError as error:
        reason = str(error)
    raise TilecastError(
        f"no folder for the object cache: {reason}; allowed: an absolute path or one below ~; "
        "set TILECAST_CACHE"
    )


@dataclass(frozen=True)
class ObjectCache:
    """A folder of compiled kernels. Any number of processes may read and write it at once.

    Whatever reads or writes it raises a TilecastError where others may write the folder, where it
    cannot be read or, to write it, is read-only, and where the disk is full.
    """

    root: Path
    """The folder; made when first written to, for this user alone."""

    def path(self, spec: KernelSpec) -> Path:
        """Where the entry of a spec lies, whether or not it is there."""
        return self.root / f"{kernel_key(spec)}.o"

    def resources(self, spec: KernelSpec) -> KernelResources | None:
        """Registers and spills of a whole entry; None when it is absent, cut short or altered."""
        entry = self.entry(kernel_key(spec), asked=True)
        return entry and entry.resources

    def code(self, spec: KernelSpec) -> bytes | None:
        """The object of a whole entry, the very bytes whose digest was checked."""
        entry = self.entry(kernel_key(spec), asked=True)
        return entry and entry.code

    def entry(self, key: str, *, asked: bool = False) -> Entry | None:
        """The whole entry of a key; None when it is absent, cut short or altered.

        Args:
            key: `kernel_key` of a spec.
            asked: whether the kernel is asked for: that is noted, see `prune`, and one that came
                with tilecast is put here.
        """
        found = None
        # Whatever stands in its place is replaced.
        with contextlib.suppress(OSError), own_folder(self.root) as folder:
            found = Entry.read(key, _read(folder, f"{key}.o", asked))
        if found is None and asked and (found := shipped(key)):
            # Where that cannot be, it is taken out again each time.
            with contextlib.suppress(TilecastError):
                self.add(found)
        return found

    def sizes(self) -> dict[str, int]:
        """Bytes of every entry, whole or not, by key; those asked for longest ago come first."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), own_folder(self.root) as f:
            return _sizes(f)
        return {}

    def put(self, spec: KernelSpec, code: bytes) -> KernelResources:
        """Store an object and its facts.

        Raises:
            TilecastError: the code is damaged.
        """
        entry = Entry.of(spec, code)
        self.add(entry)
        return entry.resources

    def add(self, entry: Entry) -> None:
        """Store what another cache had."""
        path = self.root / f"{entry.key}.o"
        self._own(path)
        replace_atomically(path, lambda file: file.write_bytes(entry.whole))

    @contextlib.contextmanager
    def exclusive(self, spec: KernelSpec) -> Iterator[None]:
        """Keep other processes from compiling a kernel, which they will find when this one is done.

        The system gives the lock back when a process ends, however it ends.
        """
        from filelock import FileLock, Timeout

        path = self.root / f".{kernel_key(spec)}.lock{TEMPORARY}"
        self._own(path)
        lock = FileLock(path, LOCK_SECONDS, mode=0o600)
        try:
            lock.acquire()
        except Timeout:
            pass  # Compiling twice is better than not at all.
        except OSError as error:
            raise unwritable(path, error) from error
        try:
            yield
        finally:
            if lock.is_locked:
                # Before it is released: who opens it afterwards finds the object first.
                path.unlink(missing_ok=True)
                lock.release()

    def tidy(self) -> None:
        """`prune` to `MOST_BYTES`, as well as it can be done."""
        # Where there is no folder, or nothing can be removed, compiling goes on all the same.
        with contextlib.suppress(OSError):
            self.prune(MOST_BYTES)

    def prune(self, most: int) -> dict[str, int]:
        """Remove the entries that were asked for longest ago, until at most some bytes are left.

        Processes that read or write at the same time see whole entries or none, as always. What is
        not named as an entry is left alone.

        Returns:
            Bytes of those that were removed, by key.

        Raises:
            OSError: there is no folder, or it is read-only.
        """
        removed = {}
        with own_folder(self.root) as folder:
            sizes = _sizes(folder)
            excess = sum(sizes.values()) - most
            for key, size in sizes.items():
                if excess <= 0:
                    break
                # Another process may prune at the same time.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{key}.o", dir_fd=folder)
                excess -= size
                removed[key] = size
        return removed

    def _own(self, path: Path) -> None:
        """Make the folder where it is not there, and refuse one that is not safe."""
        try:
            make_own_folder(self.root)
            with own_folder(self.root):
                pass
        except OSError as error:
            raise unwritable(path, error) from error


def _sizes(folder: int) -> dict[str, int]:
    """Bytes of the entries in a folder by key; those asked for longest ago come first."""
    files = []
    with os.scandir(folder) as found:
        for entry in found:
            if match := ENTRY_NAME.fullmatch(entry.name):
                # Another process may prune at the same time.
                with contextlib.suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(facts.st_mode):
                        files.append((facts.st_atime_ns, match[1], facts.st_size))
    return {key: size for _, key, size in sorted(files)}


def _read(folder: int, name: str, asked: bool) -> bytes:
    """The content of an own file, marked as asked for or left as it was; nothing of any other."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(name, flags, dir_fd=folder)
    try:
        found = os.fstat(handle)
        if not (stat.S_ISREG(found.st_mode) and is_own(found)):
            return b""
        if found.st_size > MOST_ENTRY_BYTES:
            return b""
        with os.fdopen(handle, "rb", closefd=False) as file:
            whole = file.read()
        with contextlib.suppress(OSError):
            # Set in any case, as some systems do it when a file is read, and others never.
            access = time.time_ns() if asked else found.st_atime_ns
            os.utime(handle, ns=(access, found.st_mtime_ns))
        return whole
    finally:
        os.close(handle)
