"""From an empty store to a model that max-autotune uses, on GPUs that nobody has measured.

The invented one has a folder of kernels and a row for its hardware, and nothing else knows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaign_bench import *  # noqa: F403
from campaign_bench import PROBLEMS
from hook_graph import choices_of, linear, source_of
from toy_family.family import TOY, ToyConfig

from tilecast.cli.commands import campaign
from tilecast.cli.main import main
from tilecast.data_collection.dataset.dataset import read_dataset
from tilecast.data_collection.run import collect as collecting
from tilecast.heuristics import hardware as described_gpus
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.inductor_hook import install
from tilecast.inductor_hook.select import selection
from tilecast.kernels.candidates import candidates, families_on
from tilecast.kernels.families import FAMILIES
from tilecast.models.runtime.artifact import load

INVENTED = replace(hardware("H200"), name="X1", device_names=("X1",), arch="sm_77a", sm_count=60)
"""The row."""
TOYS = tuple(ToyConfig(rows, columns) for rows in (8, 16, 24, 32) for columns in (16, 24, 32))
FAMILY = replace(TOY, runs_on=(INVENTED.arch,), points=lambda operands, gpu: TOY.geometry(TOYS))
"""The folder's."""
MOST_CANDIDATES = 60


@pytest.fixture(params=[hardware("B200"), INVENTED], ids=lambda gpu: gpu.name)
def new_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hardware]:
    gpu = request.param
    if gpu is INVENTED:
        monkeypatch.setitem(FAMILIES, FAMILY.name, FAMILY)
        monkeypatch.setattr(described_gpus, "GPUS", (*described_gpus.GPUS, gpu))
    yield gpu


def test_it_is_measured_trained_for_and_offered(
    new_gpu: Hardware,
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    graph: Any,
) -> None:
    fewer = collecting.candidates
    monkeypatch.setattr(collecting, "candidates", lambda p, gpu: fewer(p, gpu)[:MOST_CANDIDATES])
    monkeypatch.setattr(campaign, "FIRST_PROBLEMS", 6)
    monkeypatch.setattr(selection, "hardware_of", lambda device, settings: new_gpu)
    # Before: what the analytic time puts first.
    install(k=5)
    untried = choices_of(linear(16, 512, 4096), "mm")
    assert len(untried) == 5
    assert all("untried=True" in source_of(choice) for choice in untried)

    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert "explore (2 of 3)" in captured.err
    assert document["measured"] == document["verified"] == len(PROBLEMS)
    out = tmp_path / "model"
    (family,) = families_on(new_gpu)
    rows = read_dataset(out / campaign.DATA).rows
    names = {name for name in rows["config"] if family.parse(name)}
    assert len(names) > 10 and not {name for name in names if "coop" in name}
    assert load(out).hardware == new_gpu

    install(model=str(out), k=2)
    found = choices_of(linear(16, 512, 4096), "mm")
    assert len(found) == 2
    assert not any("untried" in source_of(choice) for choice in found)
    among = {config.name for config in candidates(PROBLEMS[0], new_gpu)}
    assert {choice.name.removeprefix("tilecast_") for choice in found} <= among
    assert np.isfinite([one.microseconds for one in selection.shortlist.__wrapped__(
        selection.Settings(model=str(out), k=2), PROBLEMS[0], new_gpu)]).all()  # fmt: skip
