"""Object caches in which a compiler dies or hangs, for other processes to import."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.objects.entry import KernelResources
from tilecast.kernels.spec import KernelSpec

FOR_EVER = 3600.0


def nothing(*_: object) -> None:
    """Makes a fork server ready that is to load no compiler."""


def hang() -> None:
    """Makes a fork server hang."""
    time.sleep(FOR_EVER)


class OfTwo(Exception):
    """Cannot be made again from what a pickle has of it."""

    def __init__(self, one: str, other: str):
        """Take two, and keep one."""
        super().__init__(one)


def fail_oddly() -> None:
    """Raises what can be sent and not received."""
    raise OfTwo("one", "other")


def leave() -> None:
    """Raises what ends a process."""
    raise SystemExit(3)


class Unreadable:
    """Can be sent and not received."""

    def __reduce__(self) -> tuple:
        """What makes it again fails."""
        return fail_oddly, ()


def await_file(path: Path) -> None:
    """Makes a fork server ready, which takes until a file is there."""
    while not path.exists():
        time.sleep(0.01)


def span(seconds: float) -> tuple[float, float]:
    """When a call that takes so long began and ended, by a clock that all processes share."""
    begin = time.monotonic()
    time.sleep(seconds)
    return begin, time.monotonic()


@dataclass(frozen=True)
class OddCache(ObjectCache):
    """Has the kernels that are asked for, each after a while, but for the victim's compiler.

    That writes its process number to a file beside the folder at each attempt, named by the
    attempt, dies in the first ones, and hangs or not in the others.
    """

    stored: bytes
    """What all kernels are."""
    victim: KernelSpec | None = None
    """Whose compiler is odd."""
    deaths: int = 0
    """How many of its processes die."""
    hangs: bool = False
    """Whether the others hang."""
    seconds: float = 0.0
    """What one takes."""

    @contextlib.contextmanager
    def exclusive(self, spec: KernelSpec) -> Iterator[None]:
        """Comes first where a kernel is compiled, and is found to be there behind it."""
        if spec == self.victim:
            tries = len(self.tries())
            noted = self.root.parent / f"try{tries}"
            noted.with_suffix(".part").write_text(str(os.getpid()))
            noted.with_suffix(".part").rename(noted)
            if tries < self.deaths:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.hangs:
                time.sleep(FOR_EVER)
        time.sleep(self.seconds)
        self.put(spec, self.stored)
        yield

    def tries(self) -> list[int]:
        """The processes that were to compile the victim."""
        paths = sorted(self.root.parent.glob("try?"))
        return [int(path.read_text()) for path in paths]


@dataclass(frozen=True)
class Forgetful(ObjectCache):
    """Has nothing, as one process sees it, and everything, as all others do."""

    process: int

    def resources(self, spec: KernelSpec) -> KernelResources | None:
        """None for the one, so that it has the others compile, who find nothing to do."""
        return None if os.getpid() == self.process else KernelResources(32, 0)
