"""How far a command's work is, on standard error."""

from __future__ import annotations

import io
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO, TypeVar, cast

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from tilecast.data_collection.run.scheduler import Progress

T = TypeVar("T")
_SECONDS_BETWEEN_LINES = 15.0
SECONDS_TO_RANK = 0.01
"""Of a core for the candidates of one problem, on average."""
_SHORT = 5.0
"""Seconds of work that is not announced where there is no terminal."""


class _LossyStream(io.TextIOBase):
    """A stream that drops what cannot be written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


@dataclass
class _Shown:
    """A line that is kept up to date on a terminal, and printed now and then elsewhere."""

    console: Console
    status: Status
    printed_at: float = 0.0
    kind: str = ""

    def show(self, line: str, seconds: float, kind: str = "") -> None:
        """Show a line; one of another kind is printed at once."""
        self.status.update(line)
        late = seconds - self.printed_at > _SECONDS_BETWEEN_LINES
        if not self.console.is_terminal and (late or kind != self.kind):
            self.console.print(line, soft_wrap=True)
            self.kind, self.printed_at = kind, seconds


@contextmanager
def _shown(first: str, announced: bool = True) -> Iterator[_Shown]:
    """Show a first line on standard error; where that is closed or full, work goes on silently.

    Where there is no terminal, the line is printed if it is ``announced``.
    """
    from rich.console import Console

    file = None if sys.stderr is None else cast("TextIO", _LossyStream(sys.stderr))
    console = Console(file=file, stderr=True, highlight=False)
    if first and announced and not console.is_terminal:
        console.print(first, soft_wrap=True)
    with console.status(first or "starting") as status:
        yield _Shown(console, status)


@contextmanager
def show_progress(step: str = "") -> Iterator[Callable[[Progress], None]]:
    """Show the progress of a collection, as a step of that name."""
    with _shown(step) as shown:

        def show(progress: Progress) -> None:
            line = f"{step}: {_line(progress)}" if step else _line(progress)
            shown.show(line, progress.seconds, progress.phase)

        yield show


@contextmanager
def show_steps(name: str, total: int, expected: float) -> Iterator[Callable[[], None]]:
    """Show how many of some steps are done; what is given is called after each.

    Args:
        name: what is done.
        total: how many steps there are.
        expected: seconds that all will take, which are shown until the first is done.
    """
    start, done = time.monotonic(), 0
    steps = f"{total} steps, " if total > 1 else ""
    first = f"{name}: {steps}some {_duration(expected)}"
    with _shown(first, announced=expected > _SHORT) as shown:

        def step() -> None:
            nonlocal done
            done += 1  # of several threads
            seconds = time.monotonic() - start
            if done < total:
                left = _duration(seconds / done * (total - done))
                shown.show(f"{name}: {done} of {total} steps, {left} left", seconds)

        yield step


def show_each(name: str, items: Sequence[T], expected: float) -> Iterator[T]:
    """Some items, of each of which something is asked; shows how many of them are done.

    Args:
        name: what is done.
        items: what it is done with.
        expected: seconds that one takes.
    """
    with show_steps(name, len(items), expected * len(items)) as step:
        for item in items:
            yield item
            step()


def _duration(seconds: float) -> str:
    """A time to wait, rounded up: to seconds below two minutes."""
    return f"{math.ceil(seconds)} s" if seconds < 120 else f"{math.ceil(seconds / 60)} minutes"


def _line(progress: Progress) -> str:
    rate = progress.measurements / max(progress.seconds, 1.0)
    return (
        f"{progress.phase} {progress.done}/{progress.total} on {progress.gpus} GPUs, "
        f"{progress.measurements} measurements, {rate:.0f} a second, "
        f"{progress.seconds:.0f} s, {progress.seconds_left:.0f} s left"
    )
