"""Results that are measured in pieces: each item kept as soon as it is done, by any process.

A result file holds ``records``, one per item and merged by what identifies them, ``runs``, the
provenance of every process that wrote, and ``figures``, computed anew from all records at each
change. So a run that is cut short keeps what it did, and goes on when it is started again.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import result
from tables import compact

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import write_atomically

Record = dict[str, Any]


@dataclass(frozen=True)
class ResultFile:
    """One result on disk. Several processes may add to it at once."""

    path: Path
    """The JSON file; its folder exists."""
    identity: tuple[str, ...]
    """Fields that tell records apart: a record replaces the one that agrees with it in all."""
    figures: Callable[[Sequence[Record]], Mapping[str, Any]]
    """What all records together say."""

    def start(self) -> int:
        """Register this process; returns the number that its records carry as ``run``."""
        import torch

        # Asked of the modules: beside another copy, the installed metadata may be of that one.
        imported = {"torch": torch, "triton": importlib.import_module("triton")}
        versions = {name: module.__version__ for name, module in imported.items()}
        run = result.provenance() | {"imported": versions}
        with self._changing() as document:
            document["runs"].append(run)
            return len(document["runs"]) - 1

    def end(self, run: int) -> None:
        """Note the state of the GPUs when this process is done."""
        state = result.provenance()
        with self._changing() as document:
            document["runs"][run]["end"] = {name: state[name] for name in ("date", "gpus")}

    def add(self, record: Record) -> None:
        """Keep a record."""
        with self._changing() as document:
            document["records"] = merged(document["records"], record, self.identity)
            document["figures"] = self.figures(document["records"])

    def has(self, **identity: Any) -> bool:
        """Whether a record with this identity is there."""
        return any(
            all(record[name] == value for name, value in identity.items())
            for record in self.read()["records"]
        )

    def read(self) -> dict[str, Any]:
        """The document as it is now."""
        if not self.path.exists():
            return {"figures": {}, "records": [], "runs": []}
        return json.loads(self.path.read_text())

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        # The folder is what is locked: the file itself is replaced at every change.
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            document = self.read()
            yield document
            write_atomically(self.path, lambda path: path.write_text(compact(document)))
        finally:
            os.close(folder)


def merged(records: Sequence[Record], record: Record, identity: Sequence[str]) -> list[Record]:
    """The records with one more, in place of the one that has the same identity."""
    others = [old for old in records if any(old[name] != record[name] for name in identity)]
    return [*others, record]


class Deadline:
    """The time that is left, and whether another item fits into it."""

    def __init__(self, seconds: float, longest: float, clock: Callable[[], float] = time.monotonic):
        """Start to count.

        Args:
            seconds: until the end.
            longest: what an item may take, in seconds.
            clock: tells the time.
        """
        self._clock = clock
        self._end = clock() + seconds
        self._longest = longest

    def left(self) -> float:
        """Seconds until the end."""
        return self._end - self._clock()

    def allows(self) -> bool:
        """Whether another item would still end in time."""
        return self.left() >= self._longest

    def spent(self, seconds: float) -> None:
        """Take note of what an item took: others may take as long."""
        self._longest = max(self._longest, seconds)


def span(text: str) -> slice:
    """``START:STOP`` as a slice of a list; either may be left out.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    first, colon, last = text.partition(":")
    if colon and all(part == "" or part.isdigit() for part in (first, last)):
        return slice(int(first or 0), int(last) if last else None)
    raise argparse.ArgumentTypeError(f"{text!r} is no span; allowed: START:STOP, such as 0:16")


def shares(wanted: slice, items: int, workers: int) -> list[str]:
    """A span of a list of ``items`` cut into one contiguous piece for each worker."""
    start, stop, _ = wanted.indices(items)
    cuts = [start + (stop - start) * i // workers for i in range(workers + 1)]
    return [f"{a}:{b}" for a, b in zip(cuts, cuts[1:], strict=False) if a < b]


def over_gpus(option: str, pieces: Sequence[str], arguments: Sequence[str]) -> None:
    """Run this script once per GPU, each with its piece, and wait for all.

    Args:
        option: the option that takes a piece.
        pieces: one for each GPU, from the first on.
        arguments: what all are given.

    Raises:
        TilecastError: one of them failed.
    """
    workers = [
        subprocess.Popen(
            [sys.executable, sys.argv[0], *arguments, option, piece],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu)},
        )
        for gpu, piece in enumerate(pieces)
    ]
    failed = [piece for piece, worker in zip(pieces, workers, strict=True) if worker.wait()]
    if failed:
        raise TilecastError(
            f"{option} {', '.join(failed)} failed; allowed: none; see above, and start again: "
            "what is in the result is not measured twice"
        )
