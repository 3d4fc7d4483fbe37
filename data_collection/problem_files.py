"""One's own problems, out of a file: CSV with a header, JSON as a list of objects, or Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tilecast.heuristics.errors import TilecastError, one_line
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem

NEEDED = ("m", "n", "k")
"""Columns that every file has; without the others there is one product of bf16:rcr."""
DEFAULTS = {"batch": 1, "operands": LINEAR_BF16.text}

Row = Mapping[str, object]


def read_problems(path: Path) -> tuple[GemmProblem, ...]:
    """The distinct problems of a file, in its order.

    Columns or keys are ``m``, ``n``, ``k`` and, where they matter, ``batch`` and ``operands``;
    others are left alone.

    Raises:
        TilecastError: the file cannot be read, is of another kind, has no problem, or a row is
            none.
    """
    suffix = path.suffix.lower()
    if suffix not in READERS:
        raise _refused(path, f"it ends in {suffix or 'nothing'!r}")
    try:
        rows = list(READERS[suffix](path))
    except (OSError, ValueError, RecursionError, csv.Error, pa.ArrowException) as error:
        raise _refused(path, one_line(error)) from error
    if not rows:
        raise _refused(path, "it has no row")
    return tuple(dict.fromkeys(_problem(path, i, row) for i, row in enumerate(rows, 1)))


def _csv(path: Path) -> Iterable[Row]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file, skipinitialspace=True))
        return [{str(name).strip(): value for name, value in row.items()} for row in rows]


def _json(path: Path) -> Iterable[Row]:
    rows = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("it is no list of objects")
    return rows


def _parquet(path: Path) -> Iterable[Row]:
    with pa.OSFile(str(path)) as source:
        file = pq.ParquetFile(source)
        names = [name for name in file.schema_arrow.names if name in PROBLEM_FIELDS]
        return file.read(columns=names).to_pylist()


READERS: dict[str, Callable[[Path], Iterable[Row]]] = {
    ".csv": _csv,
    ".json": _json,
    ".parquet": _parquet,
}
"""How a file is read, by how its name ends."""


def _problem(path: Path, number: int, row: Row) -> GemmProblem:
    """The problem of one row, counted from 1."""
    missing = [name for name in NEEDED if row.get(name) in (None, "")]
    if missing:
        raise _refused(path, f"row {number} has no {', '.join(missing)}")
    given = {name: row[name] for name in PROBLEM_FIELDS if row.get(name) not in (None, "")}
    for name in given.keys() - {"operands"}:
        if not _is_whole(value := given[name]):
            raise _refused(path, f"row {number}: {name}={str(value)[:50]} is not an integer")
    try:
        return GemmProblem.from_row(tuple((DEFAULTS | given)[name] for name in PROBLEM_FIELDS))
    except (TilecastError, TypeError, ValueError) as error:
        raise _refused(path, f"row {number}: {str(error).split(';')[0]}") from error


def _is_whole(value: object) -> bool:
    """Whether a value is a whole number, as text or as a float that is one, too."""
    if isinstance(value, str):
        return value.strip().isdecimal() and value.isascii()
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


def _refused(path: Path, reason: str) -> TilecastError:
    return TilecastError(
        f"problems {path} are not read: {reason}; allowed: {', '.join(READERS)} with m, n, k and, "
        "where they matter, batch and operands, in each row"
    )
