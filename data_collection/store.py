"""Measurements as they come in, in an SQLite file that survives a kill at any moment."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tilecast.data_collection.measurement import REFERENCE, Measurement
from tilecast.data_collection.protocol import PROTOCOL_VERSION
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import GemmOperands, GemmProblem
from tilecast.kernels.candidates import SPACE_VERSION
from tilecast.kernels.spec import KernelSpec

if TYPE_CHECKING:
    from tilecast.data_collection.dataset import Dataset

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS runs (id INTEGER PRIMARY KEY, provenance TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS kernels (key TEXT PRIMARY KEY, config TEXT NOT NULL, failure TEXT);
CREATE TABLE IF NOT EXISTS measurements (
    m INTEGER, n INTEGER, k INTEGER, batch INTEGER, dtype TEXT, out_dtype TEXT, layout TEXT,
    config TEXT, regime TEXT, stage TEXT, microseconds REAL, spread REAL, rounds INTEGER,
    failure TEXT, device TEXT, run INTEGER REFERENCES runs (id),
    PRIMARY KEY (m, n, k, batch, dtype, out_dtype, layout, config, regime, stage)
) WITHOUT ROWID;
"""
_VERSIONS = {"protocol": str(PROTOCOL_VERSION), "space": str(SPACE_VERSION)}


class MeasurementStore:
    """One collection: checked kernels, measurements and the runs that they came from.

    Each call that writes is one transaction, on disk when it returns.
    """

    def __init__(self, path: Path):
        """Open or create a store.

        Raises:
            TilecastError: the file cannot be written, is no store, or belongs to another version.
        """
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path)
            try:
                self._prepare()
            except Exception:
                self.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise TilecastError(
                f"store {path} cannot be opened ({error}); allowed: a new file, or one that "
                "`tilecast collect` wrote, on a writable disk with free space; name another one"
            ) from error
        self._run: int | None = None

    def _prepare(self) -> None:
        """Make the tables of a new file, or see that they are those of a store of this version."""
        tables = {name for (name,) in self._database.execute("SELECT name FROM sqlite_master")}
        if tables and "measurements" not in tables:
            raise sqlite3.DatabaseError("a database of something else")
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.executescript(_SCHEMA)
        with self._database:
            self._database.executemany(
                "INSERT OR IGNORE INTO facts VALUES (?, ?)", _VERSIONS.items()
            )
        found = dict(self._database.execute("SELECT name, value FROM facts"))
        if found != _VERSIONS:
            raise TilecastError(
                f"store {self._path} was made with versions {found}; allowed: {_VERSIONS}; "
                "start a new store"
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """What is written inside is on disk afterwards, or none of it is."""
        try:
            with self._database:
                yield
        except sqlite3.OperationalError as error:
            raise TilecastError(
                f"store {self._path} cannot be written ({error}); allowed: a writable disk with "
                "free space and no other run in the same store; run again: it goes on where it was"
            ) from error

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def begin_run(self, provenance: dict[str, object]) -> None:
        """Record where the measurements from now on come from."""
        with self._transaction():
            cursor = self._database.execute(
                "INSERT INTO runs (provenance) VALUES (?)", (json.dumps(provenance),)
            )
        self._run = cursor.lastrowid

    def end_run(self, facts: dict[str, object]) -> None:
        """Add to the current run's provenance what is known once it is over, under ``end``."""
        with self._transaction():
            self._database.execute(
                "UPDATE runs SET provenance = json_set(provenance, '$.end', json(?)) WHERE id = ?",
                (json.dumps(facts), self._run),
            )

    def add_checks(self, failures: Mapping[KernelSpec, str | None]) -> None:
        """Record for each kernel what is wrong with it, or None."""
        with self._transaction():
            self._database.executemany(
                "INSERT OR REPLACE INTO kernels VALUES (?, ?, ?)",
                [(spec.key, spec.config.name, failure) for spec, failure in failures.items()],
            )

    def checks(self) -> dict[str, str | None]:
        """For each checked kernel's key, what is wrong with it, or None."""
        return dict(self._database.execute("SELECT key, failure FROM kernels"))

    def add(self, rows: Iterable[Measurement], card: str) -> None:
        """Record measurements taken on a card.

        Raises:
            TilecastError: one of them is there already, or the file cannot be written.
        """
        try:
            with self._transaction():
                self._database.executemany(
                    f"INSERT INTO measurements VALUES ({', '.join('?' * 16)})",
                    [(*_values(row), card, self._run) for row in rows],
                )
        except sqlite3.IntegrityError as error:
            raise TilecastError(
                f"a measurement is in the store already ({error}); allowed: each problem, config, "
                "regime and stage once; start a new store to measure it again"
            ) from error

    def measured(self, stage: str) -> set[GemmProblem]:
        """Problems that have rows of a stage."""
        query = (
            "SELECT DISTINCT m, n, k, batch, dtype, out_dtype, layout FROM measurements "
            "WHERE stage = ?"
        )
        return {_problem(row) for row in self._database.execute(query, (stage,))}

    def raced(self, problem: GemmProblem) -> tuple[list[Measurement], str]:
        """Race rows of a problem, and the card that ran them."""
        query = (
            "SELECT * FROM measurements WHERE stage = 'race' AND "
            "(m, n, k, batch, dtype, out_dtype, layout) = (?, ?, ?, ?, ?, ?, ?)"
        )
        rows = self._database.execute(query, _problem_values(problem)).fetchall()
        return [_measurement(row) for row in rows], rows[0][14]

    def count(self) -> int:
        """Measurements so far."""
        return self._database.execute("SELECT COUNT(*) FROM measurements").fetchone()[0]

    def export(self) -> Dataset:
        """Everything as a data set, in a stable order, with the provenance of every run."""
        import pandas as pd

        from tilecast.data_collection.dataset import COLUMNS, Dataset

        names = ", ".join(COLUMNS)
        query = f"SELECT {names} FROM measurements ORDER BY {names}"
        with closing(self._database.execute(query)) as cursor:
            rows = pd.DataFrame(cursor.fetchall(), columns=list(COLUMNS))
        runs = self._database.execute("SELECT provenance FROM runs ORDER BY id")
        facts = {
            "runs": [json.loads(text) for (text,) in runs],
            "space_version": SPACE_VERSION,
            "protocol_version": PROTOCOL_VERSION,
        }
        return Dataset(rows.astype(COLUMNS), facts)


def _problem_values(problem: GemmProblem) -> tuple:
    operands = problem.operands
    return (
        problem.m,
        problem.n,
        problem.k,
        problem.batch,
        operands.dtype,
        operands.out_dtype,
        operands.layout,
    )


def _values(row: Measurement) -> tuple:
    return (
        *_problem_values(row.problem),
        row.config.name if row.config else REFERENCE,
        row.regime,
        row.stage,
        row.microseconds,
        row.spread,
        row.rounds,
        row.failure,
    )


def _problem(row: tuple) -> GemmProblem:
    operands = GemmOperands.from_layout(row[6], row[4], row[5])
    m, n, k, batch = row[:4]
    return GemmProblem(m, n, k, batch, operands)


def _measurement(row: tuple) -> Measurement:
    config = None if row[7] == REFERENCE else KernelConfig.parse(row[7])
    return Measurement(_problem(row), config, *row[8:14])
