"""The data set: it round-trips, and a file that breaks its contract is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tilecast.data_collection.dataset import (
    COLUMNS,
    DATASET_VERSION,
    Dataset,
    is_reference,
    problem_of,
    read_dataset,
    write_dataset,
)
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import GemmProblem

PROVENANCE = {"gpu": "NVIDIA H200", "driver": "580", "versions": {"torch": "2.13.0"}}


def _row(**changes: object) -> dict:
    row = {
        "m": 16, "n": 6144, "k": 4096, "batch": 1, "dtype": "bfloat16", "out_dtype": "bfloat16",
        "layout": "rcr", "config": "64x64x64_c1x1_s4_w1_o1_rm1", "regime": "burst",
        "stage": "race", "microseconds": 18.4, "spread": 0.01, "rounds": 9, "failure": None,
        "device": "0123abcd",
    }  # fmt: skip
    return row | changes


@pytest.fixture
def rows() -> pd.DataFrame:
    failed = _row(config="128x64x64_c1x1_s4_w1_o1_rm1", failure="hung", rounds=0)
    return pd.DataFrame(
        [
            _row(),
            failed | {"microseconds": np.nan, "spread": np.nan},
            _row(config="torch.mm", microseconds=15.6, regime="sustained"),
            _row(m=4096, microseconds=400.25, stage="screen"),
        ]
    ).astype(COLUMNS)


@pytest.fixture
def path(tmp_path: Path, rows: pd.DataFrame) -> Path:
    path = tmp_path / "data.parquet"
    write_dataset(Dataset(rows, PROVENANCE), path)
    return path


def test_round_trip(rows: pd.DataFrame, path: Path) -> None:
    dataset = read_dataset(path)
    assert dataset.provenance == PROVENANCE
    assert dataset.rows.dtypes.astype(str).to_dict() == COLUMNS
    pd.testing.assert_frame_equal(dataset.rows.astype(object), rows.astype(object))
    assert dataset.digest == Dataset(rows, PROVENANCE).digest


def test_same_rows_give_the_same_bytes(rows: pd.DataFrame, path: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.parquet"
    write_dataset(Dataset(rows, PROVENANCE), again)
    assert again.read_bytes() == path.read_bytes()


def test_digest_is_of_the_values_alone(rows: pd.DataFrame) -> None:
    digest = Dataset(rows, PROVENANCE).digest
    assert Dataset(rows.copy(), {}).digest == digest
    for column, value in {"m": 17, "config": "torch.mm", "microseconds": 18.5}.items():
        changed = rows.astype({column: object})
        changed.loc[0, column] = value
        assert Dataset(changed.astype(COLUMNS), {}).digest != digest


def test_further_columns_are_left_out(rows: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "wide.parquet"
    write_dataset(Dataset(rows.assign(note="mine"), PROVENANCE), path)
    assert list(read_dataset(path).rows) == list(COLUMNS)


def test_problems_appear_once_in_order(path: Path) -> None:
    problems = read_dataset(path).problems()
    assert problems == [GemmProblem(16, 6144, 4096), GemmProblem(4096, 6144, 4096)]
    assert all(type(problem.m) is int for problem in problems)


def test_problem_of_checks_as_the_problem_does() -> None:
    with pytest.raises(TilecastError, match="16-byte rule"):
        problem_of(1, 7, 8, 1, "bfloat16", "bfloat16", "rcr")


def test_reference_rows_are_told_apart(path: Path) -> None:
    assert is_reference(read_dataset(path).rows).tolist() == [False, False, True, False]


@pytest.mark.parametrize("column", COLUMNS)
def test_missing_column_is_refused(rows: pd.DataFrame, tmp_path: Path, column: str) -> None:
    path = tmp_path / "data.parquet"
    with pytest.raises(TilecastError, match=f"lacks column '{column}'; allowed: m, n, k"):
        write_dataset(Dataset(rows.drop(columns=column), PROVENANCE), path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("microseconds", np.nan),
        ("microseconds", 0.0),
        ("microseconds", -1.0),
        ("m", np.nan),
        ("n", np.nan),
        ("batch", np.nan),
        ("config", None),
        ("layout", None),
        ("device", None),
        ("dtype", None),
        ("regime", "idle"),
        ("regime", None),
        ("stage", "guess"),
        ("failure", "hung"),
    ],
)
def test_bad_value_is_refused_with_its_row(
    rows: pd.DataFrame, tmp_path: Path, column: str, value: object
) -> None:
    path = tmp_path / "data.parquet"
    rows = rows.astype({column: object})
    rows.loc[3, column] = value
    with pytest.raises(TilecastError, match=rf"data.parquet has {column}=.* in row 3; allowed: "):
        write_dataset(Dataset(rows, PROVENANCE), path)
    assert not path.exists()


def _without_a_column(table: pa.Table) -> pa.Table:
    return table.drop_columns(["regime"])


def _with_nan(table: pa.Table) -> pa.Table:
    index = table.schema.get_field_index("microseconds")
    column = pa.array([np.nan] * table.num_rows, pa.float32(), from_pandas=False)
    return table.set_column(index, "microseconds", column)


def _with_metadata(value: bytes | None) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        metadata = dict(table.schema.metadata)
        del metadata[b"tilecast"]
        return table.replace_schema_metadata(metadata | ({b"tilecast": value} if value else {}))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without_a_column, "lacks column 'regime'; allowed: m, n, k"),
        (_with_nan, "has microseconds=.*nan.* in row 0; allowed: "),
        (_with_metadata(None), f"has version None; allowed: {DATASET_VERSION}; export it again"),
        (
            _with_metadata(json.dumps({"version": 99, "provenance": {}}).encode()),
            f"has version 99; allowed: {DATASET_VERSION}; export it again",
        ),
        (_with_metadata(b"{"), "allowed: "),
        (_with_metadata(b"[]"), "allowed: "),
    ],
)
def test_altered_file_is_refused(
    path: Path, change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    pq.write_table(change(pq.read_table(path)), path)
    with pytest.raises(TilecastError, match=message) as caught:
        read_dataset(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_file_that_was_cut_short_is_refused(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(
        TilecastError, match=r"cannot be read \(.*\); allowed: a whole Parquet"
    ) as e:
        read_dataset(path)
    assert "\n" not in str(e.value)


def test_absent_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(TilecastError, match="none.parquet does not exist; allowed: a file that"):
        read_dataset(tmp_path / "none.parquet")


def test_folder_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(TilecastError, match="data set .* allowed: "):
        read_dataset(tmp_path)


def test_unwritable_place_is_told(rows: pd.DataFrame) -> None:
    with pytest.raises(TilecastError, match="cannot write /proc/tilecast/data.parquet"):
        write_dataset(Dataset(rows, PROVENANCE), Path("/proc/tilecast/data.parquet"))
