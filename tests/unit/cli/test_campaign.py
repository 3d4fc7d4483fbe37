"""`tilecast campaign` from an empty store to a report, around cards whose times are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

# Spawned workers get this process's path, and find the module that their factories come from.
import fake_session
import pytest
import torch

from tilecast.cli.commands import campaign
from tilecast.cli.main import main
from tilecast.data_collection.dataset import dataset
from tilecast.data_collection.dataset.dataset import Dataset, read_dataset, write_dataset
from tilecast.data_collection.gpu import environment, gpu_model
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.run import collect as collecting
from tilecast.data_collection.run.cards import REFERENCE_PROBLEMS, card_times, spread
from tilecast.data_collection.run.collect import CollectOptions
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.build.builder import CompileResult
from tilecast.kernels.spec import KernelSpec
from tilecast.models.apply.campaign import Guide, stages
from tilecast.models.evaluation.baselines import NearestNeighbour, RandomChoice
from tilecast.models.learning.training_sets import dataset_hardware
from tilecast.models.runtime import nearest_gpu
from tilecast.models.runtime.artifact import load

Answer = Callable[..., dict]

NEW = replace(
    hardware("H100"),
    name="H100-PCIe",
    device_names=("NVIDIA H100 PCIe",),
    sm_count=114,
    dram_bytes_per_second=1.7e12,
)
"""What nobody wrote down."""
PROBLEMS = [
    GemmProblem(m, n, k)
    for n, k in ((512, 4096), (1024, 512), (4096, 512), (2048, 1024), (640, 8192))
    for m in (16, 512)
]


GPU_STATES = environment.gpu_states


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_dataset: Dataset) -> Path:
    """A host with two cards of a model that tilecast does not know; gives the log of what ran."""
    log = tmp_path / "log"
    log.touch()

    def described(chosen: Sequence[str]) -> dict[str, object]:
        gpus = [{"name": NEW.device_names[0], "uuid_hash": card} for card in chosen]
        return {"gpus": gpus, "date": "2026-11-22T00:00:00+00:00"}

    def compiled(kernels: Sequence[KernelSpec], **_: object) -> Iterator[CompileResult]:
        return (CompileResult(spec, 0.0) for spec in kernels)

    monkeypatch.setattr(campaign, "visible_gpus", lambda: NEW.device_names * 2)
    monkeypatch.setattr(gpu_model, "find_gpu", lambda device, runs=(): NEW)
    monkeypatch.setattr(environment, "cards", lambda devices, gpu: [f"card{d}" for d in devices])
    monkeypatch.setattr(environment, "check_there", lambda devices: None)
    monkeypatch.setattr(environment, "describe", described)
    monkeypatch.setattr(environment, "gpu_states", lambda cards: [])
    monkeypatch.setattr(collecting, "card_session", partial(fake_session.card_session, log))
    monkeypatch.setattr(collecting, "compile_all", compiled)
    known = tmp_path / "known.parquet"
    write_dataset(few_dataset, known)
    # Of the shipped data sets there are but this one, which is learned from soon.
    shipped = {"H200": known}
    monkeypatch.setattr(dataset, "shipped_data", lambda gpu: shipped.get(gpu.name))
    # What evaluation makes of all the others is tested where it lives, and takes a minute.
    makers = {one.name: one for one in (RandomChoice, NearestNeighbour)}
    monkeypatch.setattr(campaign, "all_makers", lambda gpu: makers)
    return log


@pytest.fixture
def arguments(tmp_path: Path, bench: Path) -> list[str]:
    lines = [f"{problem.m},{problem.n},{problem.k}" for problem in PROBLEMS]
    (tmp_path / "own.csv").write_text("\n".join(["m,n,k", *lines]))
    return [
        *("campaign", "--store", str(tmp_path / "run.db"), "--out", str(tmp_path / "model")),
        *("--problems", str(tmp_path / "own.csv"), "--cache", str(tmp_path / "objects")),
        *("--workers", "2"),
    ]


def _answer(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[dict, str]:
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


def test_from_nothing_to_a_model_of_a_gpu_that_nobody_described(
    arguments: list[str], tmp_path: Path, bench: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, told = _answer(arguments, capsys)
    counts = {name: document[name] for name in ("problems", "measured", "verified")}
    assert counts == dict.fromkeys(counts, len(PROBLEMS))
    for step in ("cards (1 of 2)", "collect (2 of 2): measure", "on 2 GPUs", "train", "report"):
        assert step in told
    # The description goes with the measurements and with the model, and so does without --gpu.
    out = tmp_path / "model"
    assert dataset_hardware(read_dataset(out / campaign.DATA)) == NEW
    model = load(out)
    assert model.hardware == NEW
    assert model.facts["elsewhere"]["gpus"] == ["H200"]  # type: ignore[index]
    asked = ["predict", "--m", "16", "--n", "512", "--k", "4096", "--model", str(out)]
    predicted, _ = _answer(asked, capsys)
    assert predicted["gpu"] == "H100-PCIe"
    assert (out / campaign.REPORT).stat().st_size > 1_000_000
    # Every row names its card, and the second card's times are 10% longer.
    cards = {row["card"]: row for row in document["cards"]}
    assert set(read_dataset(out / campaign.DATA).rows["device"]) == cards.keys()
    assert cards["card1"]["times"] == pytest.approx(0.1)
    assert cards["card0"]["times"] == pytest.approx(1 / 1.1 - 1)
    for card in cards.values():
        assert card["problems"] == REFERENCE_PROBLEMS
        assert card["ranks"] == pytest.approx(0)
        assert card["differs"]
    # Again, nothing is left to do, and the model is the one that is there.
    lines, written = bench.read_text(), (out / "manifest.json").stat().st_mtime_ns
    again, _ = _answer(arguments, capsys)
    assert bench.read_text() == lines
    assert (out / "manifest.json").stat().st_mtime_ns == written
    assert again["scores"] == document["scores"]


@pytest.mark.parametrize(
    ("store", "problems"), [("model", "own.csv"), ("run.db", "model/measurements.parquet")]
)
def test_what_is_read_or_kept_is_not_written_over(
    refused: Callable[..., str], tmp_path: Path, store: str, problems: str
) -> None:
    named = ("--store", str(tmp_path / store), "--problems", str(tmp_path / problems))
    line = refused("campaign", *named, "--out", str(tmp_path / "model"))
    assert line.startswith(f"cannot write {tmp_path}/model")
    assert "this command reads, keeps or writes" in line
    assert list(tmp_path.iterdir()) == []


def test_it_goes_on_where_it_was_interrupted(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = collecting.collect
    begun: list[int] = []

    def interrupted(options, report) -> None:
        begun.append(len(options.problems))

        def tell(progress) -> None:
            report(progress)
            if len(begun) == 2 and progress.phase == "measure" and progress.done == 2:
                raise KeyboardInterrupt

        real(options, tell)

    monkeypatch.setattr(collecting, "collect", interrupted)
    assert main(arguments) == 130
    assert begun == [REFERENCE_PROBLEMS, len(PROBLEMS)]
    with closing(MeasurementStore(tmp_path / "run.db")) as store:
        before = store.export()
        assert len(store.measured("race")) == REFERENCE_PROBLEMS + 2
    assert not (tmp_path / "model").exists()
    capsys.readouterr()
    document, _ = _answer(arguments, capsys)
    assert document["measured"] == len(PROBLEMS)
    after = read_dataset(tmp_path / "model" / campaign.DATA)
    kept = after.rows.merge(before.rows.drop_duplicates(), how="inner")
    assert len(kept) == len(before.rows)
    assert len(card_times(after.provenance["runs"])) == 2 * REFERENCE_PROBLEMS


def test_a_card_that_is_lost_ends_no_campaign(
    arguments: list[str], bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage that loses it goes on without it, and so does the next, in the same process."""
    names, lost = ["card0", "card1"], fake_session.Fault(None, "screen", "lose")

    def listing() -> str:
        listed = names[:1] if bench.with_name("card1.lost").exists() else names
        return "\n".join(f"0, H100, {name}, 580, 1, 1, 1, 1, 1, 40" for name in listed)

    def described(chosen: Sequence[str]) -> dict[str, object]:
        return {"gpus": environment.gpu_states(chosen), "date": "2026-11-22T00:00:00+00:00"}

    monkeypatch.setattr(environment, "_nvidia_smi", listing)
    monkeypatch.setattr(environment, "device_hash", lambda uuid: uuid)
    monkeypatch.setattr(environment, "gpu_states", GPU_STATES)
    monkeypatch.setattr(environment, "describe", described)
    losing = partial(fake_session.card_session, bench, faults={"card1": (lost,)})
    monkeypatch.setattr(collecting, "card_session", losing)

    def trained(*_: object) -> None:
        raise TilecastError("all is measured")

    monkeypatch.setattr(campaign, "_trained", trained)
    assert main(arguments) == 2
    with closing(MeasurementStore(tmp_path / "run.db")) as store:
        first, second = store.runs()
        assert store.measured("verify") == set(PROBLEMS)
    assert {trouble["card"] for trouble in first["troubles"]} == {"card1"}
    listed = [[gpu["uuid_hash"] for gpu in run["gpus"]] for run in (first, first["end"], second)]
    assert listed == [names, names[:1], names[:1]]
    assert "troubles" not in second


