"""Checks, before the work begins, that what a command writes can be written and replaces nothing.

Each raises a TilecastError where it cannot, and makes nothing.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import destination, unwritable
from tilecast.models.runtime.manifest import MANIFEST

DATA = "measurements.parquet"
"""What a campaign measured, beside its model."""
_INPUTS = ("source", "store", "data", "model", "problems", "hf_config")
"""Options that name what is read, or what a command adds to."""


def check_writable(folder: Path) -> None:
    """See that a folder can be made and written to."""
    try:
        with tempfile.TemporaryFile(dir=_existing_part(folder)) as file:
            # Full disks still make empty files.
            file.write(bytes(4096))
    except OSError as error:
        raise unwritable(folder, error) from error


def check_file(file: Path) -> None:
    """See that a file can be written, and that no folder, device or the like is there."""
    check_writable(destination(file)[0].parent)


def check_distinct(options: argparse.Namespace, *outputs: Path | None) -> None:
    """See that no output replaces an input, the store, or another output.

    An output that was not asked for is None.
    """
    taken = _inputs(options)
    for path in filter(None, outputs):
        if other := next((one for one in taken if _same_file(one, path)), None):
            raise TilecastError(
                f"cannot write {path}: this command reads, keeps or writes {other} there; allowed: "
                "a file of its own; name another one"
            )
        taken.append(path)


def _inputs(options: argparse.Namespace) -> list[Path]:
    """Every input that the options name; of a folder also the files that a model has there."""
    found: list[Path] = []
    for name in _INPUTS:
        named = getattr(options, name, None) or []
        found += [named] if isinstance(named, Path) else named
    return [*found, *(folder / name for folder in found for name in (MANIFEST, DATA))]


def _same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, which need not exist."""
    try:
        return one.samefile(other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def _existing_part(folder: Path) -> Path:
    """The longest part of a path that exists, whatever it is."""
    try:
        folder.lstat()
    except FileNotFoundError:
        return _existing_part(folder.parent)
    return folder
