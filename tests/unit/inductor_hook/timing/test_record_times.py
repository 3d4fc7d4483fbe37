"""What the hook writes down of Inductor's timings, and who else may write there."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from hook_graph import (
    batched,
    biased_linear,
    choices_of,
    linear,
    names_of,
    settled,
    symbolic,
    warnings_told,
)
from torch._inductor.kernel import bmm, mm

from tilecast.data_collection.dataset.autotuned import HEADER, Autotuned, read_autotuned
from tilecast.data_collection.gpu.environment import versions
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import install, uninstall
from tilecast.inductor_hook.offer.template import FAILED_MS
from tilecast.kernels.objects.keys import toolchain

H200 = hardware("H200")
PROBLEM = GemmProblem(512, 4096, 4096)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "own.jsonl"


def _found(path: Path) -> tuple[Autotuned, ...]:
    usable = read_autotuned([path], H200)
    assert usable.left_out == {}
    return usable.found


def test_times_of_our_choices_and_the_librarys_are_written_and_read(
    graph: Any, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install(k=3, learn=path)
    aten, *ours = choices = choices_of(linear(), "mm", [mm.aten_mm])
    settled(choices, 0.05, 0.0402, 0.04, 0.06)
    settled(choices_of(batched(64, 128, 4096, 4), "bmm", [bmm.aten_bmm])[1:], 1.5, 1.25, 2.0)
    first, second = _found(path)
    assert aten.name == "mm"
    assert first.problem == PROBLEM
    times = {f"tilecast_{config}": time for config, time in first.milliseconds.items()}
    # As measured, though the choice between equals takes some from Inductor.
    assert times == dict(zip(names_of(ours), (0.0402, 0.04, 0.06), strict=True))
    assert first.library == 0.05
    assert (first.gpu, first.toolchain) == ("H200", toolchain())
    assert first.versions == versions()
    assert first.versions["torch"] == torch.__version__
    age = datetime.now(UTC) - datetime.fromisoformat(first.date)
    assert timedelta(0) <= age < timedelta(minutes=1)
    assert second.problem == GemmProblem(64, 128, 4096, 4)
    assert (list(second.milliseconds.values()), second.library) == ([1.5, 1.25, 2.0], None)
    assert warnings_told(caplog) == []


def test_nothing_is_written_unless_it_is_asked_for(graph: Any, tmp_path: Path) -> None:
    install(k=2)
    settled(choices_of(linear(), "mm"), 1, 2)
    install(k=2, learn=tmp_path / "own.jsonl")
    choices = choices_of(linear(), "mm")
    uninstall()
    settled(choices, 1, 2)
    install(k=1, learn=tmp_path / "own.jsonl")
    assert len(choices_of(linear(), "mm")) == 1  # which Inductor takes without a benchmark
    assert [*tmp_path.iterdir()] == []


def test_times_out_of_inductors_cache_are_written_once(graph: Any, path: Path) -> None:
    install(k=2, learn=path)
    for times in ((1.0, 2.0), (1.0, 2.0), (1.5, 2.0)):
        settled(choices_of(linear(), "mm"), *times)
    assert path.read_text().count("\n") == 3
    assert [list(one.milliseconds.values()) for one in _found(path)] == [[1.0, 2.0], [1.5, 2.0]]


@pytest.mark.parametrize("failed", [FAILED_MS, float("inf")])
def test_what_did_not_run_has_no_time(graph: Any, path: Path, failed: float) -> None:
    install(k=2, learn=path)
    choices = choices_of(linear(), "mm", [mm.aten_mm])
    settled(choices, failed, failed, failed)
    assert not path.exists()
    settled(choices, failed, failed, 0.25)
    (found,) = _found(path)
    assert [*found.milliseconds.values()] == [0.25]
    assert found.library is None


def test_a_time_that_is_not_one_kernels_is_left_out(graph: Any, path: Path) -> None:
    """A call with a symbolic m picks its config."""
    install(k=2, learn=path)
    dynamic = choices_of(linear(symbolic()), "mm")
    settled(dynamic, *range(1, len(dynamic) + 1))
    assert dynamic and not path.exists()
    settled(choices_of(biased_linear(), "addmm"), 1, 2)
    (found,) = _found(path)
    assert found.problem == GemmProblem(512, 4096, 4096, 1, GemmOperands.parse("bf16:rcr:bias"))


def test_what_was_benchmarked_may_be_private_but_stays_here(graph: Any, path: Path) -> None:
    """No name of a host, user, folder or card is among what is kept."""
    install(k=2, learn=path)
    settled(choices_of(linear(), "mm"), 1, 2)
    header, line = path.read_text().splitlines(keepends=True)
    assert header == HEADER
    names = ["problem", "milliseconds", "library", "gpu", "toolchain", "versions", "date"]
    assert [*json.loads(line)] == names
    assert str(path.parent) not in line and "/" not in line