def test_a_budget_that_is_too_short_is_told(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(collecting, "collect", lambda options, report: None)
    assert main([*arguments, "--budget", "1"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"none of the {len(PROBLEMS)} problems was measured within --budget 1;" in line


def test_kernels_that_all_fail_are_told(
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    bench: Path,
) -> None:
    monkeypatch.setattr(collecting, "card_session", partial(fake_session.wrong_session, bench))
    for _ in range(2):
        assert main(arguments) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert f"none of the {len(PROBLEMS)} problems was measured, and " in line
        assert " kernels failed; allowed: a GPU that runs them; see `tilecast doctor`" in line


def test_a_budget_that_ends_before_anything_is_measured_is_told(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no model guides, too, and what follows would learn from what was measured."""
    monkeypatch.setattr(nearest_gpu, "nearest_shipped", lambda gpu: None)
    monkeypatch.setattr(collecting, "collect", lambda options, report: None)
    assert main([*arguments, "--budget", "30"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "problems was measured within --budget 30; allowed: more seconds" in line


def test_problems_of_too_few_families_are_refused_before_anything_is_measured(
    arguments: list[str], refused: Callable[..., str], bench: Path, tmp_path: Path
) -> None:
    (tmp_path / "own.csv").write_text("m,n,k\n16,512,4096\n32,512,4096\n16,64,64\n")
    line = refused(*arguments)
    assert (
        line
        == "2 (n, k) families are too few for 5 folds; allowed: 5 or more; collect more problems"
    )
    assert not (tmp_path / "run.db").exists()
    assert bench.read_text() == ""


def test_what_was_measured_is_told_though_it_is_too_little_to_train_on(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = collecting.collect
    monkeypatch.setattr(
        collecting,
        "collect",
        lambda options, report: real(replace(options, problems=tuple(PROBLEMS[:6])), report),
    )
    assert main(arguments) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("Not trained or scored: 3 (n, k) families are too few for 5 folds; ")
    out = tmp_path / "model"
    assert {path.name for path in out.iterdir()} == {campaign.DATA, campaign.REPORT}
    assert set(read_dataset(out / campaign.DATA).problems()) == set(PROBLEMS[:6])
    assert "Not trained or scored: 3 (n, k)" in (out / campaign.REPORT).read_text()
    document, _ = _answer(arguments, capsys)
    assert (document["model"], document["scores"]) == (None, None)
    assert document["files"] == [campaign.DATA, campaign.REPORT]


def test_a_cluster_takes_the_place_of_this_host(
    arguments: list[str],
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    cluster = ("--engine", "ray", "--address", "here:1")
    assert refused(*arguments, *cluster).startswith("--workers is of this host; allowed: ")
    assert not (tmp_path / "run.db").exists()
    asked: list[collecting.CollectOptions] = []
    monkeypatch.setattr(collecting, "collect", lambda options, report: asked.append(options))
    assert arguments[-2:] == ["--workers", "2"]
    # A host without a GPU is told which one the cluster has.
    monkeypatch.setattr(campaign, "visible_gpus", list)
    monkeypatch.delattr(gpu_model, "find_gpu")
    assert main([*arguments[:-2], *cluster, "--gpu", "H200"]) == 2
    assert [(one.address, one.gpu.name) for one in asked] == [("here:1", "H200")] * 2
    assert all(len(one.compared) == REFERENCE_PROBLEMS for one in asked)


def test_a_cluster_without_a_gpu_is_refused_whatever_this_host_has(
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main([*arguments[:-2], "--engine", "ray", "--address", "local"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "the Ray cluster has no GPU; allowed: one with NVIDIA GPUs; add a node" in last
    assert not (tmp_path / "run.db").exists()


def test_the_gpu_of_this_machine_may_be_named_and_no_other_that_nobody_describes(
    arguments: list[str],
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What its driver states finds it; what is measured of it describes it."""
    monkeypatch.setattr(gpu_model, "names_here", lambda: [NEW.device_names[0]])
    stated = replace(NEW, dram_bytes_per_second=2e12)
    monkeypatch.setattr(gpu_model, "gpu_called", lambda name, device: stated)
    asked: list[CollectOptions] = []
    monkeypatch.setattr(collecting, "collect", lambda options, tell: asked.append(options))
    for name in ("H100-PCIe", "NVIDIA H100 PCIe"):
        assert main([*arguments, "--gpu", name]) == 2
    capsys.readouterr()
    assert {options.gpu for options in asked} == {NEW}
    line = refused(*arguments, "--gpu", "H20")
    assert "gpu 'H20' is not known; allowed: H200, H100, H100-PCIe, or on the machine" in line
    assert "campaign" not in line
    monkeypatch.setattr(gpu_model, "find_gpu", lambda device, runs=(): hardware("H100"))
    line = refused(*arguments, "--gpu", "H100-PCIe", "--devices", "1")
    assert line.startswith("device 1 is an H100; allowed: an H100-PCIe, which --gpu names")


def test_a_gpu_that_no_kernel_is_for_is_refused_before_anything_is_written(
    arguments: list[str],
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    other: Hardware = replace(NEW, name="A100", arch="sm_80")
    monkeypatch.setattr(gpu_model, "find_gpu", lambda device, runs=(): other)
    assert refused(*arguments).startswith("no kernel multiplies bf16:rcr on A100; allowed: ")
    assert not (tmp_path / "run.db").exists()


def test_without_a_model_the_first_problems_are_measured_whole() -> None:
    many = [GemmProblem(m, 8 * n, 512) for m in (16, 64) for n in range(1, 41)]
    cards, explore, collect = stages(many, guided=False)
    assert [stage.guide for stage in (cards, explore, collect)] == [
        *(Guide.NOBODY, Guide.NOBODY, Guide.MEASURED),
    ]
    assert cards.problems == spread(many)
    assert set(cards.problems) <= set(explore.problems) < set(collect.problems) == set(many)
    assert 24 <= len(explore.problems) <= 30
    assert [stage.guide for stage in stages(many, guided=True)] == [Guide.SHIPPED] * 2


def test_what_was_explored_guides_the_rest(
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tilecast.models.apply import campaign as plan
    from tilecast.models.runtime import nearest_gpu

    monkeypatch.setattr(nearest_gpu, "nearest_shipped", lambda gpu: None)
    monkeypatch.setattr(plan, "FIRST_PROBLEMS", 6)
    fewer = collecting.candidates
    monkeypatch.setattr(collecting, "candidates", lambda p, gpu: fewer(p, gpu).take(range(160)))
    _, told = _answer(arguments, capsys)
    assert "explore (2 of 3)" in told
    rows = read_dataset(tmp_path / "model" / campaign.DATA).rows
    screened = rows[rows["stage"] == "screen"].groupby(["m", "n", "k"]).size().to_dict()
    counts = {problem: screened[problem.row()[:3]] for problem in PROBLEMS}
    # All of the first ones and the library's; of the others those that the first ones speak for.
    assert {counts[problem] for problem in spread(PROBLEMS)} == {161}
    assert {counts[problem] <= 64 + 16 + 16 + 24 + 1 for problem in set(PROBLEMS)
            - set(spread(PROBLEMS))} == {True}  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("named", [(), ("--gpu", "H200")])
def test_without_a_gpu_that_is_told_first(
    named: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store, out = str(tmp_path / "run.db"), str(tmp_path / "model")
    assert main(["campaign", "--store", store, "--out", out, *named]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tilecast: error: CUDA device 0 is not there; allowed: the 0 that ")
