"""Damaged stores are refused in one line, or read."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tilecast.data_collection.dataset.dataset import write_dataset
from tilecast.data_collection.dataset.measurement import Measurement
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.problems.suites import suite
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

CONFIGS = tuple(QuackConfig(64, 128, 64, stages=2 + i) for i in range(6))
Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the square suite, half of which is verified."""
    path = tmp_path_factory.mktemp("stores") / "whole"
    with closing(MeasurementStore(path)) as store:
        store.begin_run({"gpus": [], "command": "tilecast collect"})
        store.add_checks({KernelSpec(config, LINEAR_BF16): None for config in CONFIGS})
        for number, problem in enumerate(suite("square")):
            passes = [("sustained", "screen"), ("burst", "race"), ("sustained", "race")]
            passes += [("burst", "verify")] * (number % 2)
            rows = [
                Measurement(problem, config, regime, stage, 20.0 + i + number, 0.01, 16)
                for regime, stage in passes
                for i, config in enumerate((*CONFIGS, None))
            ]
            store.add(rows, "card")
    return path


def _flip(source: random.Random, bits: int) -> Damage:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        for _ in range(bits):
            content[source.randrange(len(content))] ^= 1 << source.randrange(8)
        path.write_bytes(content)

    return damage


def _cut(source: random.Random) -> Damage:
    return lambda path: path.write_bytes(
        path.read_bytes()[: source.randrange(1, path.stat().st_size)]
    )  # type: ignore[return-value]


def _blank(source: random.Random) -> Damage:
    """A page that was never written, or holds something else."""

    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        page = 4096 * source.randrange(len(content) // 4096)
        content[page : page + 4096] = source.choice([bytes(4096), source.randbytes(4096)])
        path.write_bytes(content)

    return damage


def _statement(text: str) -> Damage:
    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("PRAGMA ignore_check_constraints = ON")
            database.executescript(text)

    return damage


FORMS = (
    "DROP TABLE measurements",
    "DROP TABLE facts",
    "ALTER TABLE measurements RENAME TO timings",
    "ALTER TABLE measurements DROP COLUMN spread",
    "ALTER TABLE measurements ADD COLUMN note TEXT",
    "CREATE TRIGGER gone AFTER INSERT ON runs BEGIN DELETE FROM measurements; END",
    "DROP TABLE measurements; CREATE TABLE measurements (m, n, k)",
)
VALUES = (
    "UPDATE facts SET value = '0' WHERE name = 'protocol'",
    "DELETE FROM facts",
    "INSERT INTO facts VALUES ('dialect', 'another')",
    "UPDATE measurements SET m = 4294967296 WHERE m = 256",
    "UPDATE measurements SET k = 'many' WHERE k = 256",
    "UPDATE measurements SET microseconds = 'fast' WHERE m = 512",
    "UPDATE measurements SET failure = 'hung' WHERE m = 512",
    "UPDATE measurements SET operands = 'bf16:xyz'",
    "UPDATE measurements SET config = 'swap' || config WHERE stage = 'race'",
    "UPDATE measurements SET operands = CAST(operands AS BLOB)",
    "UPDATE measurements SET failure = CAST('hung' AS BLOB), microseconds = NULL",
    "UPDATE kernels SET key = CAST(key AS BLOB)",
    "UPDATE facts SET name = CAST(name AS BLOB) WHERE name = 'space'",
    "UPDATE runs SET provenance = '{'",
)


def _damages() -> Iterator[tuple[bool, Damage]]:
    """Each damage, and whether it must be noticed."""
    source = random.Random(0)
    yield from ((False, _flip(source, bits)) for bits in (1, 2, 8, 64) for _ in range(8))
    yield from ((True, _cut(source)) for _ in range(10))
    yield from ((False, _blank(source)) for _ in range(8))
    yield from ((True, _statement(text)) for text in (*FORMS, *VALUES))


def test_a_damaged_store_is_refused_in_one_line_or_read(whole: Path, tmp_path: Path) -> None:
    refused = 0
    for number, (serious, damage) in enumerate(_damages()):
        path = tmp_path / f"{number}"
        shutil.copy(whole, path)
        damage(path)
        try:
            with closing(MeasurementStore(path)) as store:
                store.measured("screen")
                for problem in store.measured("race"):
                    store.raced(problem)
                write_dataset(store.export(), tmp_path / "export.parquet")
                rows = store.count()
        except TilecastError as error:
            refused += 1
            assert "\n" not in str(error) and "; allowed: " in str(error)
        else:
            assert not serious, number
            assert rows > 200
    # Most of what is flipped is noticed.
    assert refused >= 50
