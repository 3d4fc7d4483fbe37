"""How far a collection is, on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilecast.data_collection.collector import Progress


@contextmanager
def telling() -> Iterator[Callable[[Progress], None]]:
    """Show progress on standard error: in place on a terminal, a line now and then elsewhere."""
    from rich.console import Console

    console, told = Console(stderr=True, highlight=False), {"phase": "", "seconds": 0.0}
    with console.status("starting") as status:

        def tell(progress: Progress) -> None:
            line = (
                f"{progress.phase} {progress.done}/{progress.total}, {progress.measurements} "
                f"measurements, {progress.seconds:.0f} s, {progress.seconds_left:.0f} s left"
            )
            status.update(line)
            late = progress.seconds - told["seconds"] > _SECONDS_BETWEEN_LINES
            if not console.is_terminal and (late or progress.phase != told["phase"]):
                console.print(line, soft_wrap=True)
                told.update(phase=progress.phase, seconds=progress.seconds)

        yield tell


_SECONDS_BETWEEN_LINES = 15.0
