"""Types of options: functions that read the text of a value, for argparse."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import MAX_EXTENT
from tilecast.models.runtime.objectives import check_objective

AUTO = "auto"
_MOST = 2**31 - 1
"""The largest number that any option takes."""
_MOST_PARALLEL = 1024
_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_LAST_DEVICE = 63


def reads(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Turn a TilecastError of ``parse`` into the only error whose message argparse prints."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except TilecastError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def integer(least: int, most: int = _MOST, *, also: str = "") -> Callable[[str], int]:
    """Make a type of integers; ``also`` is what the message says is allowed besides."""

    def read(text: str) -> int:
        # Not all that `int` reads: no spaces, signs, underscores or digits of other scripts.
        found = int(text) if re.fullmatch("[0-9]{1,18}", text) else None
        if found is None or not least <= found <= most:
            raise argparse.ArgumentTypeError(
                f"{text!r} is out of range; allowed: {also}an integer from {least} to {most}"
            )
        return found

    return read


def extents(text: str) -> tuple[int, ...]:
    """Read a list such as ``1,16``; each number once."""
    read = integer(1, MAX_EXTENT, also="numbers such as 1 or 1,16, each ")
    return tuple(dict.fromkeys(map(read, text.split(","))))


def devices(text: str) -> tuple[int, ...]:
    """Read a list such as ``0,1``; each device once."""
    read = integer(0, _LAST_DEVICE, also="numbers such as 0 or 0,1, each ")
    return tuple(dict.fromkeys(map(read, text.split(","))))


def top(text: str) -> int | str:
    """Read how many candidates are wanted; ``auto`` leaves it to the model."""
    return text if text == AUTO else integer(1, also="auto, or ")(text)


def size(text: str) -> int:
    """Read how many bytes; K, M, G and T are 1024 times one another."""
    found = _with_unit(text, _BYTES)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size; allowed: bytes, or K, M, G or T of them, such as 500M or 2G"
        )
    return found


def seconds(text: str) -> int:
    """Read a duration in seconds, or with s, m or h behind it in that unit."""
    found = _with_unit(text, _SECONDS)
    if not found or found > _MOST:
        raise argparse.ArgumentTypeError(
            f"{text!r} is out of range; allowed: seconds from 1 to {_MOST}, or with s, m or h "
            "behind the number, such as 20m"
        )
    return found


def _with_unit(text: str, units: Mapping[str, int]) -> int | None:
    found = re.fullmatch("([0-9]{1,15})([A-Za-z]?)", text)
    return int(found[1]) * units[found[2]] if found and found[2] in units else None


def parallel(text: str) -> int:
    """Read how many run side by side; ``auto`` is one per core that this process may use."""
    if text != AUTO:
        return integer(1, _MOST_PARALLEL, also="auto, or ")(text)
    from joblib.externals.loky import cpu_count

    try:
        return cpu_count()
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"LOKY_MAX_CPU_COUNT={os.environ.get('LOKY_MAX_CPU_COUNT')!r} is no number; allowed: "
            "an integer from 1 on; unset it, or name a number here"
        ) from error


power = reads(check_objective)
"""Reads the power regime to aim at."""


def path(text: str) -> Path:
    """Read the name of a file or folder; an empty name would mean the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("'' is no path; allowed: the name of a file or folder")
    return Path(text)
