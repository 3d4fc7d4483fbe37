"""Packs: the kernels of an object cache in one file that can be moved, a tar.xz of its entries.

Objects of one family are alike: some 50 KB each take 2 in a pack. What is read from one is believed
no more than what lies in a cache: entries alone, whole, small enough, and under their keys.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import write_atomically
from tilecast.kernels.object_cache import MOST_BYTES, ObjectCache
from tilecast.kernels.object_entry import ENTRY_NAME, Entry
from tilecast.kernels.spec import is_current

MOST_ENTRY_BYTES = 16 << 20
"""Of one entry; a kernel takes some 50 KB."""
_BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True)
class Unpacked:
    """What became of the kernels of a pack."""

    added: int
    """That the cache lacked."""
    found: int
    """That it had."""
    current: int
    """Of all, those compiled as they would be here: `tilecast.kernels.spec.is_current`."""


def pack(cache: ObjectCache, path: Path) -> int:
    """Write the whole entries of a cache into one file, the same for the same entries.

    Returns:
        How many there are.

    Raises:
        TilecastError: there is none, they take more than `MOST_BYTES`, others may write the cache,
            or the file cannot be written. It is as it was.
    """
    sizes = cache.sizes()
    if sum(sizes.values()) > MOST_BYTES:
        limit = f"{MOST_BYTES >> 30}G"
        raise TilecastError(
            f"{cache.root} holds more than {limit}iB; allowed: that much in one pack; "
            f"run `tilecast objects prune --keep {limit}`"
        )
    packed = 0

    def write(temporary: Path) -> None:
        nonlocal packed
        with tarfile.open(temporary, "w:xz", format=tarfile.USTAR_FORMAT) as tar:
            for entry in filter(None, map(cache.entry, sorted(sizes))):
                about = tarfile.TarInfo(f"{entry.key}.o")  # without owner and time
                about.size = len(entry.whole)
                tar.addfile(about, io.BytesIO(entry.whole))
                packed += 1
        if not packed:
            raise TilecastError(
                f"{cache.root} holds no kernel; allowed: a cache with some; run "
                "`tilecast compile --common 500`"
            )

    write_atomically(path, write)
    return packed


def unpack(cache: ObjectCache, path: Path) -> Unpacked:
    """Store what a pack holds and a cache lacks.

    Kernels of other versions or hosts are stored, too, and never match here: their keys say what
    they were compiled from. What a pack holds is native code: its maker is trusted.

    Raises:
        TilecastError: the pack cannot be read or is damaged, and nothing was stored; or the cache
            cannot be written, or others may.
    """
    # All of it is read before anything is stored.
    keys = [entry.key for entry in _entries(path)]
    added = current = 0
    for entry in _entries(path):
        current += is_current(entry.facts)
        if cache.entry(entry.key) is None:
            cache.add(entry)
            added += 1
    return Unpacked(added, len(keys) - added, current)


def _entries(path: Path) -> Iterator[Entry]:
    """The entries of a pack, each checked.

    Raises:
        TilecastError: it cannot be read, or is damaged.
    """
    try:
        with lzma.open(path) as tar:
            yield from _checked(tar)
    except OSError as error:
        raise TilecastError(
            f"cannot read {path}: {error.strerror or error}; allowed: a pack that "
            "`tilecast objects pack` wrote; name another one"
        ) from error
    except (lzma.LZMAError, EOFError, tarfile.HeaderError, ValueError) as error:
        raise TilecastError(
            f"{path} is damaged or no pack ({error}); allowed: what `tilecast objects pack` wrote; "
            "pack it again"
        ) from error


def _checked(tar: lzma.LZMAFile) -> Iterator[Entry]:
    """The entries of a tar archive that holds nothing else.

    Headers are read one by one, so that nothing is read at the length that a pack may claim.

    Raises:
        OSError, EOFError, lzma.LZMAError: the archive cannot be read.
        ValueError, tarfile.HeaderError: there is something else in it.
    """
    left = MOST_BYTES
    while (header := tar.read(_BLOCK)) != bytes(_BLOCK):
        about = tarfile.TarInfo.frombuf(header, "ascii", "strict")
        name = ENTRY_NAME.fullmatch(about.name)
        if not name or about.type != tarfile.REGTYPE:
            raise ValueError(f"{about.name[:50]!r} is no kernel")
        if not 0 <= about.size <= min(MOST_ENTRY_BYTES, left):
            raise ValueError(f"{about.name} takes {about.size} bytes")
        left -= about.size
        entry = Entry.read(name[1], tar.read(about.size))
        if entry is None:
            raise ValueError(f"{about.name} is not whole")
        tar.read(-about.size % _BLOCK)
        yield entry
    # To the end, where xz has a digest of its own: one more block, and what fills up a record.
    if len(rest := tar.read(tarfile.RECORDSIZE + 1)) > tarfile.RECORDSIZE or any(rest):
        raise ValueError("something follows its end")
