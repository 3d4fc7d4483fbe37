"""The store: what goes in comes out, whoever is killed meanwhile."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from attack.changes import damage

from tilecast.data_collection.dataset.dataset import COLUMNS, read_dataset, write_dataset
from tilecast.data_collection.dataset.measurement import Measurement
from tilecast.data_collection.jobs import store as storing
from tilecast.data_collection.jobs.store import MeasurementStore, OtherVersions
from tilecast.data_collection.problems.suites import suite
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
        with pytest.raises(OtherVersions, match=wanted):
            MeasurementStore(path)
    again = MeasurementStore(path)
    assert again.count() == 6
    again.close()


def test_what_other_kernels_wrote_is_exported_with_their_versions(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = {**storing.store_versions(), "space": "2", "protocol": "1", "quack_sm90 sources": "x"}
    with monkeypatch.context() as patch:
        patch.setattr(storing, "store_versions", lambda: older)
        with closing(MeasurementStore(path)) as store:
            store.begin_run({"command": "collect"})
            store.add(ROWS, "card")
            whole = store.export()
    with pytest.raises(OtherVersions, match="`tilecast collect --export` exports this one"):
        MeasurementStore(path)
    with closing(MeasurementStore(path, any_versions=True)) as store:
        found = store.export()
    assert found.digest == whole.digest
    assert found.provenance == whole.provenance
    assert (found.provenance["space_version"], found.provenance["protocol_version"]) == (2, 1)


def test_a_store_without_seals_is_read_and_sealed_once_it_is_written_to(path: Path) -> None:
    with closing(MeasurementStore(path)) as store:
        store.begin_run({"command": "collect"})
        store.add(ROWS[:3], "card")
    _change(path, "DELETE FROM facts WHERE name LIKE 'seal of %'")
    _change(path, "UPDATE measurements SET microseconds = 15.25 WHERE microseconds = 15.5")
    with closing(MeasurementStore(path)) as store:
        assert 15.25 in store.export().rows["microseconds"].tolist()
        store.add(ROWS[3:], "card")
        assert len(store.export().rows) == len(ROWS)
    _change(path, "UPDATE measurements SET microseconds = 15.5 WHERE microseconds = 15.25")
    with (
        closing(MeasurementStore(path)) as store,
        pytest.raises(TilecastError, match="rows of mea"),
    ):
        store.export()


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("measurements", "UPDATE measurements SET microseconds = 18.5 WHERE microseconds = 18.25"),
        ("measurements", "UPDATE measurements SET m = 17 WHERE m = 16"),
        ("measurements", "DELETE FROM measurements WHERE config = 'torch.mm'"),
        ("kernels", "UPDATE kernels SET failure = 'hung'"),
        ("runs", "UPDATE runs SET provenance = '{}'"),
    ],
)
def test_values_that_are_allowed_and_were_never_written_are_noticed(
    path: Path, table: str, change: str
) -> None:
    with closing(MeasurementStore(path)) as store:
        store.begin_run({"command": "collect"})
        store.add_checks({KernelSpec(CONFIG, LINEAR_BF16): None})
        store.add(ROWS, "card")
        store.note("troubles", {"card": "card"})
        store.end_run({"seconds": 1})
        store.export()
    _change(path, change)
    with closing(MeasurementStore(path)) as store:
        why = f"cannot be used .damaged: rows of {table} are not what was written"
        with pytest.raises(TilecastError, match=why):
            store.export()
        with pytest.raises(TilecastError, match=why):
            store.begin_run({"command": "collect"})
        assert len(store.runs()) == 1


def test_checks_of_more_kernels_replace_what_was_known_and_hide_no_damage(path: Path) -> None:
    one, other, more = (KernelSpec(replace(CONFIG, stages=2 + i), LINEAR_BF16) for i in range(3))
    with closing(MeasurementStore(path)) as store:
        store.add_checks({one: "hung", other: None})
        store.add_checks({one: "wrong", more: None})
        assert store.checks() == {
            kernel_key(one): "wrong", kernel_key(other): None, kernel_key(more): None
        }  # fmt: skip
        store.export()
    _change(path, "UPDATE kernels SET failure = NULL WHERE failure = 'wrong'")
    with closing(MeasurementStore(path)) as store:
        store.add_checks({other: "hung"})
        with pytest.raises(TilecastError, match="rows of kernels are not what was written"):
            store.export()


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


# ---- damaged files are refused in one line, or read

CONFIGS = tuple(QuackConfig(64, 128, 64, stages=2 + i) for i in range(6))


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


def _change(path: Path, text: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        database.executescript(text)


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


def test_a_damaged_store_is_refused_in_one_line_or_read(whole: Path, tmp_path: Path) -> None:
    refused = 0
    with closing(MeasurementStore(whole)) as store:
        right = store.export()
    for number, change in enumerate((*FORMS, *VALUES, *range(58))):
        path = tmp_path / f"{number}"
        shutil.copy(whole, path)
        if isinstance(change, int):
            damage(path, change)
        else:
            _change(path, change)
        serious = isinstance(change, str) or path.stat().st_size < whole.stat().st_size
        try:
            with closing(MeasurementStore(path)) as store:
                store.measured("screen")
                for problem in store.measured("race"):
                    store.raced(problem)
                found = store.export()
                write_dataset(found, tmp_path / "export.parquet")
        except TilecastError as error:
            refused += 1
            assert "\n" not in str(error) and "; allowed: " in str(error)
        else:
            assert not serious, change
            assert (found.digest, found.provenance) == (right.digest, right.provenance)
    assert refused >= 60
