"""Measurements as they come in, in an SQLite file that survives a kill at any moment."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

from tilecast.data_collection.dataset.columns import COLUMNS
from tilecast.data_collection.dataset.dataset import Dataset
from tilecast.data_collection.dataset.measurement import (
    PASSES,
    PROTOCOL_VERSION,
    REFERENCE,
    REGIMES,
    Measurement,
)
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import MAX_EXTENT, PROBLEM_FIELDS, GemmProblem
from tilecast.kernels.candidates import SPACE_VERSION
from tilecast.kernels.families import FAMILIES, parse_config
from tilecast.kernels.objects.keys import family_facts, kernel_key
from tilecast.kernels.spec import KernelSpec

_TEXT = "TEXT NOT NULL CHECK (typeof({0}) = 'text')"
_EXTENT = f"INTEGER NOT NULL CHECK ({{0}} BETWEEN 1 AND {MAX_EXTENT})"
_PROBLEM = dict.fromkeys(PROBLEM_FIELDS, _EXTENT) | {"operands": _TEXT}
_RESULT = {
    "config": _TEXT,
    "regime": f"TEXT NOT NULL CHECK ({{0}} IN {REGIMES})",
    "stage": f"TEXT NOT NULL CHECK ({{0}} IN {PASSES})",
    "microseconds": "REAL CHECK (typeof({0}) IN ('real', 'null') AND {0} > 0 AND {0} < 1e12)",
    "spread": "REAL CHECK (typeof({0}) IN ('real', 'null') AND {0} >= 0 AND {0} < 1e12)",
    "rounds": "INTEGER NOT NULL CHECK ({0} BETWEEN 0 AND 32767)",
    "failure": "TEXT CHECK (typeof({0}) = iif(microseconds, 'null', 'text'))",
}
"""The columns of a result, in the order of `Measurement`'s fields."""
_ORIGIN = {"device": _TEXT, "run": "INTEGER REFERENCES runs (id)"}
_COLUMNS = {**_PROBLEM, **_RESULT, **_ORIGIN}
_PROBLEM_NAMES = ", ".join(PROBLEM_FIELDS)

_FACTS = "SELECT substr(name, 1, 100), substr(value, 1, 1000) FROM facts LIMIT 100"
"""Bounded: in another database it may be a view without an end."""
_SCHEMA = f"""
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, provenance TEXT NOT NULL CHECK (json_valid(provenance))
);
CREATE TABLE kernels (
    key {_TEXT.format("key")} PRIMARY KEY, config TEXT NOT NULL,
    failure TEXT CHECK (typeof(failure) IN ('text', 'null'))
) WITHOUT ROWID;
CREATE TABLE measurements (
    {", ".join(f"{name} {kind.format(name)}" for name, kind in _COLUMNS.items())},
    PRIMARY KEY ({_PROBLEM_NAMES}, config, regime, stage)
) WITHOUT ROWID;
"""

_SEAL = "seal of "
"""Begins the name of a fact that says, in hexadecimal, what the rows of a table add up to: damage
may leave other values that are allowed. Stores that were begun without have none until they are
written to."""
_SEALED = ("runs", "kernels", "measurements")

_Row = tuple[object, ...]
_FOLDERS = re.compile(r"(?<![\w/])/(?:[^\s/]+/)+")
"""Folders of an absolute path, which name users, while stores are published."""


class OtherVersions(TilecastError):
    """A store was made with other kernels or another protocol, and is not added to."""


