"""An attack on the data set: what is damaged is refused in one line, or answered exactly right."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tilecast.data_collection.dataset import dataset as dataset_module
from tilecast.data_collection.dataset.dataset import (
    COLUMNS,
    Dataset,
    read_dataset,
    write_dataset,
)
from tilecast.data_collection.dataset.select_times import measured_times, rows_of
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.learning.labels import label_table

PROBLEM = GemmProblem(512, 4096, 4096)
OTHER = GemmProblem(16, 6144, 1024)
CONFIGS = [f"128x{n}x64_c1x1x1_s3_coop_o1_rm8" for n in (32, 64, 128, 256)]
PROVENANCE = {
    "runs": [{"gpus": [{"name": "NVIDIA H200"}], "date": "2026-11-21", "note": "x" * 200}],
    **{"space_version": 3, "protocol_version": 3},
}

Answer = Callable[[Path], object]
Change = Callable[[pa.Table], pa.Table]


def _row(problem: GemmProblem, config: str, regime: str, stage: str, time: float | None) -> dict:
    return {
        **dict(zip(("m", "n", "k", "batch", "operands"), problem.row(), strict=True)),
        **{"config": config, "regime": regime, "stage": stage, "microseconds": time, "rounds": 3},
        **{"spread": None if time is None else 0.01, "device": "0123abcd"},
        "failure": "wrong result" if time is None else None,
    }


def _dataset() -> Dataset:
    rows = [
        _row(problem, config, regime, stage, 10.0 + problem.m / 7 + i + len(stage) / 3)
        for problem in (OTHER, PROBLEM)
        for i, config in enumerate([*CONFIGS, "torch.mm"])
        for regime, stage in (("sustained", "screen"), ("sustained", "race"), ("burst", "race"))
    ]
    rows += [_row(PROBLEM, CONFIGS[0], "burst", "verify", 99.5)]
    rows += [_row(OTHER, CONFIGS[1], "burst", "verify", None)]
    return Dataset(pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS), PROVENANCE)


def _rows(path: Path) -> object:
    dataset = read_dataset(path)
    return dataset.digest, dataset.provenance


def _truth(path: Path) -> object:
    return measured_times(rows_of(read_dataset(path).rows, PROBLEM), PROBLEM)


def _labels(path: Path) -> object:
    return [
        (labels.problem, labels.configs, *(times[r].tolist() for r in ("burst", "sustained")))
        for labels in label_table(read_dataset(path))
        for times in (labels.label, labels.truth)
    ]


ANSWERS: dict[str, Answer] = {"rows": _rows, "truth": _truth, "labels": _labels}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "data.parquet"
    write_dataset(_dataset(), path)
    return path


@pytest.fixture(scope="module")
def right(sound: Path) -> dict[str, object]:
    return {name: answer(sound) for name, answer in ANSWERS.items()}


def _outcomes(path: Path, right: dict[str, object]) -> set[str]:
    """``right``, or the line that refuses, of every answer; whatever else happens is a failure."""
    outcomes = set()
    for name, answer in ANSWERS.items():
        try:
            assert answer(path) == right[name], f"{name} is wrong"
            outcomes.add("right")
        except TilecastError as error:
            line = str(error)
            assert "\n" not in line and "allowed: " in line and len(line) < 700
            outcomes.add(line)
    return outcomes


def test_the_attack_knows_what_is_right(sound: Path, right: dict[str, object]) -> None:
    assert _outcomes(sound, right) == {"right"}
    rows = read_dataset(sound).rows
    assert len(measured_times(rows_of(rows, PROBLEM), PROBLEM)["burst"].times) == 4
    assert len(measured_times(rows_of(rows, OTHER), OTHER)["burst"].times) == 3


@pytest.mark.parametrize("seed", range(15))
def test_flipped_bits(sound: Path, right: dict[str, object], tmp_path: Path, seed: int) -> None:
    """Checksums cover the pages; headers, footer, schema and provenance have the seal."""
    content = bytearray(sound.read_bytes())
    # Over the whole file, evenly: pages come first, then the footer.
    position = (len(content) - 1) * seed // 14
    content[position] ^= 1 << random.Random(seed).randrange(8)
    path = tmp_path / "data.parquet"
    path.write_bytes(content)
    _outcomes(path, right)


def test_a_flipped_bit_in_a_page_fails_its_checksum(sound: Path, tmp_path: Path) -> None:
    group = pq.ParquetFile(sound).metadata.row_group(0)
    for i in range(group.num_columns):
        chunk = group.column(i)
        content = bytearray(sound.read_bytes())
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        content[start + chunk.total_compressed_size - 1] ^= 1
        path = tmp_path / "data.parquet"
        path.write_bytes(content)
        with pytest.raises(TilecastError, match=r"cannot be read \(.*CRC checksum"):
            read_dataset(path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999])
def test_cut_short(sound: Path, right: dict[str, object], tmp_path: Path, share: float) -> None:
    content = sound.read_bytes()
    path = tmp_path / "data.parquet"
    path.write_bytes(content[: int(len(content) * share)])
    (line,) = _outcomes(path, right)
    assert line.startswith(f"data set {path} cannot be read (")


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
def rewritten(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Changes the table of the sound file; the seal then fits, whatever the values are."""
    facts = json.loads(pq.read_schema(sound).metadata[b"tilecast"])
    monkeypatch.setattr(dataset_module, "_seal", lambda *values: facts["seal"])

    def rewrite(change: Change) -> Path:
        table = pq.read_table(sound)
        path = tmp_path / "data.parquet"
        changed = change(table).replace_schema_metadata(table.schema.metadata)
        pq.write_table(changed, path)
        return path

    return rewrite


@pytest.mark.parametrize("name", HARMLESS)
def test_another_form_of_the_same_values(
    rewritten: Callable, right: dict[str, object], name: str
) -> None:
    assert _outcomes(rewritten(HARMLESS[name]), right) == {"right"}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_type_or_value(rewritten: Callable, right: dict[str, object], name: str) -> None:
    change, message = REFUSED[name]
    path = rewritten(change)
    (line,) = _outcomes(path, right)
    assert line.startswith(f"data set {path} ")
    assert message in line


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
def test_damaged_metadata(
    sound: Path, right: dict[str, object], tmp_path: Path, value: bytes | None
) -> None:
    table = pq.read_table(sound)
    path = tmp_path / "data.parquet"
    pq.write_table(table.replace_schema_metadata({b"tilecast": value} if value else {}), path)
    (line,) = _outcomes(path, right)
    assert line.startswith(f"data set {path} ")


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
def test_altered_values_break_the_seal(
    sound: Path, right: dict[str, object], tmp_path: Path, change: Change
) -> None:
    table = pq.read_table(sound)
    path = tmp_path / "data.parquet"
    pq.write_table(change(table).replace_schema_metadata(table.schema.metadata), path)
    (line,) = _outcomes(path, right)
    assert "cannot be read (it is not what was written: the digests differ); allowed: " in line
