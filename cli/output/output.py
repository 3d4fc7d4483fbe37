"""What a command prints: a JSON document, and the same as tables for people."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest

from tilecast.heuristics.errors import TilecastError
from tilecast.reporting.table import Table

_BULK = re.compile(r"(\S{100})\S{101,}(\S{10})")
"""A stretch that nobody reads to its end, such as a number of 5,000 digits."""
_GAP = "  "
"""Between the columns of a table."""
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
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The name of a folder need not be text; where it is not, escapes are printed.
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stdout.isatty():
        sys.stdout.write(shown(parts, shutil.get_terminal_size().columns))
    else:
        # What goes into a file or a pipe is as wide as it needs to be.
        sys.stdout.write(shown(parts, None))


def shown(parts: Sequence[Table | str], width: int | None) -> str:
    """Tables and lines of text as people see them.

    No word is broken, so that names can be copied. Of a table that does not fit, columns are left
    out from the right, and a line below it names them.

    Args:
        parts: tables, and text between them.
        width: columns of the terminal; None for lines of any length.
    """
    return "".join(
        f"{_table(part, width) if isinstance(part, Table) else _text(part, width)}\n"
        for part in parts
    )


def _text(text: str, width: int | None) -> str:
    """Lines that are broken between words; what goes on below is indented further."""
    if width is None:
        return text
    return "\n".join(
        textwrap.fill(
            line,
            width,
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    )


def _table(table: Table, width: int | None) -> str:
    """A table as text, with a line of dashes below its headings."""
    specs = [*table.columns.values()]
    rows = [
        ["" if cell is None else format(cell, spec) for cell, spec in zip(row, specs, strict=True)]
        for row in table.rows
    ]
    columns = [*zip(table.columns, *rows, strict=True)]
    widths = _widths(columns, width)
    lines = [_text(table.title, width)] if table.title else []
    for place, row in enumerate([[*table.columns], *rows]):
        cells = [
            textwrap.wrap(*cell, break_long_words=False, break_on_hyphens=False)
            for cell in zip(row, widths, strict=False)
        ]
        for line in zip_longest(*cells, fillvalue=""):
            aligned = (
                part.rjust(size) if spec else part.ljust(size)
                for part, size, spec in zip(line, widths, specs, strict=False)
            )
            lines.append(_GAP.join(aligned).rstrip())
        if not place:
            lines.append(_GAP.join("-" * size for size in widths))
    if left_out := [*table.columns][len(widths) :]:
        lines.append(
            _text(f"No room for {', '.join(left_out)}: a wider terminal shows more", width)
        )
    return "\n".join([*lines, ""])


def _widths(columns: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """The widths of the columns that have room, from their headings and cells."""
    least = [max(max(map(len, cell.split()), default=1) for cell in cells) for cells in columns]
    most = [max(1, *map(len, cells)) for cells in columns]
    if width is None:
        return most
    while len(least) > 1 and sum(least) + len(_GAP) * (len(least) - 1) > width:
        least.pop()
    spare = width - sum(least) - len(_GAP) * (len(least) - 1)
    # What lacks little is filled first.
    for place in sorted(range(len(least)), key=lambda i: most[i] - least[i]):
        more = max(0, min(most[place] - least[place], spare))
        least[place] += more
        spare -= more
    return least
