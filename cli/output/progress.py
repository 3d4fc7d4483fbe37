"""How far a command's work is, on standard error."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO, cast

from tilecast.data_collection.run.scheduler import Progress

_SECONDS_BETWEEN_LINES = 15.0


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


@contextmanager
def show_progress(step: str = "") -> Iterator[Callable[[Progress], None]]:
    """Show progress on standard error: in place on a terminal, a line now and then elsewhere.

    Where standard error is closed, full or a broken pipe, the work goes on silently.

    Args:
        step: the name of the step that all of it belongs to.
    """
    from rich.console import Console

    file = None if sys.stderr is None else cast("TextIO", _LossyStream(sys.stderr))
    console = Console(file=file, stderr=True, highlight=False)
    phase, printed_at = "", 0.0
    if step and not console.is_terminal:
        console.print(step, soft_wrap=True)
    with console.status(step or "starting") as status:

        def show(progress: Progress) -> None:
            nonlocal phase, printed_at
            line = f"{step}: {_line(progress)}" if step else _line(progress)
            status.update(line)
            late = progress.seconds - printed_at > _SECONDS_BETWEEN_LINES
            if not console.is_terminal and (late or progress.phase != phase):
                console.print(line, soft_wrap=True)
                phase, printed_at = progress.phase, progress.seconds

        yield show


def _line(progress: Progress) -> str:
    rate = progress.measurements / max(progress.seconds, 1.0)
    return (
        f"{progress.phase} {progress.done}/{progress.total} on {progress.gpus} GPUs, "
        f"{progress.measurements} measurements, {rate:.0f} a second, "
        f"{progress.seconds:.0f} s, {progress.seconds_left:.0f} s left"
    )
