"""What a command prints: a JSON document, and the same as tables for people."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tilecast.heuristics.errors import TilecastError
from tilecast.reporting.table import Table

_BULK = re.compile(r"(\S{100})\S{101,}(\S{10})")
"""A stretch that nobody reads to its end, such as a number of 5,000 digits."""
_HEAD, _TAIL = 200, 400
"""Characters of a longer message that are printed: the value, and what is allowed."""


@dataclass(frozen=True)
class Output:
    """The output of one command."""

    document: object
    """Everything, as plain data for ``--json``."""
    tables: Sequence[Table | str] = ()
    """What people see: tables, and lines of text between them."""
    status: int = 0
    """Exit status."""


@contextmanager
def checked_stdout() -> Iterator[None]:
    """Print on standard output inside; TilecastError where what was printed cannot be written."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # Python, which flushes standard output as it exits, shall find nothing to complain about.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # The reader of a broken pipe has seen enough (`| head`).
        if not isinstance(error, BrokenPipeError):
            raise TilecastError(
                f"the output cannot be written ({error.strerror}); allowed: a terminal, a pipe, or "
                "a file on a disk with free space"
            ) from error


def print_output(output: Output, *, as_json: bool) -> None:
    """Print on standard output; TilecastError where it cannot be written."""
    with checked_stdout():
        if as_json:
            json.dump(output.document, sys.stdout, indent=1, allow_nan=False)
            sys.stdout.write("\n")
        else:
            _print(output.tables)


def print_note(message: str) -> None:
    """Print a line on standard error, unless that is closed or full: then nobody reads it."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(_one_line(f"tilecast: {message}"), file=sys.stderr)


def _one_line(message: str) -> str:
    """A message without the bulk of what was typed, printable."""
    line = _BULK.sub(r"\1...\2", " ".join(message.split()))
    if len(line) > _HEAD + _TAIL:
        line = f"{line[:_HEAD]} ... {line[-_TAIL:]}"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def _print(parts: Sequence[Table | str]) -> None:
    from rich.console import Console

    if isinstance(sys.stdout, io.TextIOWrapper):
        # The name of a folder need not be text; where it is not, escapes are printed.
        sys.stdout.reconfigure(errors="backslashreplace")
    # Tables that go into a file or a pipe are as wide as they need to be.
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 200)
    # Captured and written here: at a broken pipe rich would end the process with status 1.
    with console.capture() as captured:
        for part in parts:
            is_text = isinstance(part, str)
            console.print(part if is_text else _rich_table(part), soft_wrap=is_text)
    sys.stdout.write(captured.get())


def _rich_table(table: Table):
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(
        title=Text(table.title, "bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for heading, spec in table.columns.items():
        shown.add_column(
            heading, justify="right" if spec else "left", no_wrap=bool(spec), overflow="fold"
        )
    for row in table.rows:
        cells = zip(row, table.columns.values(), strict=True)
        shown.add_row(*(Text("" if cell is None else format(cell, spec)) for cell, spec in cells))
    return shown
