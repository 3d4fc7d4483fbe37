"""Packs: the kernels of an object cache in one file that can be moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import check_regular, write_atomically
from tilecast.kernels.objects.archive import DAMAGED, read_entries, write_entries
from tilecast.kernels.objects.cache import MOST_BYTES, ObjectCache
from tilecast.kernels.objects.entry import Entry
from tilecast.kernels.objects.keys import is_current


@dataclass(frozen=True)
class Unpacked:
    """What became of the kernels of a pack."""

    added: int
    """That the cache lacked."""
    found: int
    """That it had."""
    current: int
    """Of all, those compiled as they would be here: `tilecast.kernels.objects.keys.is_current`."""


def pack(cache: ObjectCache, path: Path) -> int:
    """Write the whole entries of a cache into one file; returns how many there are.

    The file is the same for the same entries.

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
        with temporary.open("wb") as file:
            packed = write_entries(filter(None, map(cache.entry, sorted(sizes))), file)
        if not packed:
            raise TilecastError(
                f"{cache.root} holds no kernel; allowed: a cache with some; run "
                "`tilecast compile --common 500`"
            )

    write_atomically(path, write)
    return packed


def unpack(
    cache: ObjectCache,
    path: Path,
    storing: Callable[[int], AbstractContextManager[object]] = nullcontext,
) -> Unpacked:
    """Store what a pack holds and a cache lacks, inside ``storing(kernels)`` once it is known.

    Kernels of other versions or hosts are stored, too, and never match here: their keys say what
    they were compiled from. What a pack holds is native code: its maker is trusted.

    Raises:
        TilecastError: the pack cannot be read or is damaged, and nothing was stored; or the cache
            cannot be written, or others may.
    """
    # All of it is read before anything is stored.
    keys = [entry.key for entry in _entries(path)]
    added = current = 0
    with storing(len(keys)):
        for entry in _entries(path):
            current += is_current(entry.facts)
            if cache.entry(entry.key) is None:
                cache.add(entry)
                added += 1
    return Unpacked(added, len(keys) - added, current)


def _entries(path: Path) -> Iterator[Entry]:
    """The entries of a pack, each checked."""
    try:
        check_regular(path, MOST_BYTES)
        with path.open("rb") as file:
            yield from read_entries(file, MOST_BYTES)
    except OSError as error:
        raise TilecastError(
            f"cannot read {path}: {error.strerror or error}; allowed: a pack that "
            "`tilecast objects pack` wrote; name another one"
        ) from error
    except DAMAGED as error:
        raise TilecastError(
            f"{path} is damaged or no pack ({error}); allowed: what `tilecast objects pack` wrote; "
            "pack it again"
        ) from error
