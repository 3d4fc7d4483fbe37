"""The kernels that a wheel brings: those that choices most often are, compiled when it was built.

One zip file, which a checkout lacks, of archives and of an index: which archive has which kernel.
An archive has few kernels that resemble each other, so that these take 2 KB each, and one that is
asked for some 7 ms. It is trusted as the code beside it is.
"""

from __future__ import annotations

import io
import json
import platform
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path

from tilecast.heuristics.files import write_atomically
from tilecast.kernels.objects.entry import MOST_ENTRY_BYTES, Entry
from tilecast.kernels.objects.keys import toolchain

SHIPPED = Path(__file__).parents[1].joinpath("shipped.zip")
"""What this installation brings; there is none in a checkout."""
_INDEX = "index.json"
_TOGETHER = 32
"""Kernels of an archive."""


def ship(entries: Iterable[Entry], path: Path) -> int:
    """Write the kernels that a wheel shall bring as `SHIPPED`; returns how many there are.

    The file is the same for the same kernels, which are of this version.

    Raises:
        TilecastError: the file cannot be written. It is as it was.
    """
    # Here, as some builds of Python lack lzma.
    from tilecast.kernels.objects.archive import write_entries

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
            about = {"built_from": _built_from(), "archives": index}
            file.writestr(zipfile.ZipInfo(_INDEX), json.dumps(about))

    write_atomically(path, write)
    return len(index)


def shipped(key: str) -> Entry | None:
    """The entry of a key as this installation brings it; None where it does not, or not whole."""
    name = shipped_keys().get(key)
    return _archive(name).get(key) if name else None


@cache
def shipped_keys() -> Mapping[str, str]:
    """Each kernel that this installation brings, and the archive that it is in.

    Empty where it brings none, or was built on another kind of host or with other compilers.
    """
    with suppress(Exception), zipfile.ZipFile(SHIPPED) as file:  # then compiling does
        about = json.loads(file.read(_INDEX))
        return about["archives"] if about["built_from"] == _built_from() else {}
    return {}


@lru_cache(4)  # a shortlist's kernels are in three or four
def _archive(name: str) -> Mapping[str, Entry]:
    with suppress(Exception), zipfile.ZipFile(SHIPPED) as file:
        # Here, as some builds of Python lack lzma.
        from tilecast.kernels.objects.archive import read_entries

        content = io.BytesIO(file.read(name))
        return {entry.key: entry for entry in read_entries(content, _TOGETHER * MOST_ENTRY_BYTES)}
    return {}


def _built_from() -> list[str]:
    """What all keys depend on."""
    return [platform.machine(), toolchain()]
