"""Problems from a file: CSV with a header, JSON as a list of objects, or Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tilecast.heuristics.errors import TilecastError, one_line
from tilecast.heuristics.files import check_regular, read_whole
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem

NEEDED = ("m", "n", "k")
"""Columns that every file must have; a batch is 1 and operands are `LINEAR_BF16` if left out."""

MOST_BYTES = 256 << 20
MOST_ROWS = 1_000_000
"""Of a file of problems, each of which takes a millisecond to rank."""

Row = Mapping[str, object]

_FOREIGN = (csv.Error, MemoryError)

_WHOLE = re.compile(r"\s*(-?[0-9]+)(\.0*)?\s*", re.ASCII)
"""A whole number as text; pandas writes 16.0 where another row of the column has none."""


def read_problems(path: Path) -> tuple[GemmProblem, ...]:
    """The distinct problems of a file, in its order; raises as `read_rows`."""
    return tuple(dict.fromkeys(problem for problem, _ in read_rows(path)))


def read_rows(path: Path) -> list[tuple[GemmProblem, Row]]:
    """The rows of a file, each with its problem; of Parquet only the columns of problems.

    Columns or keys are ``m``, ``n``, ``k`` and, where they matter, ``batch`` and ``operands``;
    others are ignored.

    Raises:
        TilecastError: the file cannot be read, is of another kind or has no problem, or a row is no
            problem.
    """
    if path.is_dir():
        raise _refused(path, "it is a folder")
    suffix = path.suffix.lower()
    if suffix not in READERS:
        raise _refused(path, f"it ends in {suffix or 'nothing'!r}")
    try:
        rows = list(READERS[suffix](path))
    except TilecastError:
        raise
    except (OSError, ValueError, ArithmeticError, RecursionError, *_FOREIGN) as error:
        raise _refused(path, one_line(error)) from error
    if not rows:
        raise _refused(path, "it has no row")
    return [(_problem(path, place, row), row) for place, row in enumerate(rows, 1)]


def _csv(path: Path) -> Iterable[Row]:
    text = read_whole(path, MOST_BYTES).decode("utf-8-sig")
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
    reader.fieldnames = names = [name.strip() for name in reader.fieldnames or ()]
    rows = list(reader)
    for name in PROBLEM_FIELDS:
        if names.count(name) > 1:
            raise _refused(path, f"it has {names.count(name)} columns {name}")
    missing = [name for name in NEEDED if name not in names]
    if names and missing:
        raise _refused(path, f"its first line names no column {', '.join(missing)}")
    return rows


def _json(path: Path) -> Iterable[Row]:
    rows = json.loads(read_whole(path, MOST_BYTES).decode("utf-8-sig"))
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("it is no list of objects")
    return rows


def _parquet(path: Path) -> Iterable[Row]:
    # Here: it takes longer to import than to rank a problem.
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_regular(path, MOST_BYTES)
    try:
        with pa.OSFile(str(path)) as source:
            file = pq.ParquetFile(source)
            if file.metadata.num_rows > MOST_ROWS:
                raise ValueError(f"it has {file.metadata.num_rows} rows, more than {MOST_ROWS}")
            names = [name for name in file.schema_arrow.names if name in PROBLEM_FIELDS]
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"it has {names.count(name)} columns {name}")
            return file.read(columns=names).to_pylist()
    except pa.ArrowException as error:
        raise ValueError(one_line(error)) from error


READERS: dict[str, Callable[[Path], Iterable[Row]]] = {
    ".csv": _csv,
    ".json": _json,
    ".parquet": _parquet,
}
"""The reader of each file type, by suffix."""


def _problem(path: Path, number: int, row: Row) -> GemmProblem:
    """The problem of one row, counted from 1."""
    given = {name: row[name] for name in PROBLEM_FIELDS if row.get(name) not in (None, "")}
    missing = [name for name in NEEDED if name not in given]
    if missing:
        raise _refused(path, f"row {number} has no {', '.join(missing)}")
    operands = str(given.pop("operands", LINEAR_BF16.text))
    extents: dict[str, Any] = {name: _whole(value) for name, value in given.items()}
    try:
        return GemmProblem(**extents, operands=GemmOperands.parse(operands))
    except TilecastError as error:
        raise TilecastError(f"problems {path} are not read: row {number}: {error}") from error


def _whole(value: object) -> object:
    """A whole number that is written as text or as a float; anything else as it is."""
    if isinstance(value, str) and (found := _WHOLE.fullmatch(value)):
        # Python reads no integer of many digits, and any such is out of range.
        return int(found[1][:1000])
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _refused(path: Path, reason: str) -> TilecastError:
    return TilecastError(
        f"problems {path} are not read: {reason}; allowed: {', '.join(READERS)} with m, n, k and, "
        "where they matter, batch and operands, in each row"
    )
