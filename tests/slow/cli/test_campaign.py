"""`tilecast campaign` from an empty store to a report, around cards whose times are known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import fake_session
import pytest
from campaign_bench import *  # noqa: F403
from campaign_bench import NEW, PROBLEMS

from tilecast.cli.commands import campaign
from tilecast.cli.commands import collect as collect_command
from tilecast.cli.main import main
from tilecast.data_collection.dataset.dataset import read_dataset
from tilecast.data_collection.gpu import environment
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.run import collect as collecting
from tilecast.data_collection.run.cards import REFERENCE_PROBLEMS, card_times, spread
from tilecast.heuristics.errors import TilecastError
from tilecast.models.learning.training_sets import dataset_hardware
from tilecast.models.runtime.artifact import load

GPU_STATES = environment.gpu_states


def run(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[dict, str]:
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


def test_from_nothing_to_a_model_of_a_gpu_that_nobody_described(
    arguments: list[str],
    tmp_path: Path,
    bench: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It goes on where it was interrupted, and has nothing left to do in the end."""
    real = collect_command.collect
    begun: list[int] = []

    def interrupted(options, report) -> None:
        begun.append(len(options.problems))

        def tell(progress) -> None:
            report(progress)
            if len(begun) == 2 and progress.phase == "measure" and progress.done == 2:
                raise KeyboardInterrupt

        real(options, tell)

    monkeypatch.setattr(collect_command, "collect", interrupted)
    assert main(arguments) == 130
    assert begun == [REFERENCE_PROBLEMS, len(PROBLEMS)]
    told = capsys.readouterr().err
    for step in ("cards (1 of 2)", "collect (2 of 2): measure", "on 2 GPUs"):
        assert step in told
    with closing(MeasurementStore(tmp_path / "run.db")) as store:
        before = store.export()
        assert len(store.measured("race")) == REFERENCE_PROBLEMS + 2
    out = tmp_path / "model"
    assert not out.exists()

    document, _ = run(arguments, capsys)
    counts = {name: document[name] for name in ("problems", "measured", "verified")}
    assert counts == dict.fromkeys(counts, len(PROBLEMS))
    after = read_dataset(out / campaign.DATA)
    kept = after.rows.merge(before.rows.drop_duplicates(), how="inner")
    assert len(kept) == len(before.rows)
    assert len(card_times(after.provenance["runs"])) == 2 * REFERENCE_PROBLEMS
    # The description goes with the measurements and with the model, and so does without --gpu.
    assert dataset_hardware(after) == NEW
    model = load(out)
    assert model.hardware == NEW
    assert model.facts["elsewhere"]["gpus"] == ["H200"]  # type: ignore[index]
    asked = ["predict", "16x512x4096", "--model", str(out)]
    predicted, _ = run(asked, capsys)
    assert predicted["gpu"] == "H100-PCIe"
    assert (out / campaign.REPORT).stat().st_size > 1_000_000
    # Every row names its card, and the second card's times are 10% longer.
    cards = {row["card"]: row for row in document["cards"]}
    assert set(after.rows["device"]) == cards.keys()
    assert cards["card1"]["times"] == pytest.approx(0.1)
    assert cards["card0"]["times"] == pytest.approx(1 / 1.1 - 1)
    for card in cards.values():
        assert card["problems"] == REFERENCE_PROBLEMS
        assert card["ranks"] == pytest.approx(0)
        assert card["differs"]
    # Again, nothing is left to do, and the model is the one that is there.
    lines, written = bench.read_text(), (out / "manifest.json").stat().st_mtime_ns
    again, _ = run(arguments, capsys)
    assert bench.read_text() == lines
    assert (out / "manifest.json").stat().st_mtime_ns == written
    assert again["scores"] == document["scores"]


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign ends in an error once all is measured, instead of training the last model."""

    def trained(*_: object) -> None:
        raise TilecastError("all is measured")

    monkeypatch.setattr(campaign, "_trained", trained)


def test_a_card_that_is_lost_ends_no_campaign(
    arguments: list[str],
    bench: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    untrained: None,
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

    assert main(arguments) == 2
    with closing(MeasurementStore(tmp_path / "run.db")) as store:
        first, second = store.runs()
        assert store.measured("verify") == set(PROBLEMS)
    assert {trouble["card"] for trouble in first["troubles"]} == {"card1"}
    listed = [[gpu["uuid_hash"] for gpu in run["gpus"]] for run in (first, second)]
    assert listed == [names, names[:1]]
    assert "troubles" not in second


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
        assert " kernels failed; allowed: more time" in line


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


def test_what_was_explored_guides_the_rest(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, untrained: None
) -> None:
    monkeypatch.setattr(campaign, "guided_by_shipped", lambda gpu, problems: None)
    monkeypatch.setattr(campaign, "FIRST_PROBLEMS", 6)
    fewer = collecting.candidates
    monkeypatch.setattr(collecting, "candidates", lambda p, gpu: fewer(p, gpu).take(range(160)))
    assert main(arguments) == 2
    with closing(MeasurementStore(tmp_path / "run.db")) as store:
        rows = store.export().rows
    screened = rows[rows["stage"] == "screen"].groupby(["m", "n", "k"]).size().to_dict()
    counts = {problem: screened[problem.row()[:3]] for problem in PROBLEMS}
    # All of the first ones and the library's; of the others those that the first ones speak for.
    first = set(spread(PROBLEMS))
    assert {counts[problem] for problem in first} == {161}
    assert max(counts[problem] for problem in set(PROBLEMS) - first) <= 64 + 16 + 16 + 24 + 1
