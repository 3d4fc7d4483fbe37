"""Compiled kernels on disk, shared by the processes and sessions of one user.

A compiled kernel is native code, so the folder must belong to the user and nobody else may write
it. ``KEY.o`` is one spec: the object, a line of facts, and a line with the SHA-256 of both, so that
an ELF tool reads it as it is. An entry that is not whole counts as absent and is compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import (
    TEMPORARY,
    is_own,
    make_own_folder,
    own_folder,
    unwritable,
    write_atomically,
)
from tilecast.kernels.object_facts import KernelResources, read_resources
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
    """A folder of compiled kernels. Any number of processes may read and write it at once."""

    root: Path
    """The folder; made when first written to, for this user alone."""

    def path(self, spec: KernelSpec) -> Path:
        """Where the entry of a spec lies, whether or not it is there."""
        return self.root / f"{spec.key}.o"

    def resources(self, spec: KernelSpec) -> KernelResources | None:
        """Registers and spills of a whole entry; None when it is absent, cut short or altered.

        Raises:
            TilecastError: others may write the folder, or it cannot be read.
        """
        entry = self._entry(spec)
        return entry and entry[1]

    def code(self, spec: KernelSpec) -> bytes | None:
        """The object of a whole entry, the very bytes whose digest was checked.

        Raises:
            TilecastError: as `resources`.
        """
        entry = self._entry(spec)
        return entry and entry[0]

    def count(self) -> int:
        """How many kernels there are, whole or not.

        Raises:
            TilecastError: as `resources`.
        """
        with contextlib.suppress(FileNotFoundError), own_folder(self.root):
            return sum(1 for _ in self.root.glob("*.o"))
        return 0

    def put(self, spec: KernelSpec, code: bytes) -> KernelResources:
        """Store an object and its facts.

        Raises:
            TilecastError: the folder is read-only or may be written by others, the disk is full, or
                the code is damaged.
        """
        resources = read_resources(code)
        facts = spec.facts() | {"key": spec.key, "resources": asdict(resources)}
        content = b"%b\n%b" % (code, json.dumps(facts).encode())
        whole = b"%b\n%b" % (content, _digest(content))
        self._own(spec)
        write_atomically(self.path(spec), lambda file: file.write_bytes(whole))
        return resources

    @contextlib.contextmanager
    def exclusive(self, spec: KernelSpec) -> Iterator[None]:
        """Keep other processes from compiling a kernel, which they will find when this one is done.

        The system gives the lock back when a process ends, however it ends.

        Raises:
            TilecastError: the folder is read-only or may be written by others.
        """
        from filelock import FileLock, Timeout

        self._own(spec)
        path = self.root / f".{spec.key}.lock{TEMPORARY}"
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
        """Remove the entries that were asked for longest ago, until `MOST_BYTES` are left.

        Processes that read or write at the same time see whole entries or none, as always.
        """
        # Where there is no folder, or another process tidies it now, nothing is left to do.
        with contextlib.suppress(OSError), own_folder(self.root) as folder:
            with os.scandir(folder) as found:
                entries = [(e.stat(follow_symlinks=False), e.name) for e in found]
            entries = [(facts, name) for facts, name in entries if name.endswith(".o")]
            excess = sum(facts.st_size for facts, _ in entries) - MOST_BYTES
            for facts, name in sorted(entries, key=lambda entry: entry[0].st_atime_ns):
                if excess <= 0:
                    break
                excess -= facts.st_size
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)

    def _own(self, spec: KernelSpec) -> None:
        """Make the folder where it is not there, and refuse one that is not safe."""
        try:
            make_own_folder(self.root)
            with own_folder(self.root):
                pass
        except OSError as error:
            raise unwritable(self.path(spec), error) from error

    def _entry(self, spec: KernelSpec) -> tuple[bytes, KernelResources] | None:
        key = spec.key
        try:
            with own_folder(self.root) as folder:
                whole = _read(folder, f"{key}.o")
        # Whatever stands in its place: compiling replaces it, or says why it cannot.
        except OSError:
            return None
        content, _, digest = whole.rpartition(b"\n")
        if _digest(content) != digest:
            return None
        code, _, line = content.rpartition(b"\n")
        try:
            facts = json.loads(line)
            resources = KernelResources(**facts["resources"])
            return (code, resources) if facts["key"] == key else None
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _read(folder: int, name: str) -> bytes:
    """The content of an own file, which is marked as asked for; nothing of any other file."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(name, flags, dir_fd=folder)
    try:
        found = os.fstat(handle)
        if not is_own(found):
            return b""
        with contextlib.suppress(OSError):
            # Set here, as many systems do not when a file is read.
            os.utime(handle, ns=(time.time_ns(), found.st_mtime_ns))
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)
