"""The kernels that a wheel brings: those that choices most often are, compiled when it was built.

One zip file, which a checkout lacks, of archives and of an index: which archive has which kernel.
An archive has few kernels that resemble each other, so that these take 2 KB each, and one that is
asked for some 5 ms.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path

from tilecast.heuristics.files import write_atomically
from tilecast.kernels.object_archive import DAMAGED, MOST_ENTRY_BYTES, read_entries, write_entries
from tilecast.kernels.object_entry import Entry

SHIPPED = Path(__file__).with_name("shipped.zip")
_INDEX = "index.json"
_TOGETHER = 32


def ship(entries: Iterable[Entry], path: Path) -> int:
    """Write what a wheel shall bring as `SHIPPED`, the same for the same kernels.

    Returns:
        How many there are.

    Raises:
        TilecastError: the file cannot be written. It is as it was.
    """
    alike = sorted(entries, key=lambda e: (str(e.facts["operands"]), str(e.facts["config"]), e.key))
    index: dict[str, str] = {}

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w") as file:
            for start in range(0, len(alike), _TOGETHER):
                name, content = f"{start // _TOGETHER:03}.tar.xz", io.BytesIO()
                together = alike[start : start + _TOGETHER]
                write_entries(together, content)
                file.writestr(zipfile.ZipInfo(name), content.getvalue())
                index.update((entry.key, name) for entry in together)
            file.writestr(zipfile.ZipInfo(_INDEX), json.dumps(index))

    write_atomically(path, write)
    return len(index)


def shipped(key: str) -> Entry | None:
    """The entry of a key as this installation brings it; None where it does not, or not whole."""
    name = shipped_keys().get(key)
    return _archive(name).get(key) if name else None


@cache
def shipped_keys() -> Mapping[str, str]:
    """Each kernel that this installation brings, and the archive that it is in."""
    try:
        with zipfile.ZipFile(SHIPPED) as file:
            return json.loads(file.read(_INDEX))
    except (OSError, zipfile.BadZipFile, KeyError, ValueError):
        return {}


@lru_cache(2)  # a shortlist's kernels are alike, so mostly in one or two
def _archive(name: str) -> Mapping[str, Entry]:
    try:
        with zipfile.ZipFile(SHIPPED) as file:
            content = io.BytesIO(file.read(name))
        return {entry.key: entry for entry in read_entries(content, _TOGETHER * MOST_ENTRY_BYTES)}
    except (OSError, zipfile.BadZipFile, KeyError, *DAMAGED):
        return {}
