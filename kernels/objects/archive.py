"""Kernels as one stream: a tar.xz of their entries.

Objects of one family are alike: some 50 KB each take 2 in it. What is read from one is believed no
more than what lies in a cache: entries alone, whole, small enough, and under their keys.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from tilecast.kernels.objects.entry import ENTRY_NAME, MOST_ENTRY_BYTES, Entry

DAMAGED = (lzma.LZMAError, EOFError, tarfile.HeaderError, ValueError)
"""What `read_entries` raises of a file that is no such stream, or not whole."""
_XZ_END = b"YZ"
_BLOCK = tarfile.BLOCKSIZE


def write_entries(entries: Iterable[Entry], file: BinaryIO) -> int:
    """Write some entries to a file, the same for the same entries; returns how many.

    Raises:
        OSError: the file cannot be written.
    """
    written = 0
    with tarfile.open(fileobj=file, mode="w:xz", format=tarfile.USTAR_FORMAT) as tar:
        for entry in entries:
            about = tarfile.TarInfo(f"{entry.key}.o")  # without owner and time
            about.size = len(entry.whole)
            tar.addfile(about, io.BytesIO(entry.whole))
            written += 1
    return written


def read_entries(file: BinaryIO, most: int) -> Iterator[Entry]:
    """The entries that a file holds, of some bytes at most, and nothing else.

    Headers are read one by one, so that nothing is read at the length that a file may claim.

    Raises:
        OSError: the file cannot be read.
        DAMAGED: it is cut short or altered, or there is something else in it.
    """
    with lzma.open(file) as tar:
        while (header := tar.read(_BLOCK)) != bytes(_BLOCK):
            about = tarfile.TarInfo.frombuf(header, "ascii", "strict")
            name = ENTRY_NAME.fullmatch(about.name)
            if not name or about.type != tarfile.REGTYPE:
                raise ValueError(f"{about.name[:50]!r} is no kernel")
            if not 0 <= about.size <= min(MOST_ENTRY_BYTES, most):
                raise ValueError(f"{about.name} takes {about.size} bytes")
            most -= about.size
            entry = Entry.read(name[1], tar.read(about.size))
            if entry is None:
                raise ValueError(f"{about.name} is not whole")
            tar.read(-about.size % _BLOCK)
            yield entry
        # To the end, where xz has a digest of its own: one more block, and what fills up a record.
        if len(rest := tar.read(tarfile.RECORDSIZE + 1)) > tarfile.RECORDSIZE or any(rest):
            raise ValueError("something follows its end")
    # xz passes over what follows the magic number at its end.
    file.seek(-len(_XZ_END), io.SEEK_END)
    if file.read() != _XZ_END:
        raise ValueError("something follows its end")
