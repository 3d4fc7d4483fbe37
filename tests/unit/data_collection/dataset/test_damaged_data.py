"""A data set whose values or facts somebody changed is refused in one line, or is as it was.

tests/unit/cli/test_attack.py cuts files short and flips their bits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fixtures import PROVENANCE

from tilecast.data_collection.dataset import dataset as dataset_module
from tilecast.data_collection.dataset.dataset import read_dataset
from tilecast.heuristics.errors import TilecastError

Change = Callable[[pa.Table], pa.Table]


def _refusal(path: Path) -> str:
    """The line that refuses a file."""
    with pytest.raises(TilecastError) as refused:
        read_dataset(path)
    line = str(refused.value)
    assert line.startswith(f"data set {path} ")
    assert "\n" not in line and "allowed: " in line and len(line) < 700
    return line


def test_a_flipped_bit_in_a_page_fails_its_checksum(sound_data: Path, tmp_path: Path) -> None:
    group = pq.ParquetFile(sound_data).metadata.row_group(0)
    for i in range(group.num_columns):
        chunk = group.column(i)
        content = bytearray(sound_data.read_bytes())
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        content[start + chunk.total_compressed_size - 1] ^= 1
        path = tmp_path / "data.parquet"
        path.write_bytes(content)
        with pytest.raises(TilecastError, match=r"cannot be read \(.*CRC checksum"):
            read_dataset(path)


def _with(column: str, values: list | np.ndarray | None = None, kind=None, **rows) -> Change:
    """Replace a column, or some of its rows, which are given as ``row_3=value``."""

    def change(table: pa.Table) -> pa.Table:
        found = table[column].to_pylist() if values is None else list(values) * table.num_rows
        for row, value in rows.items():
            found[int(row.removeprefix("row_"))] = value
        place = table.column_names.index(column)
        return table.set_column(place, column, pa.array(found[: table.num_rows], kind))

    return change


def _extents_as(kind: pa.DataType) -> Change:
    def change(table: pa.Table) -> pa.Table:
        for name in ("m", "n", "k", "batch"):
            table = _with(name, None, kind)(table)
        return table

    return change


HARMLESS: dict[str, Change] = {
    "extents in 64 bits": _extents_as(pa.int64()),
    "extents in 16 bits, unsigned": _extents_as(pa.uint16()),
    "times in 64 bits": lambda table: _with("microseconds", None, pa.float64())(table),
    "text without a dictionary": _with("config", None, pa.string()),
    "long text": _with("regime", None, pa.large_string()),
    "a further column": lambda table: table.append_column("note", pa.nulls(table.num_rows)),
    "columns in another order": lambda table: table.select(table.column_names[::-1]),
}

REFUSED: dict[str, tuple[Change, str]] = {
    "m of 0": (_with("m", None, pa.int32(), row_2=0), "m='0' in row 2; allowed: 1 to 2147483647"),
    "negative batch": (_with("batch", None, pa.int32(), row_2=-1), "batch='-1' in row 2"),
    "m of 1.5": (_with("m", [1.5]), "m of type double; allowed: int32"),
    "m as text": (_with("m", ["512"]), "m of type string"),
    "no m at all": (_with("m", [None]), "m of type null"),
    "a null m": (_with("m", None, pa.int32(), row_4=None), "m='None' in row 4"),
    "many rounds": (_with("rounds", None, pa.int64(), row_1=2**15), "rounds='32768' in row 1"),
    "times as text": (_with("microseconds", ["fast"]), "microseconds of type string"),
    "infinite time": (_with("microseconds", None, pa.float32(), row_2=np.inf), "='inf' in row 2"),
    "time below a float": (_with("microseconds", None, pa.float64(), row_2=1e-60), "in row 2"),
    "time of 0": (_with("microseconds", None, pa.float32(), row_2=0.0), "0.001 to 1e+12"),
    "no time, no failure": (_with("microseconds", None, pa.float32(), row_2=None), "in row 2"),
    "a time and a failure": (_with("failure", None, pa.string(), row_2="hung"), "failure='hung'"),
    "infinite spread": (_with("spread", None, pa.float32(), row_2=np.inf), "spread='inf'"),
    "an unknown regime": (_with("regime", None, pa.string(), row_2="idle"), "regime='idle'"),
    "an unknown pass": (_with("stage", None, pa.string(), row_2="guess"), "stage='guess'"),
    "no regime": (_with("regime", None, pa.string(), row_2=None), "regime='None' in row 2"),
    "config as bytes": (_with("config", [b"\xff"]), "config of type binary"),
    "old operands": (_with("operands", ["bfloat16"]), "operands='bfloat16' in row 0"),
    "operands spelled twice": (_with("operands", ["bf16xbf16:rcr"]), "operands='bf16xbf16:rcr'"),
    "long operands": (_with("operands", ["bf16:rcr" * 1000]), "in row 0; allowed: texts such as"),
    "a column too few": (lambda table: table.drop_columns("stage"), "lacks column 'stage'"),
    "a column twice": (lambda table: table.append_column("m", table["m"]), "lacks column 'm'"),
}  # fmt: skip


@pytest.fixture
def rewritten(sound_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Changes the table of the sound file; the seal then fits, whatever the values are."""
    facts = json.loads(pq.read_schema(sound_data).metadata[b"tilecast"])
    monkeypatch.setattr(dataset_module, "_seal", lambda *values: facts["seal"])

    def rewrite(change: Change) -> Path:
        table = pq.read_table(sound_data)
        path = tmp_path / "data.parquet"
        changed = change(table).replace_schema_metadata(table.schema.metadata)
        pq.write_table(changed, path)
        return path

    return rewrite


