"""The rows of a data set column by column, in numpy, and their contract.

All rows that are read from or written to a file become `Columns` first, or are refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, cast

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


@dataclass(frozen=True, eq=False)
class Text:
    """A column of text."""

    names: list[str]
    """Each text once, sorted."""
    codes: np.ndarray
    """Integers [rows], as narrow as fits: indices into ``names``, -1 for none."""

    @classmethod
    def of(cls, names: list, codes: np.ndarray) -> Text:
        """A column from names in any order, some of them equal, unused or None perhaps."""
        counts = np.zeros(len(names) + 1, bool)
        counts[codes] = True  # Code -1 is an index like any other: it finds the last.
        used = sorted({name for name in compress(names, counts) if name is not None})
        kind = np.min_scalar_type(-len(used) - 1)
        if used == names:
            return cls(used, codes.astype(kind))
        places: dict[str | None, int] = {name: place for place, name in enumerate(used)}
        moved = np.array([*(places.get(name, -1) for name in names), -1], kind)
        return cls(used, moved[codes])

    def each(self, value: Callable[[str], int], none: int = -1) -> np.ndarray:
        """For every row the value of its text."""
        return np.array([*map(value, self.names), none])[self.codes]


@dataclass(frozen=True, eq=False)
class Columns:
    """Checked rows; without pandas, which takes half a second to load."""

    numbers: dict[str, np.ndarray]
    """The columns of numbers, each [rows]; NaN for none."""
    texts: dict[str, Text]
    """The others."""

    def take(self, rows: np.ndarray) -> Columns:
        """Some of the rows, by their indices."""
        return Columns(
            {name: values[rows] for name, values in self.numbers.items()},
            {name: Text.of(text.names, text.codes[rows]) for name, text in self.texts.items()},
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the values in row order, whatever file they came from."""
        digest = hashlib.sha256()
        for text in self.texts.values():
            digest.update(json.dumps(text.names).encode())
            digest.update(text.codes.tobytes())
        for values in self.numbers.values():
            digest.update(values.tobytes())
        return digest.hexdigest()

    def frame(self) -> pd.DataFrame:
        """The rows as a pandas table with the columns of `COLUMNS`."""
        import pandas as pd

        texts = {n: pd.Categorical.from_codes(t.codes, t.names) for n, t in self.texts.items()}
        return cast("pd.DataFrame", pd.DataFrame({**self.numbers, **texts})[list(COLUMNS)])


def columns_of(table: pa.Table, name: str) -> Columns:
    """Check an Arrow table against the contract of `COLUMNS`; further columns are left out.

    Raises:
        TilecastError: a column is missing or of another type, or a value is not allowed.
    """
    numbers, texts = {}, {}
    for column, dtype in COLUMNS.items():
        if table.column_names.count(column) != 1:
            raise TilecastError(
                f"data set {name} lacks column {column!r}; allowed: {', '.join(COLUMNS)}, each "
                "once; export it again with `tilecast collect`"
            )
        values = _text(table[column]) if dtype == "category" else _numbers(table[column], dtype)
        if values is None:
            raise TilecastError(
                f"data set {name} has {column} of type {str(table[column].type)[:100]}; allowed: "
                f"{dtype}; export it again with `tilecast collect`"
            )
        (texts if dtype == "category" else numbers)[column] = values
    for column, bad, allowed in _broken(numbers, texts):
        if bad.any():
            row = int(bad.argmax())
            raise TilecastError(
                f"data set {name} has {column}={str(table[column][row].as_py())[:100]!r} in row "
                f"{row}; allowed: {allowed}; drop the row or measure it again"
            )
    return Columns({c: values.astype(COLUMNS[c]) for c, values in numbers.items()}, texts)


def _broken(
    numbers: dict[str, np.ndarray], texts: dict[str, Text]
) -> Iterator[tuple[str, np.ndarray, str]]:
    """Each column, its rows whose value is not allowed as bool [rows], and what is allowed."""
    limits = {**dict.fromkeys(("m", "n", "k", "batch"), (1, MAX_EXTENT)), "rounds": (0, 2**15 - 1)}
    for name, (least, most) in limits.items():
        yield name, (numbers[name] < least) | (numbers[name] > most), f"{least} to {most}"
    times, spread = numbers["microseconds"], numbers["spread"]
    failed, timed = texts["failure"].codes >= 0, ~np.isnan(times)
    wrong = (timed | ~failed) & ~(np.isfinite(times) & (times > 0))
    yield "microseconds", wrong, "a positive time, or none beside a failure"
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
        yield name, ~texts[name].each(fits, False), allowed


def _is_spelling(text: str) -> bool:
    """Whether this is how the operands that it names are written, and not another way."""
    try:
        return GemmOperands.parse(text).text == text
    except TilecastError:
        return False


def _text(column: pa.ChunkedArray) -> Text | None:
    """A column of text; None where it holds something else."""
    import pyarrow.types as types

    coded = types.is_dictionary(column.type)
    kind = column.type.value_type if coded else column.type
    if types.is_null(kind):
        return Text.of([], np.full(len(column), -1))
    if not (types.is_string(kind) or types.is_large_string(kind)):
        return None
    array = column.combine_chunks() if coded else column.combine_chunks().dictionary_encode()
    return Text.of(array.dictionary.to_pylist(), _plain(array.indices, np.int64(-1)))


def _numbers(column: pa.ChunkedArray, dtype: str) -> np.ndarray | None:
    """A column of numbers, integers as they are stored; None where it holds something else."""
    import pyarrow.types as types

    if dtype == "float32" and types.is_floating(column.type):
        with np.errstate(over="ignore"):
            return _plain(column.combine_chunks(), np.float32(np.nan)).astype(np.float32)
    if dtype != "float32" and types.is_integer(column.type):
        return _plain(column.combine_chunks(), np.int64(-1))
    return None


def _plain(array: pa.Array, null: np.generic) -> np.ndarray:
    """An Arrow array in numpy, with ``null`` for nulls; Arrow's own conversion imports pandas."""
    import pyarrow as pa

    bits, data = array.buffers()
    dense = pa.Array.from_buffers(array.type, len(array), [None, data], 0, array.offset)
    values = np.from_dlpack(dense)
    if not array.null_count:
        return values
    end = array.offset + len(array)
    valid = np.unpackbits(np.frombuffer(bits, np.uint8), count=end, bitorder="little")
    return np.where(valid[array.offset :], values, null)
