"""What `tilecast campaign` asks to be measured and refuses; tests/slow/cli runs whole campaigns."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from campaign_bench import *  # noqa: F403
from campaign_bench import NEW, PROBLEMS
from own_measurements import OWN, own_measurements

from tilecast.cli.commands import campaign
from tilecast.cli.commands import collect as collect_command
from tilecast.cli.main import main
from tilecast.data_collection.gpu import gpu_model
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.run import collect as collecting
from tilecast.data_collection.run.cards import REFERENCE_PROBLEMS, spread
from tilecast.data_collection.run.collect import CollectOptions
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.problem import GemmProblem


@pytest.mark.parametrize("guided", [True, False])
def test_a_budget_that_is_too_short_is_told(
    arguments: list[str], guided: bool, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Where no model guides, too, and the last stage would learn from what was measured."""
    if not guided:
        monkeypatch.setattr(campaign, "guided_by_shipped", lambda gpu, problems: None)
    monkeypatch.setattr(collect_command, "collect", lambda options, report: None)
    assert main([*arguments, "--budget", "1"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"none of the {len(PROBLEMS)} problems was measured, and 0 kernels failed; " in line


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


def test_a_cluster_takes_the_place_of_this_host(
    arguments: list[str],
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    cluster = ("--engine", "ray", "--address", "here:1")
    assert refused(*arguments, *cluster).startswith("--workers is of this host; allowed: ")
    assert not (tmp_path / "run.db").exists()
    asked: list[CollectOptions] = []
    monkeypatch.setattr(collect_command, "collect", lambda options, report: asked.append(options))
    assert arguments[-2:] == ["--workers", "2"]
    # This host has no GPU; the cluster says which one it has.
    monkeypatch.setattr(campaign, "visible_gpu_names", list)
    monkeypatch.setattr(campaign, "target_gpu", lambda device, address, runs: hardware("H200"))
    assert main([*arguments[:-2], *cluster]) == 2
    assert [(one.address, one.gpu.name) for one in asked] == [("here:1", "H200")] * 2
    assert all(len(one.compared) == REFERENCE_PROBLEMS for one in asked)


def test_a_gpu_that_no_kernel_is_for_is_refused_before_anything_is_written(
    arguments: list[str],
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    other: Hardware = replace(NEW, name="A100", arch="sm_80")
    monkeypatch.setattr(gpu_model, "hardware_of", lambda *_, **__: other)
    assert refused(*arguments).startswith("no kernel multiplies bf16:rcr on A100; allowed: ")
    assert not (tmp_path / "run.db").exists()


def test_without_a_model_the_first_problems_are_measured_whole() -> None:
    many = [GemmProblem(m, 8 * n, 512) for m in (16, 64) for n in range(1, 41)]
    cards, explore, collect = campaign.stages(many, guided=False)
    assert [stage.learns for stage in (cards, explore, collect)] == [False, False, True]
    assert cards.problems == spread(many)
    assert set(cards.problems) <= set(explore.problems) < set(collect.problems) == set(many)
    assert 24 <= len(explore.problems) <= 30
    assert [stage.learns for stage in campaign.stages(many, guided=True)] == [False] * 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_that_is_told_first(refused: Callable[..., str], tmp_path: Path) -> None:
    line = refused("campaign", "--store", str(tmp_path / "run.db"), "--out", str(tmp_path / "out"))
    assert line.startswith("CUDA device 0 is not there; allowed: the 0 that ")


@pytest.mark.parametrize("drawn", [True, False])
def test_what_was_measured_is_reported_though_it_is_too_little_to_train_on(
    arguments: list[str], drawn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Without plotly there is no page, which a note says."""
    if not drawn:
        monkeypatch.setattr(campaign, "can_draw", lambda: False)

    def measured(options: CollectOptions, report: object) -> None:
        with closing(MeasurementStore(options.store)) as store:
            store.begin_run({"gpu": NEW.name, "hardware": NEW.facts()})
            if not store.count():
                store.add(own_measurements(), "card0")

    monkeypatch.setattr(collect_command, "collect", measured)
    lines = [f"{p.m},{p.n},{p.k}" for p in (*OWN, *PROBLEMS)]
    (tmp_path / "own.csv").write_text("\n".join(["m,n,k", *lines]))
    assert main([*arguments, "--json"]) == 0
    told = capsys.readouterr()
    document = json.loads(told.out)
    assert ("plotly is not installed" in told.err) != drawn
    assert (document["measured"], document["problems"]) == (len(OWN), len(OWN) + len(PROBLEMS))
    assert (document["model"], document["scores"]) == (None, None)
    assert document["no_model"].startswith("2 (n, k)")
    files, out = [campaign.DATA, *([campaign.REPORT] if drawn else [])], tmp_path / "model"
    assert document["files"] == files
    assert {path.name for path in out.iterdir()} == {*files}
    if drawn:
        assert "Not trained or scored: 2 (n, k)" in (out / campaign.REPORT).read_text()


@pytest.mark.parametrize("guided", [True, False])
def test_a_dry_run_says_what_it_takes_and_keeps_nothing(
    arguments: list[str],
    bench: Path,
    guided: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Ten problems on two cards: six on both, then the rest; all candidates where none guides."""
    if not guided:
        monkeypatch.setattr(campaign, "guided_by_shipped", lambda gpu, problems: None)
    monkeypatch.setattr(campaign, "shared_by_others", lambda devices: [])
    odd = {"card": "card1", "reason": "its memory is without ECC"}
    monkeypatch.setattr(campaign, "odd", lambda devices: [odd])
    assert main([*arguments, "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    stages = [(row["stage"], row["problems"], row["candidates"]) for row in document["stages"]]
    if guided:
        assert stages == [("cards", 6, "some"), ("collect", 4, "some")]
        assert document["gpu_minutes"] == pytest.approx((2 * 6 + 4) * 2.1 / 60, abs=0.06)
    else:
        assert stages == [("cards", 6, "all"), ("explore", 4, "all"), ("collect", 0, "some")]
        assert document["gpu_minutes"] == pytest.approx((2 * 6 + 4) * 10 / 60, abs=0.06)
    assert document["minutes"] == pytest.approx(document["gpu_minutes"] / 2, abs=0.06)
    assert document["troubles"] == [odd]
    pilot = document["pilot"]
    assert pilot["m"] == 16 and pilot["failed_kernels"] == 0
    # Eight kernels and PyTorch's are screened, and some of them raced and verified.
    assert pilot["measurements"] > campaign.PILOT_KERNELS
    assert not (tmp_path / "run.db").exists() and not (tmp_path / "model").exists()


def test_a_dry_run_counts_the_gpus_of_a_cluster(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of which this host has none."""
    here = collecting.site
    monkeypatch.setattr(campaign, "visible_gpu_names", list)
    monkeypatch.setattr(campaign.resolve, "cluster", lambda options: "auto")
    monkeypatch.setattr(campaign, "target_gpu", lambda device, address, runs: NEW)
    monkeypatch.setattr(
        collecting, "site", lambda wanted: here(replace(wanted, address=None, devices=(0, 1)))
    )
    assert main([*arguments, "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["cards"] == 2
    assert document["minutes"] == pytest.approx(document["gpu_minutes"] / 2, abs=0.06)
