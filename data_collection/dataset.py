"""The data set as a table: one row per `Measurement`, as Parquet with its provenance."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tilecast.data_collection.measurement import PASSES, REFERENCE, REGIMES
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import write_atomically
from tilecast.heuristics.problem import GemmOperands, GemmProblem

if TYPE_CHECKING:
    import pandas as pd

DATASET_VERSION = 1
"""Raised when a column changes its meaning."""

COLUMNS = {
    "m": "int32",
    "n": "int32",
    "k": "int32",
    "batch": "int32",
    "dtype": "category",
    "out_dtype": "category",
    "layout": "category",
    "config": "category",
    "regime": "category",
    "stage": "category",
    "microseconds": "float32",
    "spread": "float32",
    "rounds": "int16",
    "failure": "category",
    "device": "category",
}
"""Column names and their pandas dtypes. ``device`` is a hash of the card's UUID. ``microseconds``
and ``spread`` are NaN exactly where ``failure`` says why."""

METADATA_KEY = b"tilecast"
"""Key of version and provenance among the file's metadata."""


@dataclass(frozen=True)
class Dataset:
    """Measurements and where they come from."""

    rows: pd.DataFrame
    """One row per measurement, with the columns of `COLUMNS`."""
    provenance: dict
    """GPU, driver, versions, clocks, protocol, date and command, as recorded when it was
    measured."""

    @property
    def digest(self) -> str:
        """SHA-256 of the values in row order, whatever file they came from."""
        digest = hashlib.sha256()
        for name in COLUMNS:
            column = self.rows[name]
            values = column.astype("string").fillna("") if column.dtype == "category" else column
            digest.update("\n".join(map(str, values.tolist())).encode())
        return digest.hexdigest()

    def problems(self) -> list[GemmProblem]:
        """Every problem once, in order of first appearance."""
        keys = ["m", "n", "k", "batch", "dtype", "out_dtype", "layout"]
        return [
            problem_of(*row) for row in self.rows[keys].drop_duplicates().itertuples(index=False)
        ]


@lru_cache(maxsize=4096)
def problem_of(
    m: int, n: int, k: int, batch: int, dtype: str, out_dtype: str, layout: str
) -> GemmProblem:
    """The problem that a row's first columns describe."""
    operands = GemmOperands.from_layout(layout, dtype, out_dtype)
    return GemmProblem(int(m), int(n), int(k), int(batch), operands)


def write_dataset(dataset: Dataset, path: Path) -> None:
    """Write a Parquet file, whole or not at all.

    Raises:
        TilecastError: the rows break the contract of `COLUMNS`, or the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = _checked(dataset.rows, str(path))
    table = pa.Table.from_pandas(rows, preserve_index=False)
    facts = json.dumps({"version": DATASET_VERSION, "provenance": dataset.provenance})
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), METADATA_KEY: facts})
    write_atomically(path, lambda file: pq.write_table(table, file, compression="zstd"))


def read_dataset(path: Path) -> Dataset:
    """Read and check a Parquet file that `write_dataset` wrote.

    Raises:
        TilecastError: it is absent, no Parquet, of another version, lacks a column or holds NaN.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except FileNotFoundError as error:
        raise TilecastError(
            f"data set {path} does not exist; allowed: a file that `tilecast collect` exported"
        ) from error
    except (pa.ArrowInvalid, OSError) as error:
        raise TilecastError(
            f"data set {path} cannot be read ({error}); allowed: a whole Parquet file that "
            "`tilecast collect` exported; export it again"
        ) from error
    version, provenance = _facts((table.schema.metadata or {}).get(METADATA_KEY, b"{}"))
    if version != DATASET_VERSION or provenance is None:
        raise TilecastError(
            f"data set {path} has version {version}; allowed: {DATASET_VERSION}; "
            "export it again with this version of tilecast"
        )
    return Dataset(_checked(table.to_pandas(), str(path)), provenance)


def _facts(text: bytes) -> tuple[object, dict | None]:
    """Version and provenance out of a file's metadata; None for what is not there."""
    try:
        facts = json.loads(text)
        return facts.get("version"), facts.get("provenance")
    except (ValueError, AttributeError):
        return None, None


def _checked(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """Rows with exactly the contract's columns and dtypes.

    Raises:
        TilecastError: a column is missing, or a value is NaN, out of range or unknown.
    """
    missing = [column for column in COLUMNS if column not in rows]
    if missing:
        raise TilecastError(
            f"data set {name} lacks column {missing[0]!r}; allowed: {', '.join(COLUMNS)}; "
            "export it again with `tilecast collect`"
        )
    rows = cast("pd.DataFrame", rows[list(COLUMNS)])
    failed = rows["failure"].notna()
    bad = {
        "microseconds": ~failed & ~(rows["microseconds"] > 0),
        "failure": failed & rows["microseconds"].notna(),
        "regime": ~rows["regime"].isin(REGIMES),
        "stage": ~rows["stage"].isin(PASSES),
    }
    for column in ("m", "n", "k", "batch", "dtype", "out_dtype", "layout", "config", "device"):
        bad[column] = rows[column].isna()
    for column, mask in bad.items():
        if mask.any():
            index = int(mask.to_numpy().argmax())
            raise TilecastError(
                f"data set {name} has {column}={rows[column].iloc[index]!r} in row {index}; "
                "allowed: a positive time or a failure, known regimes and stages, no NaN "
                "elsewhere; drop the row or measure it again"
            )
    return rows.astype(COLUMNS).reset_index(drop=True)


def is_reference(rows: pd.DataFrame) -> pd.Series:
    """Which rows time the library's kernel instead of one of ours."""
    return cast("pd.Series", rows["config"] == REFERENCE)
