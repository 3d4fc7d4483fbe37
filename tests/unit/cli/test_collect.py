"""The collect command around a collection that is faked; the real one is tested where it lives."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tilecast.cli.commands import collect as collect_command
from tilecast.cli.main import main
from tilecast.data_collection.dataset.dataset import read_dataset
from tilecast.data_collection.dataset.measurement import Measurement
from tilecast.data_collection.gpu import environment
from tilecast.data_collection.jobs import store as storing
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.problems.suites import suite
from tilecast.data_collection.run import collect as collecting
from tilecast.data_collection.run.collect import CollectOptions
from tilecast.data_collection.run.scheduler import Progress
from tilecast.data_collection.timing import card_health
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.models.runtime.learned import load_heuristic


def _measure(options: CollectOptions, *measured: tuple[GemmProblem, str]) -> None:
    """Write what a collection finds: of each problem and stage one time."""
    with closing(MeasurementStore(options.store)) as store:
        store.begin_run({"gpu": options.gpu.name})
        config = QuackConfig(64, 64, 64)
        rows = [Measurement(one, config, "burst", stage, 12.5, 0.0, 3) for one, stage in measured]
        store.add(rows, "card")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[CollectOptions]:
    """Stands in for the collection; returns the options that it was called with."""
    calls: list[CollectOptions] = []

    def fake(options: CollectOptions, report: Callable[[Progress], None]) -> None:
        calls.append(options)
        report(Progress("check", 1, 1, 0, 0.0, 0.0, 2))
        report(Progress("measure", 1, 1, 1, 20.0, 0.0, 2))
        _measure(options, (options.problems[0], "screen"))

    monkeypatch.setattr("tilecast.cli.commands.collect.collect", fake)
    return calls


def test_collects_and_exports(
    asked: list[CollectOptions], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = tmp_path / "data.parquet"
    arguments = ["--suite", "deepgemm", "--suite", "square", "--store", str(tmp_path / "store")]
    arguments += ["--export", str(export), "--devices", "0,2", "--budget", "60", "--workers", "3"]
    assert main(["collect", *arguments, "--cache", str(tmp_path / "objects")]) == 0
    captured = capsys.readouterr()
    assert "measurements: 1" in captured.out
    assert "measure 1/1 on 2 GPUs, 1 measurements, 0 a second, 20 s, 0 s left" in captured.err
    (options,) = asked
    assert set(options.problems) == {*suite("deepgemm"), *suite("square")}
    assert (options.devices, options.seconds, options.workers) == ((0, 2), 60, 3)
    assert options.objects.root == tmp_path / "objects"
    assert read_dataset(export).rows["microseconds"].tolist() == [12.5]


def test_a_store_of_other_kernels_is_exported_and_not_added_to(
    asked: list[CollectOptions],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., str],
) -> None:
    store, export = tmp_path / "store", tmp_path / "data.parquet"
    older = {**storing.store_versions(), "quack_sm90 sources": "before"}
    with monkeypatch.context() as patch:
        patch.setattr(storing, "store_versions", lambda: older)
        with closing(MeasurementStore(store)) as filled:
            filled.begin_run({"command": "collect"})
            row = Measurement(suite("square")[0], None, "burst", "race", 12.5, 0.0, 3)
            filled.add([row], "card")
            whole = filled.export()
    arguments = ["collect", "--suite", "square", "--store", str(store)]
    assert "was made with quack_sm90 sources 'before'" in refused(*arguments)
    assert main([*arguments, "--export", str(export)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "nothing was measured, and the store was exported as it is" in said
    assert read_dataset(export).digest == whole.digest
    assert asked == []


@pytest.mark.parametrize("kind", ["itself", "link", "absent"])
def test_the_store_is_not_exported_over_itself(
    asked: list[CollectOptions], refused: Callable[..., str], tmp_path: Path, kind: str
) -> None:
    store, export = tmp_path / "run.db", tmp_path / "folder" / ".." / "run.db"
    if kind != "absent":
        MeasurementStore(store).close()
    if kind == "link":
        export = tmp_path / "link"
        export.symlink_to(store)
    line = refused("collect", "--store", str(store), "--export", str(export))
    assert line.startswith(f"cannot write {export}: this command reads, keeps or writes {store}")
    assert not asked
    assert store.exists() == (kind != "absent")


def test_what_is_counted_is_what_is_asked_for_and_was_raced(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[..., dict], tmp_path: Path
) -> None:
    own, store = tmp_path / "own.csv", tmp_path / "store"
    own.write_text("m,n,k\n16,64,64\n16,64,128\n16,64,256\n")

    def fake(options: CollectOptions, report: Callable[[Progress], None]) -> None:
        stages = ("screen", "race", "verify")
        others = zip((*options.problems, GemmProblem(8, 512, 512)), (1, 2, 3, 3), strict=True)
        _measure(options, *((one, stage) for one, done in others for stage in stages[:done]))

    monkeypatch.setattr("tilecast.cli.commands.collect.collect", fake)
    document = answer("collect", "--problems", str(own), "--store", str(store))
    assert (document["problems"], document["measured"], document["verified"]) == (3, 2, 1)
    assert document["measurements"] == 9


@pytest.mark.parametrize(("cores", "expected"), [(8, 6), (2, 1), (1, 1)])
def test_a_core_is_left_to_each_device_that_measures(
    asked: list[CollectOptions],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    expected: int,
) -> None:
    monkeypatch.setattr("joblib.externals.loky.cpu_count", lambda: cores)
    assert main(["collect", "--store", str(tmp_path / "store"), "--devices", "0,1"]) == 0
    assert [options.workers for options in asked] == [expected]


@pytest.mark.parametrize(
    ("named", "address"),
    [
        ((), None),
        (("--engine", "ray"), "auto"),
        (("--engine", "ray", "--address", "here:1"), "here:1"),
    ],
)
def test_what_is_asked_for_where_nothing_else_is_named(
    asked: list[CollectOptions], tmp_path: Path, named: tuple[str, ...], address: str | None
) -> None:
    assert main(["collect", "--store", str(tmp_path / "store"), *named]) == 0
    (options,) = asked
    assert options.problems == suite("training")
    assert (options.gpu.name, options.devices) == ("H200", (0,))
    assert (options.seconds, options.address) == (float("inf"), address)


def test_cluster_without_ray(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tilecast.data_collection.engines.ray_cluster", None)
    message = refused("collect", "--store", str(tmp_path / "store"), "--engine", "ray")
    assert "Ray is not installed; allowed: " in message
    assert "run `pip install 'ray>=2.60,<3'`" in message
    assert not (tmp_path / "store").exists()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """PyTorch and nvidia-smi as on a host with one GPU, and nothing that is measured on it."""
    found = SimpleNamespace(name="NVIDIA H200", uuid="test")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    monkeypatch.setattr(environment, "gpu_states", lambda cards: [{"uuid_hash": c} for c in cards])
    monkeypatch.setattr(collecting, "in_order", lambda options: [])
    monkeypatch.setattr(card_health, "others_on", lambda uuid: [])
    return found


def test_another_gpu_is_refused_before_anything_is_written(
    gpu: SimpleNamespace, refused: Callable[..., str], tmp_path: Path
) -> None:
    gpu.name = "NVIDIA H100 80GB HBM3"
    line = refused("collect", "--store", str(tmp_path / "store"), "--cache", str(tmp_path / "c"))
    assert line.startswith("CUDA device 0 is an 'NVIDIA H100 80GB HBM3', no H200; allowed: ")
    assert list(tmp_path.iterdir()) == []


def test_store_of_another_gpu_is_refused(
    gpu: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["collect", "--store", str(tmp_path / "store"), "--cache", str(tmp_path), "--gpu"]
    for _ in range(2):
        assert main([*arguments, "H200"]) == 0
    with closing(MeasurementStore(tmp_path / "store")) as store:
        before = store.runs()
    assert len(before) == 2
    gpu.name = "NVIDIA H100 80GB HBM3"
    assert main([*arguments, "H100"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "is of H200; allowed: one of H100, or a new one" in told
    with closing(MeasurementStore(tmp_path / "store")) as store:
        assert store.runs() == before


def test_a_gpu_that_others_use_is_told_and_noted(
    gpu: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(card_health, "others_on", lambda uuid: [41, 42])
    store = tmp_path / "store"
    arguments = ["collect", "--suite", "square", "--store", str(store), "--gpu", "H200"]
    assert main([*arguments, "--cache", str(tmp_path / "c")]) == 0
    reason = "2 other processes use it as the run begins (41, 42)"
    assert f"is shared: {reason}" in " ".join(capsys.readouterr().err.split())
    with closing(MeasurementStore(store)) as found:
        (run,) = found.runs()
    assert [trouble["reason"] for trouble in run["troubles"]] == [reason]


def test_neither_store_nor_export_names_a_folder(
    gpu: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "alice"
    folder.mkdir()
    arguments = ["collect", "--suite", "square", "--store", str(folder / "store"),
                 f"--export={folder / 'data.parquet'}", "--cache", str(folder)]  # fmt: skip
    monkeypatch.setattr(sys, "argv", [f"{folder}/bin/tilecast", *arguments])
    assert main(arguments) == 0
    for name in ("store", "data.parquet"):
        assert b"alice" not in (folder / name).read_bytes()
    with closing(MeasurementStore(folder / "store")) as store:
        (run,) = store.export().provenance["runs"]
    assert run["command"] == (
        "tilecast collect --suite square --store store --export=data.parquet --cache ."
    )
    assert run["gpus"] == [{"uuid_hash": environment.device_hash("test")}]


def test_problems_of_ones_own_are_collected_alone_or_beside_suites(
    asked: list[CollectOptions], tmp_path: Path
) -> None:
    own = tmp_path / "own.csv"
    own.write_text("m,n,k\n24,4096,4096\n24,4096,4096\n")
    arguments = ["collect", "--problems", str(own), "--store"]
    assert main([*arguments, str(tmp_path / "one")]) == 0
    assert main([*arguments, str(tmp_path / "two"), "--suite", "square"]) == 0
    alone, beside = asked
    assert alone.problems == (GemmProblem(24, 4096, 4096),)
    assert beside.problems == (*suite("square"), GemmProblem(24, 4096, 4096))


def test_a_model_guides_the_collection_when_asked(
    asked: list[CollectOptions], tmp_path: Path
) -> None:
    arguments = ["collect", "--suite", "square", "--candidates"]
    assert main([*arguments, "guided", "--power", "burst", "--store", str(tmp_path / "one")]) == 0
    assert main([*arguments, "exhaustive", "--store", str(tmp_path / "two")]) == 0
    guided, exhaustive = asked
    problem = suite("square")[0]
    every = candidates(problem, hardware("H200"))
    assert guided.choose is not None
    chosen = guided.choose(problem, every)
    assert 0 < len(chosen) <= 64 + 16 + 16 + 24 < len(every)
    first = load_heuristic(hardware("H200"), problem.operands, "burst").rank(
        problem, every, limit=64
    )
    assert set(first) <= set(chosen)
    assert exhaustive.choose is None


@pytest.mark.parametrize(
    ("options", "guided", "minutes"),
    [
        ((), True, "(guided): some 1 minutes"),
        (("--candidates", "exhaustive"), False, "(exhaustive): some 3 minutes"),
    ],
)
def test_a_model_guides_unless_told_otherwise_and_the_time_is_told_first(
    options: tuple[str, ...],
    guided: bool,
    minutes: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Times are of 14 problems: 2.1 s and 10 s each."""
    seen: list[CollectOptions] = []

    def collect(wanted: CollectOptions, report: Callable[[Progress], None]) -> None:
        seen.append(wanted)
        report(Progress("compile", 0, 1, 0, 0.0, 0.0, 1))

    monkeypatch.setattr(collect_command, "collect", collect)
    rows = "\n".join(f"{m},512,4096" for m in range(1, 15))
    (tmp_path / "own.csv").write_text(f"m,n,k\n{rows}\n")
    asked = ["collect", "--problems", str(tmp_path / "own.csv"), "--gpu", "H200"]
    assert main([*asked, "--store", str(tmp_path / "run.db"), *options]) == 0
    assert (seen[0].choose is not None) == guided
    assert f"14 of 14 problems are to be measured {minutes} of one GPU" in capsys.readouterr().err


def test_operands_that_no_model_ranks_are_all_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[CollectOptions] = []
    monkeypatch.setattr(collect_command, "collect", lambda wanted, report: seen.append(wanted))
    (tmp_path / "own.csv").write_text("m,n,k,operands\n16,512,4096,fp16:rcr>fp32\n")
    asked = ["collect", "--problems", str(tmp_path / "own.csv"), "--gpu", "H200"]
    assert main([*asked, "--store", str(tmp_path / "run.db")]) == 0
    assert seen[0].choose is None
