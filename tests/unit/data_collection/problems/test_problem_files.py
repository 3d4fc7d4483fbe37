"""Problems of one's own, out of files of every kind, and what is said of a bad one."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tilecast.data_collection.problems.problem_files import read_problems
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem

ROWS = [
    {"m": 16, "n": 4096, "k": 1024, "batch": 1, "operands": "bf16:rcr"},
    {"m": 7, "n": 64, "k": 128, "batch": 3, "operands": "fp16:rrr"},
    {"m": 16, "n": 4096, "k": 1024, "batch": 1, "operands": "bf16:rcr"},
]
PROBLEMS = (
    GemmProblem(16, 4096, 1024),
    GemmProblem(7, 64, 128, 3, GemmOperands.parse("fp16:rrr")),
)


def _write(path: Path, rows: list[dict]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        lines = [rows[0], *(row.values() for row in rows)]
        path.write_text("\n".join(",".join(map(str, line)) for line in lines) + "\n")
    return path


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_problems_are_read_once_each_and_in_order(tmp_path: Path, kind: str) -> None:
    assert read_problems(_write(tmp_path / f"own.{kind}", ROWS)) == PROBLEMS
    short = [{name: row[name] for name in ("k", "m", "n")} | {"layer": "x"} for row in ROWS[:1]]
    assert read_problems(_write(tmp_path / f"short.{kind}", short)) == PROBLEMS[:1]


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"m": None}, "row 2 has no m; allowed: .csv, .json, .parquet with m, n, k"),
        ({"m": 16.5}, "row 2: m='16.5' is not an integer; allowed: 1 to"),
    ],
)
def test_a_row_that_is_no_problem_is_named(
    tmp_path: Path, kind: str, change: dict, told: str
) -> None:
    rows = [ROWS[0], ROWS[1] | change]
    if kind == "csv":
        rows = [{name: "" if v is None else v for name, v in row.items()} for row in rows]
    with pytest.raises(TilecastError) as refused:
        read_problems(_write(tmp_path / f"own.{kind}", rows))
    message = str(refused.value)
    assert told in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("own.txt", "m,n,k", "it ends in '.txt'"),
        ("own.csv", "", "it has no row"),
        ("own.csv", "16,4096,1024\n", "its first line names no column m, n, k"),
        ("own.csv", "m,k\n16,64\n", "its first line names no column n"),
        ("own.csv", "m,n,k, m\n8,8,8,9\n", "it has 2 columns m"),
        ("own.csv", f"m,n,k\n{'9' * 9999},8,8\n", "row 1: m=a number of many digits is out of"),
        ("own.json", '[{"m": 8, "n": 8, "k": 8, "operands": 7}]', "row 1: operands '7' are not"),
        ("own.json", "{}", "it is no list of objects"),
        ("own.json", "[", "Expecting value"),
        ("own.csv", "m,n,k\n1_6,8,8\n", "row 1: m='1_6' is not an integer"),
        ("own.json", '[{"m": true, "n": 8, "k": 8}]', "row 1: m='True' is not an integer"),
        ("own.json", "[" * 100_000, "RecursionError"),
        ("own.parquet", "no such thing", "Parquet magic bytes not found"),
    ],
)
def test_a_file_that_holds_none_is_refused(tmp_path: Path, name: str, text: str, told: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TilecastError) as refused:
        read_problems(tmp_path / name)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_spreadsheets_write_is_read(tmp_path: Path) -> None:
    path = tmp_path / "own.CSV"
    path.write_bytes(b"\xef\xbb\xbfm, n, k\r\n16, 4096, 1024\r\n")
    assert read_problems(path) == PROBLEMS[:1]


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_whole_numbers_may_be_written_as_floats(tmp_path: Path, kind: str) -> None:
    rows = [{"m": 16.0, "n": 4096.0, "k": 1024.0}]
    assert read_problems(_write(tmp_path / f"own.{kind}", rows)) == PROBLEMS[:1]


def test_a_file_that_is_absent_or_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for name in ("none.csv", "none.parquet", "folder.csv"):
        with pytest.raises(TilecastError, match="are not read: "):
            read_problems(tmp_path / name)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (
            [("m", pa.array([2**62], pa.timestamp("us"))), ("n", [8]), ("k", [8])],
            "OverflowError|m=",
        ),
        ([("m", [8]), ("m", [9]), ("n", [8]), ("k", [8])], "it has 2 columns m"),
        ([(name, [8] * 1_000_001) for name in "mnk"], "it has 1000001 rows, more than 1000000"),
    ],
    ids=["dates", "two columns", "too many rows"],
)
def test_odd_parquet_is_refused(tmp_path: Path, columns: list, reason: str) -> None:
    path = tmp_path / "own.parquet"
    arrays = [pa.array(values) for _, values in columns]
    pq.write_table(pa.Table.from_arrays(arrays, [name for name, _ in columns]), path)
    with pytest.raises(TilecastError, match=reason):
        read_problems(path)
