"""The columns of a data set and their contract.

All rows that are read from or written to a file are `checked` first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tilecast.data_collection.dataset.measurement import PASSES, REGIMES
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import MAX_EXTENT

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

COLUMNS = {
    "m": "int32",
    "n": "int32",
    "k": "int32",
    "batch": "int32",
    "operands": "category",
    "config": "category",
    "regime": "category",
    "stage": "category",
    "microseconds": "float32",
    "spread": "float32",
    "rounds": "int16",
    "failure": "category",
    "device": "category",
}
"""Column names and their pandas dtypes. ``operands`` is their text, ``device`` a hash of the card's
UUID. ``microseconds`` is NaN exactly where ``failure`` says why."""


TIMES = (1e-3, 1e12)
"""Microseconds that a launch may take: from a nanosecond to twelve days."""


def checked(table: pa.Table, name: str) -> pd.DataFrame:
    """The rows of an Arrow table, with the columns of `COLUMNS` alone and sorted categories.

    Raises:
        TilecastError: a column is missing or of another type, or a value is not allowed.
    """
    for column, dtype in COLUMNS.items():
        if table.column_names.count(column) != 1:
            raise TilecastError(
                f"data set {name} lacks column {column!r}; allowed: {', '.join(COLUMNS)}, each "
                "once; export it again with `tilecast collect`"
            )
        found = table.schema.field(column).type
        if not _fits(found, dtype):
            raise TilecastError(
                f"data set {name} has {column} of type {str(found)[:100]}; allowed: {dtype}; "
                "export it again with `tilecast collect`"
            )
    rows: Any = table.select(list(COLUMNS)).to_pandas()
    for column, dtype in COLUMNS.items():
        if dtype == "category":
            text = rows[column].astype("category")
            rows[column] = text.cat.set_categories(sorted(text.dropna().unique()))
        elif dtype == "float32":
            with np.errstate(over="ignore"):
                rows[column] = rows[column].astype(dtype)
    for column, bad, allowed in _broken(rows):
        if bad.any():
            row = int(np.argmax(bad))
            raise TilecastError(
                f"data set {name} has {column}={str(table[column][row].as_py())[:100]!r} in row "
                f"{row}; allowed: {allowed}; drop the row or measure it again"
            )
    return rows.astype(COLUMNS)


def digest(rows: Any) -> str:
    """SHA-256 of the values of checked rows in their order, whatever file they came from."""
    digest = hashlib.sha256()
    for name in (name for name, dtype in COLUMNS.items() if dtype == "category"):
        text = rows[name].cat
        digest.update(json.dumps(list(text.categories)).encode())
        codes = text.codes.to_numpy(np.min_scalar_type(-len(text.categories) - 1))
        digest.update(codes.tobytes())
    for name in (name for name, dtype in COLUMNS.items() if dtype != "category"):
        digest.update(rows[name].to_numpy().tobytes())
    return digest.hexdigest()


def each(column: Any, value: Callable[[str], Any], none: Any = -1) -> np.ndarray:
    """For every row of a pandas column the value of its text, which is asked for once a text."""
    text = column.astype("category").cat.remove_unused_categories().cat
    return np.array([*map(value, text.categories), none])[text.codes]


def _fits(found: pa.DataType, dtype: str) -> bool:
    """Whether an Arrow type holds values of a column."""
    import pyarrow.types as types

    if dtype == "category":
        kind = found.value_type if types.is_dictionary(found) else found
        return types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind)
    return types.is_floating(found) if dtype == "float32" else types.is_integer(found)


def _broken(rows: Any) -> Iterator[tuple[str, Any, str]]:
    """Each column, its rows whose value is not allowed as bool [rows], and what is allowed."""
    limits = {**dict.fromkeys(("m", "n", "k", "batch"), (1, MAX_EXTENT)), "rounds": (0, 2**15 - 1)}
    for name, (least, most) in limits.items():
        yield name, ~rows[name].between(least, most), f"{least} to {most}"
    times, spread = rows["microseconds"], rows["spread"]
    failed, timed = rows["failure"].notna(), times.notna()
    wrong = (timed | ~failed) & ~times.between(*TIMES)
    allowed = f"{TIMES[0]:g} to {TIMES[1]:g}, or none beside a failure"
    yield "microseconds", wrong, allowed
    yield "failure", failed & timed, "none beside a time"
    yield "spread", (spread < 0) | np.isinf(spread), "0 or more, or none"
    known: dict[str, tuple[Callable[[str], bool], str]] = {
        "operands": (_is_spelling, "texts such as bf16:rcr"),
        "regime": (REGIMES.__contains__, ", ".join(REGIMES)),
        "stage": (PASSES.__contains__, ", ".join(PASSES)),
        # There are thousands of configs, which are parsed where they are used.
        **dict.fromkeys(("config", "device"), (lambda name: True, "any text")),
    }
    for name, (fits, allowed) in known.items():
        yield name, ~each(rows[name], fits, False), allowed


def _is_spelling(text: str) -> bool:
    """Whether this is how the operands that it names are written, and not another way."""
    try:
        return GemmOperands.parse(text).text == text
    except TilecastError:
        return False
