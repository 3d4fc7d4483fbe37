"""The data set: it round-trips, and a file that breaks its contract is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from processes import python

from tilecast.data_collection.dataset.dataset import (
    COLUMNS,
    TIMED,
    Dataset,
    joined,
    read_dataset,
    shipped_data,
    shipped_rows,
    write_dataset,
)
from tilecast.data_collection.dataset.select_times import rows_of
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.operands import K_GROUPS, ROW_GROUPS
from tilecast.models.learning.training_sets import dataset_hardware

SHIPPED = "89ea709a122efcbed13321fe701f7e15225293b8a10f3e7bdab359dea2b17b99"
"""Digest of the values of the data set that comes with the package."""
PROVENANCE = {
    **{"gpu": "NVIDIA H200", "driver": "580", "versions": {"torch": "2.13.0"}},
    **{"runs": [], "space_version": 3, "protocol_version": 3},
}


def _row(**changes: object) -> dict:
    row = {
        "m": 16, "n": 6144, "k": 4096, "batch": 1, "operands": "bf16:rcr",
        "config": "64x64x64_c1x1x1_s4_coop_o1_rm8", "regime": "burst",
        "stage": "race", "microseconds": 18.4, "spread": 0.01, "rounds": 9, "failure": None,
        "device": "0123abcd",
    }  # fmt: skip
    return row | changes


@pytest.fixture
def rows() -> pd.DataFrame:
    failed = _row(config="128x64x64_c1x1x1_s4_coop_o1_rm8", failure="hung", rounds=0)
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
    changes = {"m": 17, "config": "torch.mm", "microseconds": 18.5, "device": "x", "spread": None}
    for column, value in changes.items():
        changed = rows.astype({column: object})
        changed.loc[0, column] = value
        assert Dataset(changed.astype(COLUMNS), {}).digest != digest
    assert Dataset(rows.iloc[::-1].astype(COLUMNS), {}).digest != digest
    # Neither how a category is coded nor how wide a number is stored changes a value.
    names = rows["config"].cat.categories
    coded = rows["config"].cat.set_categories([*reversed(names), "unused"])
    assert Dataset(rows.assign(config=coded, m=rows["m"].astype("int64")), {}).digest == digest


def test_a_file_of_version_1_is_refused(path: Path) -> None:
    facts = json.dumps({"version": 1, "provenance": PROVENANCE}).encode()
    pq.write_table(pq.read_table(path).replace_schema_metadata({b"tilecast": facts}), path)
    with pytest.raises(TilecastError, match="version 1; allowed: 2; collect it again"):
        read_dataset(path)


@pytest.mark.parametrize(
    ("run", "where"),
    [
        (5, "runs[0]"),
        ({"gpus": 5}, "runs[0].gpus"),
        ({"gpus": [{"name": 5}]}, "runs[0].gpus[0].name"),
        ({"gpu": 5}, "runs[0].gpu"),
        ({"versions": {"torch": []}}, "runs[0].versions.torch"),
        ({"end": {"seconds": "1"}}, "runs[0].end.seconds"),
        ({"end": 1}, "runs[0].end"),
        ({"troubles": [{"card": "a"}]}, "runs[0].troubles[0]"),
        ({"troubles": {}}, "runs[0].troubles"),
        ({"compared": [{"card": "a", "problem": [1.5, 8, 8, 1, "bf16:rcr"], "times": []}]}, "0]"),
        ({"compared": [{"card": "a", "problem": [8, 8, 8, 1, "x"], "times": []}]}, "compared[0]"),
        ({"compared": [{"card": "a", "problem": [8, 8, 8, 1, "bf16:rcr"], "times": [1]}]}, "0]"),
    ],
)
def test_a_provenance_that_says_something_wrongly_is_refused(
    rows: pd.DataFrame, tmp_path: Path, run: object, where: str
) -> None:
    path = tmp_path / "data.parquet"
    write_dataset(Dataset(rows, PROVENANCE | {"runs": [run]}), path)
    with pytest.raises(TilecastError, match="provenance is not understood at ") as caught:
        read_dataset(path)
    assert where in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"space_version": None}, "space_version"),
        ({"protocol_version": "3"}, "protocol_version"),
        ({"runs": {}}, "runs"),
        (None, "runs, space_version, protocol_version"),
    ],
)
def test_a_provenance_that_lacks_something_is_refused(
    rows: pd.DataFrame, tmp_path: Path, changes: dict | None, missing: str
) -> None:
    path = tmp_path / "data.parquet"
    write_dataset(Dataset(rows, {} if changes is None else PROVENANCE | changes), path)
    with pytest.raises(TilecastError, match=rf"provenance is without {missing}\); allowed: "):
        read_dataset(path)


def test_what_cannot_be_a_data_set_is_refused(rows: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    with pytest.raises(TilecastError, match="data.parquet does not exist; allowed: "):
        read_dataset(path)
    mixed = rows.astype({"device": object})
    mixed.loc[1, "device"] = 7
    wrong = {
        "is no table": mixed,
        "m='0' in row 3; allowed: 1 to": rows.assign(m=[1, 1, 1, 0]),
        "lacks column 'stage'; allowed: m, n, k": rows.drop(columns="stage"),
    }
    for message, table in wrong.items():
        with pytest.raises(TilecastError, match=message):
            write_dataset(Dataset(table, PROVENANCE), path)
        assert not path.exists()
    with pytest.raises(TilecastError, match="cannot write /proc/tilecast/data.parquet"):
        write_dataset(Dataset(rows, PROVENANCE), Path("/proc/tilecast/data.parquet"))


def test_the_shipped_data_set_is_what_was_measured(h200: Hardware) -> None:
    path = shipped_data(h200)
    assert path is not None and path.name == "h200.parquet"
    assert path.stat().st_size < 10e6
    dataset = read_dataset(path)
    assert len(dataset.rows) == 930_811
    assert dataset.digest == SHIPPED
    assert [gpu["name"] for gpu in dataset.provenance["runs"][0]["gpus"]] == ["NVIDIA H200"] * 2
    assert shipped_data(replace(h200, name="H200-NVL")) is None


def test_another_gpu_has_been_measured_too(h200: Hardware) -> None:
    path = shipped_data(hardware("H100"))
    assert path is not None
    dataset = read_dataset(path)
    assert (len(dataset.rows), len(dataset.problems())) == (58_615, 334)
    assert dataset_hardware(dataset) == hardware("H100") != h200


@pytest.mark.parametrize(
    ("groups", "rows", "problems"), [(ROW_GROUPS, 62_576, 400), (K_GROUPS, 26_278, 140)]
)
def test_groups_have_been_measured_apart(
    h200: Hardware, groups: str, rows: int, problems: int
) -> None:
    path = shipped_data(h200, groups=groups)
    assert path is not None and path.name == f"h200-{groups}.parquet"
    dataset = read_dataset(path)
    assert (len(dataset.rows), len(dataset.problems())) == (rows, problems)
    assert {problem.operands.groups for problem in dataset.problems()} == {groups}
    assert dataset_hardware(dataset) == h200
    assert shipped_data(hardware("H100"), groups=groups) is None


def test_data_sets_join_with_the_runs_of_all(rows: pd.DataFrame) -> None:
    facts = {"space_version": 2, "protocol_version": 1}
    one = Dataset(rows, facts | {"runs": [{"date": "a"}]})
    runs = [{"date": "b"}, {"date": "c"}]
    other = Dataset(rows.iloc[:2], facts | {"space_version": 3, "runs": runs})
    found = joined([one, other])
    assert found.provenance["space_version"] == 3
    assert joined([other, one]).provenance["space_version"] == 3
    assert len(found.rows) == len(rows) + 2
    pd.testing.assert_frame_equal(found.rows.iloc[: len(rows)], rows)
    assert [run["date"] for run in found.provenance["runs"]] == ["a", "b", "c"]
    assert joined([one]).digest == one.digest


def test_of_a_problem_that_two_protocols_timed_the_newer_times_count(rows: pd.DataFrame) -> None:
    facts = {"space_version": 2, "protocol_version": 1, "runs": []}
    extents = rows[["m", "n", "k"]]
    again = rows[(extents == extents.iloc[0]).all(axis=1)].assign(microseconds=7.0)
    older, newer = Dataset(rows, facts), Dataset(again, facts | {"protocol_version": 2})
    for parts in ([older, newer], [newer, older]):
        found = joined(parts)
        assert found.provenance["protocol_version"] == 2
        assert len(found.rows) == len(rows)
        ours = (found.rows[["m", "n", "k"]] == extents.iloc[0]).all(axis=1)
        assert set(found.rows["microseconds"][ours]) == {7.0}
        assert 7.0 not in set(found.rows["microseconds"][~ours])
        assert 0 < sum(ours) < len(rows)


def _run(version: int | None, *cards: str) -> dict:
    run = {"gpus": [{"name": "NVIDIA H200", "uuid_hash": card} for card in cards]}
    return run if version is None else run | {"protocol_version": version}


def _of(provenance: dict, *rows: dict) -> Dataset:
    return Dataset(pd.DataFrame(rows).astype(COLUMNS), provenance)


def test_a_row_is_of_the_protocol_of_its_card() -> None:
    facts = {"space_version": 3, "protocol_version": 3}
    runs = [_run(1, "old", "both"), _run(3, "new", "both"), _run(None, "untold")]
    cards = ("old", "both", "new", "untold", "unlisted")
    times = [_row(m=m, device=card) for m, card in enumerate(cards, 1)]
    again = [_row(m=m, device="other") for m in (1, 2, 3, 4, 5, 6)]
    mixed = _of(facts | {"runs": runs}, *times, _row(m=6, device="old"), _row(m=6, device="new"))
    other = _of(facts | {"protocol_version": 2, "runs": [_run(2, "other")]}, *again)
    wanted = {(1, "other"), *((m, card) for m, card in enumerate(cards, 1) if m > 1), (6, "new")}
    for parts in ([mixed, other], [other, mixed]):
        found = joined(parts)
        assert set(zip(found.rows["m"], found.rows["device"], strict=True)) == wanted
        assert len(found.rows) == len(wanted)
        assert found.provenance["protocol_version"] == 3


def test_the_rows_of_one_problem_are_read_without_pandas(
    few_dataset: Dataset, tmp_path: Path
) -> None:
    path = tmp_path / "few.parquet"
    write_dataset(few_dataset, path)
    problem, *_ = few_dataset.problems()
    wanted = rows_of(few_dataset.rows, problem)
    code = (
        "import sys; from pathlib import Path\n"
        "from tilecast.data_collection.dataset.dataset import shipped_rows\n"
        "from tilecast.heuristics.problem import GemmProblem\n"
        f"rows = shipped_rows(Path({str(path)!r}), GemmProblem.from_row({problem.row()!r}))\n"
        "print(len(rows['config']), 'pandas' in sys.modules)"
    )
    process = python(code)
    assert process.stdout.split() == [str(len(wanted)), "False"], process.stderr
    assert len(wanted) > 10
    found = shipped_rows(path, problem)
    for name in TIMED:
        assert [*map(str, found[name])] == [
            str(None if pd.isna(value) else value) for value in wanted[name].tolist()
        ]
    assert not any(shipped_rows(path, replace(problem, m=problem.m + 1)).values())
    assert not any(shipped_rows(path, replace(problem, batch=problem.batch + 1)).values())
    path.write_text("no Parquet")
    with pytest.raises(TilecastError, match=r"cannot be read .*; allowed: a whole Parquet file"):
        shipped_rows(path, problem)
