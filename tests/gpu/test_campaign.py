"""A whole campaign on the GPUs of this host, as on a GPU of which nobody has measured anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tilecast.cli.commands.campaign import DATA, REPORT
from tilecast.cli.main import main
from tilecast.cli.options import load_measurements
from tilecast.data_collection.dataset.dataset import read_dataset
from tilecast.data_collection.run.cards import spread
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.runtime.artifact import load

PROBLEMS = [
    GemmProblem(m, n, k)
    for n, k in ((512, 4096), (1024, 512), (4096, 512), (2048, 1024), (640, 8192))
    for m in (16, 512)
]


@pytest.mark.alone
@pytest.mark.timeout(600)
def test_from_nothing_to_a_model_and_nothing_is_done_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Learning from the shipped data too is tested without a GPU, and would take minutes of it here.
    monkeypatch.setattr(load_measurements, "shipped_data", lambda gpu, groups=False: None)
    own, out = tmp_path / "own.csv", tmp_path / "model"
    own.write_text("\n".join(["m,n,k", *(f"{p.m},{p.n},{p.k}" for p in PROBLEMS)]))
    command = ["campaign", "--problems", str(own), "--store", str(tmp_path / "run.db")]
    command += ["--out", str(out), "--json"]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["measured"] == document["verified"] == len(PROBLEMS)
    assert document["troubles"] == []
    assert torch.cuda.get_device_name(0) in load(out).hardware.device_names
    assert (out / REPORT).exists()
    cards = {card["card"]: card for card in document["cards"]}
    assert len(cards) == torch.cuda.device_count()
    if len(cards) > 1:
        assert {card["problems"] for card in cards.values()} == {len(spread(PROBLEMS))}
    data = read_dataset(out / DATA)
    assert set(data.rows["device"]) <= cards.keys()

    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["measurements"] == document["measurements"]
    assert read_dataset(out / DATA).digest == data.digest