class MeasurementStore:
    """One collection: checked kernels, measurements and the runs that they came from.

    Each call that writes is one transaction, on disk when it returns. The file is locked while it
    is open: a second collection cannot use it at the same time.
    """

    def __init__(self, path: Path, *, any_versions: bool = False):
        """Open or create a store; one of ``any_versions`` is only to be read.

        Raises:
            OtherVersions: it was made with other versions.
            TilecastError: the file cannot be written, is no store, is damaged, or is in use.
        """
        self._path = path
        self._any_versions = any_versions
        self._run: int | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():
                raise OSError("not a regular file")
            # Absolute: SQLite would keep a file named ":memory:" in memory.
            self._database = sqlite3.connect(path.absolute(), timeout=0)
            try:
                self._lock()
                self._prepare()
                self._database.commit()
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = FULL")
            except BaseException:
                self.close()
                raise
        except TilecastError:
            raise
        except (sqlite3.Error, OSError, ValueError) as error:
            raise self._unusable(error) from error

    def _lock(self) -> None:
        """Lock the file for this process; the operating system frees it after a kill."""
        try:
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._database.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:  # an extended error code
                raise
            raise TilecastError(
                f"store {self._path} is in use; allowed: one run at a time; wait for the other "
                "one, or name another store"
            ) from error

    def _prepare(self) -> None:
        """Make the tables of a new file, or check that they are whole and of these versions."""
        wanted = store_versions()
        tables = _tables(self._database)
        if not tables:
            for statement in _SCHEMA.split(";"):  # `executescript` would end the transaction
                self._database.execute(statement)
            self._database.executemany("INSERT INTO facts VALUES (?, ?)", wanted.items())
            self._reseal("facts", self._sum("facts"))
            return
        if not {"facts", "measurements"} <= tables.keys():
            raise self._unusable("it is another database")
        found = {
            name: value
            for name, value in self._database.execute(_FACTS)
            if not str(name).startswith(_SEAL)
        }
        self._check_seal("facts")
        if found != wanted and not self._any_versions:
            names = sorted({name for name, _ in found.items() ^ wanted.items()}, key=str)
            made_with, allowed = (
                ", ".join(f"{name} {facts.get(name)!r}" for name in names)
                for facts in (found, wanted)
            )
            raise OtherVersions(
                f"store {self._path} was made with {made_with}; allowed: {allowed}; start a new "
                "store, as times of different kernels do not mix; `tilecast collect --export` "
                "exports this one"
            )
        with closing(sqlite3.connect(":memory:")) as model:
            model.executescript(_SCHEMA)
            if tables != _tables(model):
                raise self._unusable("its tables have another form")
        ((verdict,), *_) = self._database.execute("PRAGMA integrity_check(1)")
        if verdict != "ok":
            raise self._unusable(f"damaged: {verdict}")

    def _unusable(self, reason: object) -> TilecastError:
        return TilecastError(
            f"store {self._path} cannot be used ({' '.join(str(reason).split())}); allowed: a new "
            "file, or one that `tilecast collect` wrote, whole, on a writable disk with free "
            "space; free some and run again, or name another one"
        )

    @contextmanager
    def _access(self, changed: str = "") -> Iterator[sqlite3.Connection]:
        """A transaction, which is on disk afterwards; seals the small table that it changes."""
        try:
            with self._database:
                yield self._database
                if changed:
                    self._reseal(changed, self._sum(changed))
        except sqlite3.IntegrityError as error:
            raise TilecastError(
                f"a measurement cannot be stored ({error}); allowed: each problem, config, regime "
                "and pass once, with a time or a failure; start a new store to measure it again"
            ) from error
        # What is read may be damaged: text, JSON, problems.
        except (sqlite3.Error, ValueError, RecursionError) as error:
            raise self._unusable(error) from error

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def _seal(self, table: str) -> int | None:
        """What the rows of a table have to add up to; None where nothing says so."""
        query = "SELECT value FROM facts WHERE name = ?"
        found = self._database.execute(query, (_SEAL + table,)).fetchone()
        return found and int(found[0], 16)

    def _reseal(self, table: str, total: int) -> None:
        row = (_SEAL + table, f"{total % 2**64:x}")
        self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", row)

    @contextmanager
    def _resealed(self, table: str, added: Iterable[_Row], removed: Iterable[_Row] = ()):
        """Seal a table whose rows change inside, by what it was sealed by and these rows alone."""
        seal = self._seal(table)
        before = self._sum(table) if seal is None else seal
        yield
        self._reseal(table, before + sum(map(_hash, added)) - sum(map(_hash, removed)))

    def _sum(self, table: str) -> int:
        """What they do add up to, in whichever order."""
        rows = self._database.execute(f"SELECT * FROM {table}")
        return sum(_hash(row) for row in rows if not str(row[0]).startswith(_SEAL)) % 2**64

    def _check_seals(self) -> None:
        for table in _SEALED:
            self._check_seal(table)

    def _check_seal(self, table: str) -> None:
        """Raise a ValueError where a row is not what was written."""
        if self._seal(table) not in (None, self._sum(table)):
            raise ValueError(f"damaged: rows of {table} are not what was written")

    def begin_run(self, provenance: dict[str, object]) -> None:
        """Record the provenance of the measurements from now on.

        Raises:
            TilecastError: a row is not what was written, so that nothing is added to it.
        """
        with self._access("runs") as database:
            self._check_seals()
            query = "INSERT INTO runs (provenance) VALUES (?)"
            self._run = database.execute(query, (json.dumps(provenance),)).lastrowid

    def end_run(self, facts: dict[str, object]) -> None:
        """Add to the current run's provenance, under ``end``, what is known once it is over."""
        with self._access("runs") as database:
            database.execute(
                "UPDATE runs SET provenance = json_set(provenance, '$.end', json(?)) WHERE id = ?",
                (json.dumps(facts), self._run),
            )

    def note(self, name: str, fact: object) -> None:
        """Append a fact, as plain data, to a list of the current run's provenance."""
        # The inner call makes the list, if there is none yet.
        with self._access("runs") as database:
            database.execute(
                "UPDATE runs SET provenance = json_insert(json_insert(provenance, ?, json('[]')), "
                "?, json(?)) WHERE id = ?",
                (f"$.{name}", f"$.{name}[#]", json.dumps(fact), self._run),
            )

    def runs(self) -> list[dict]:
        """The provenance of every run, in order."""
        with self._access() as database:
            found = database.execute("SELECT provenance FROM runs ORDER BY id").fetchall()
            return [json.loads(text) for (text,) in found]

    def add_checks(self, failures: Mapping[KernelSpec, str | None]) -> None:
        """Record for each kernel what is wrong with it, or None."""
        rows = [
            (kernel_key(spec), spec.config.name, _without_folders(reason))
            for spec, reason in failures.items()
        ]
        query = "SELECT * FROM kernels WHERE key = ?"
        with self._access() as database:
            replaced = [old for key, *_ in rows for old in database.execute(query, (key,))]
            with self._resealed("kernels", rows, replaced):
                database.executemany("INSERT OR REPLACE INTO kernels VALUES (?, ?, ?)", rows)

    def checks(self) -> dict[str, str | None]:
        """For each checked kernel's key, what is wrong with it, or None."""
        with self._access() as database:
            return dict(database.execute("SELECT key, failure FROM kernels"))

    def add(self, rows: Iterable[Measurement], card: str) -> None:
        """Record measurements taken on a card.

        Raises:
            TilecastError: one is there already or is invalid, or the file cannot be written.
        """
        values = [
            (*row.problem.row(), row.config.name if row.config else REFERENCE)
            + (row.regime, row.stage, _real(row.microseconds), _real(row.spread), row.rounds)
            + (_without_folders(row.failure), card, self._run)
            for row in rows
        ]
        places = ", ".join("?" * len(_COLUMNS))
        with self._access() as database, self._resealed("measurements", values):
            database.executemany(f"INSERT INTO measurements VALUES ({places})", values)

    def measured(self, pass_: str) -> set[GemmProblem]:
        """Problems that have rows of a pass."""
        query = f"SELECT DISTINCT {_PROBLEM_NAMES} FROM measurements WHERE stage = ?"
        with self._access() as database:
            return {GemmProblem.from_row(row) for row in database.execute(query, (pass_,))}

    def raced(self, problem: GemmProblem) -> tuple[tuple[Measurement, ...], str]:
        """Race rows of a problem, and the card that ran them."""
        places = ", ".join("?" * len(_PROBLEM))
        query = (
            f"SELECT device, {', '.join(_RESULT)} FROM measurements "
            f"WHERE stage = 'race' AND ({_PROBLEM_NAMES}) = ({places})"
        )
        with self._access() as database:
            rows = database.execute(query, problem.row()).fetchall()
        found = (
            Measurement(problem, None if name == REFERENCE else parse_config(name), *result)
            for _, name, *result in rows
        )
        return tuple(found), rows[0][0]

    def count(self) -> int:
        """Measurements so far."""
        with self._access() as database:
            return database.execute("SELECT COUNT(*) FROM measurements").fetchone()[0]

    def export(self) -> Dataset:
        """Everything as a data set, in a stable order, with the provenance of every run.

        It has the versions that it was made with.

        Raises:
            TilecastError: a row is not what was written.
        """
        import pandas as pd

        names, runs = ", ".join(COLUMNS), self.runs()
        with self._access() as database:
            self._check_seals()
            versions = dict(database.execute(_FACTS))
            made_with = {
                "space_version": int(versions.get("space", "")),
                "protocol_version": int(versions.get("protocol", "")),
            }
            rows = database.execute(f"SELECT {names} FROM measurements ORDER BY {names}").fetchall()
        frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
        return Dataset(frame, {"runs": runs, **made_with})


def store_versions() -> dict[str, str]:
    """The versions that all measurements of a store share."""
    found = {"protocol": str(PROTOCOL_VERSION), "space": str(SPACE_VERSION)}
    for name in FAMILIES:
        facts = family_facts(name)
        found[f"{name} sources"] = str(facts["sources"])[:16]
        found |= cast("dict[str, str]", facts["versions"])
    return found


def _real(number: float | None) -> float | None:
    """A number as it is read back."""
    return None if number is None else float(number)


def _hash(row: _Row) -> int:
    """64 bits that depend on every value of a row."""
    return int.from_bytes(hashlib.blake2b(repr(row).encode(), digest_size=8).digest())


def _without_folders(reason: str | None) -> str | None:
    return reason and _FOLDERS.sub("", reason)


def _tables(database: sqlite3.Connection) -> dict[str, str | None]:
    """Name and definition of everything in a database."""
    return dict(database.execute("SELECT name, sql FROM sqlite_master"))
