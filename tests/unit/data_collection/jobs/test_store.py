"""The store: what goes in comes out, whoever is killed meanwhile."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tilecast.data_collection.dataset.dataset import COLUMNS, read_dataset, write_dataset
from tilecast.data_collection.dataset.measurement import Measurement
from tilecast.data_collection.jobs import store as storing
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.objects.keys import kernel_key
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

LINEAR = GemmProblem(16, 6144, 4096)
BATCHED = GemmProblem(64, 128, 256, 4, GemmOperands.parse("fp16:ccc>fp32"))
CONFIG = QuackConfig(64, 128, 64, stages=4)
SWAPPED = QuackConfig(128, 16, 128, cluster_m=2, stages=3, raster="n", swizzle=4, swap_ab=True)
ROWS = [
    Measurement(LINEAR, CONFIG, "sustained", "screen", 18.25, None, 3),
    Measurement(LINEAR, SWAPPED, "sustained", "screen", None, None, 0, "hung: not done after 5 s"),
    Measurement(LINEAR, None, "sustained", "screen", 15.5, None, 3),
    Measurement(LINEAR, CONFIG, "burst", "race", 17.75, 0.0078125, 16),
    Measurement(LINEAR, None, "burst", "race", 15.25, 0.015625, 16),
    Measurement(BATCHED, SWAPPED, "burst", "race", 4.5, 0.03125, 16),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "store"


@pytest.fixture
def store(path: Path):
    store = MeasurementStore(path)
    store.begin_run({"gpus": [{"name": "NVIDIA H200"}], "command": "collect"})
    yield store
    store.close()


def test_rows_come_back_as_they_went_in(store: MeasurementStore) -> None:
    store.add(ROWS, "left")
    assert store.count() == 6
    assert store.measured("screen") == {LINEAR}
    assert store.measured("race") == {LINEAR, BATCHED}
    assert store.measured("verify") == set()
    raced, card = store.raced(LINEAR)
    assert (sorted(raced, key=str), card) == (sorted(ROWS[3:5], key=str), "left")
    assert store.raced(BATCHED) == ((ROWS[5],), "left")


def test_checks_come_back_and_a_later_one_counts(store: MeasurementStore, path: Path) -> None:
    good, bad = KernelSpec(CONFIG, LINEAR_BF16), KernelSpec(SWAPPED, LINEAR_BF16)
    store.add_checks({good: None, bad: "relative error 0.5"})
    assert store.checks() == {kernel_key(good): None, kernel_key(bad): "relative error 0.5"}
    store.add_checks({good: "hung"})
    store.close()
    again = MeasurementStore(path)
    assert again.checks() == {kernel_key(good): "hung", kernel_key(bad): "relative error 0.5"}
    again.close()


def test_failure_names_no_folder(store: MeasurementStore) -> None:
    spec = KernelSpec(CONFIG, LINEAR_BF16)
    store.add_checks({spec: "error at '/home/alice/lib/kernel.py:12' of 1/2, see /tmp/alice/x"})
    assert store.checks() == {kernel_key(spec): "error at 'kernel.py:12' of 1/2, see x"}


def test_export_is_a_data_set_and_survives_parquet(store: MeasurementStore, tmp_path: Path) -> None:
    store.add(ROWS[:3], "left")
    store.end_run({"seconds": 12.5})
    store.begin_run({"command": "collect again"})
    store.add(ROWS[3:], "right")
    dataset = store.export()
    rows = dataset.rows
    assert list(rows.columns) == list(COLUMNS)
    assert {name: str(rows[name].dtype) for name in COLUMNS} == COLUMNS
    assert dataset.problems() == [LINEAR, BATCHED]
    names = ["config", "regime", "stage", "microseconds", "spread", "rounds", "device"]
    found = rows[names].astype("object")
    assert set(found.where(found.notna(), None).itertuples(index=False, name=None)) == {
        (
            *(row.config.name if row.config else "torch.mm", row.regime, row.stage),
            *(row.microseconds, row.spread, row.rounds),
            "left" if row.stage == "screen" else "right",
        )
        for row in ROWS
    }
    assert rows["failure"].dropna().tolist() == ["hung: not done after 5 s"]
    assert dataset.provenance["runs"] == [
        {"gpus": [{"name": "NVIDIA H200"}], "command": "collect", "end": {"seconds": 12.5}},
        {"command": "collect again"},
    ]
    write_dataset(dataset, tmp_path / "data.parquet")
    read = read_dataset(tmp_path / "data.parquet")
    assert read.digest == dataset.digest
    assert read.provenance == dataset.provenance
    assert read.problems() == dataset.problems()


def test_export_does_not_depend_on_the_order_of_arrival(tmp_path: Path) -> None:
    digests = set()
    for number, rows in enumerate((ROWS, ROWS[::-1])):
        store = MeasurementStore(tmp_path / f"{number}")
        for row in rows:
            store.add([row], "card")
        digests.add(store.export().digest)
        store.close()
    assert len(digests) == 1


def test_second_measurement_is_refused_and_its_batch_with_it(store: MeasurementStore) -> None:
    store.add(ROWS[:1], "card")
    again = Measurement(LINEAR, CONFIG, "sustained", "screen", 99.0, None, 3)
    with pytest.raises(TilecastError, match="a measurement cannot be stored .*UNIQUE") as caught:
        store.add([*ROWS[1:], again], "card")
    assert "allowed: each problem, config, regime and pass once" in str(caught.value)
    assert store.count() == 1
    assert store.export().rows["microseconds"].tolist() == [18.25]


@pytest.mark.parametrize(
    "fact",
    ["protocol", "space", "quack_sm90 sources", "nvidia-cutlass-dsl", "quack-kernels"],
)
def test_store_of_another_version_is_refused_and_left_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch, fact: str
) -> None:
    store = MeasurementStore(path)
    store.add(ROWS, "card")
    store.close()
    others = {**storing.store_versions(), fact: "another"}
    with monkeypatch.context() as patch:
        patch.setattr(storing, "store_versions", lambda: others)
        wanted = f"was made with {fact} '.*'; allowed: {fact} 'another'; start a new store"
        with pytest.raises(TilecastError, match=wanted):
            MeasurementStore(path)
    again = MeasurementStore(path)
    assert again.count() == 6
    again.close()


def test_store_in_use_is_refused_at_once(store: MeasurementStore, path: Path) -> None:
    with pytest.raises(TilecastError, match="store .* is in use; allowed: one run at a time"):
        MeasurementStore(path)
    store.add(ROWS, "card")
    assert store.count() == 6


@pytest.mark.parametrize(
    "wrong",
    [
        Measurement(LINEAR, CONFIG, "idle", "race", 1.0, None, 1),
        Measurement(LINEAR, CONFIG, "burst", "final", 1.0, None, 1),
        Measurement(LINEAR, CONFIG, "burst", "race", 0.0, None, 1),
        Measurement(LINEAR, CONFIG, "burst", "race", float("nan"), None, 1),
        Measurement(LINEAR, CONFIG, "burst", "race", float("inf"), None, 1),
        Measurement(LINEAR, CONFIG, "burst", "race", None, None, 1),
        Measurement(LINEAR, CONFIG, "burst", "race", 1.0, None, 1, "hung"),
        Measurement(LINEAR, CONFIG, "burst", "race", 1.0, None, 40_000),
    ],
)
def test_what_is_no_measurement_is_refused(store: MeasurementStore, wrong: Measurement) -> None:
    with pytest.raises(TilecastError, match="a measurement cannot be stored .*CHECK"):
        store.add([*ROWS, wrong], "card")
    assert store.count() == 0


def test_another_file_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "other"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE birds (name TEXT)")
    for content, reason in ((path.read_bytes(), "another database"), (b"no" * 999, "not a data")):
        path.write_bytes(content)
        with pytest.raises(TilecastError, match=f"other cannot be used .*{reason}"):
            MeasurementStore(path)
        assert path.read_bytes() == content


@pytest.mark.parametrize(
    "path",
    [
        "/proc/tilecast/store",
        "/proc/store",
        "/",
        "/dev/null",
        f"/tmp/{300 * 'x'}",
        "/etc/passwd/store",
    ],
)
def test_path_that_cannot_be_written_is_told(path: str) -> None:
    with pytest.raises(TilecastError, match="cannot be used .* allowed: a new file, or one that"):
        MeasurementStore(Path(path))


def test_full_disk_is_told_and_keeps_what_was_there(store: MeasurementStore) -> None:
    store.add(ROWS[:3], "card")
    pages = store._database.execute("PRAGMA page_count").fetchone()[0]
    store._database.execute(f"PRAGMA max_page_count = {pages}")
    many = [Measurement(GemmProblem(m, 8, 8), CONFIG, "burst", "race", 1.0, 0.0, 8)
            for m in range(1, 2001)]  # fmt: skip
    with pytest.raises(TilecastError, match="cannot be used .*full.*run again"):
        store.add(many, "card")
    assert store.count() == 3
    store._database.execute("PRAGMA max_page_count = 100000")
    store.add(many, "card")
    assert store.count() == 2003