@pytest.mark.parametrize("name", HARMLESS)
def test_another_form_of_the_same_values(rewritten: Callable, sound_data: Path, name: str) -> None:
    found, right = read_dataset(rewritten(HARMLESS[name])), read_dataset(sound_data)
    pd.testing.assert_frame_equal(found.rows, right.rows)
    assert (found.digest, found.provenance) == (right.digest, right.provenance)


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_type_or_value(rewritten: Callable, name: str) -> None:
    change, message = REFUSED[name]
    assert message in _refusal(rewritten(change))


def _facts(**changes: object) -> bytes:
    return json.dumps({"version": 2, "provenance": PROVENANCE, "seal": ""} | changes).encode()


@pytest.mark.parametrize(
    "value",
    [
        *(None, b"", b"{", b"[]", b"2", b"\xff\xfe", b"[" * 100_000, b"null"),
        *(_facts(version=version) for version in (3, "2", [2], "2\n2", "2" * 1000)),
        *(_facts(provenance=provenance) for provenance in (None, {}, {"runs": 1})),
        *(_facts(seal=seal) for seal in (None, "0" * 64)),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_damaged_metadata(sound_data: Path, tmp_path: Path, value: bytes | None) -> None:
    table = pq.read_table(sound_data)
    path = tmp_path / "data.parquet"
    pq.write_table(table.replace_schema_metadata({b"tilecast": value} if value else {}), path)
    _refusal(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.slice(1),
        lambda table: table.take(list(range(table.num_rows))[::-1]),
        _with("microseconds", None, pa.float32(), row_2=12.5),
        _with("m", None, pa.int32(), row_2=520),
        _with("device", ["another card"]),
    ],
    ids=["a row less", "another order", "another time", "another extent", "another device"],
)
def test_altered_values_break_the_seal(sound_data: Path, tmp_path: Path, change: Change) -> None:
    table = pq.read_table(sound_data)
    path = tmp_path / "data.parquet"
    pq.write_table(change(table).replace_schema_metadata(table.schema.metadata), path)
    wrong = "cannot be read (it is not what was written: the digests differ); allowed: "
    assert wrong in _refusal(path)
