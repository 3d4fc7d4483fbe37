"""Grouped products beside PyTorch's: figures of rows, lists of configs, and what is timed."""

from __future__ import annotations

import grouped_compiled
import grouped_speed
import pytest
import torch

from tilecast.data_collection.timing.tensors import random_inputs
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates

A, B = "64x128x64_c1x1x1_s9_coop_o1_rm8", "64x256x64_c1x1x1_s5_coop_o1_rm8"


def _row(problem: str, burst: dict[str, float]) -> dict:
    burst = {grouped_speed.LIBRARY: 12.0, **burst}
    return {
        "problem": problem,
        "operands": "bf16:rcr:row-groups",
        "screened": burst,
        "microseconds": {"burst": burst},
        "even": burst,
    }


ROWS = [
    _row("8x64x2048x4096 rcr", {A: 10.0, B: 12.0}),
    _row("8x4096x2048x4096 rcr", {B: 8.0}),
]


def test_figures_are_by_rows_and_regime() -> None:
    found = grouped_speed.figures(ROWS)
    assert set(found) == {"all", "up to 128 rows", "more", "fixed lists"}
    few = found["up to 128 rows"]
    assert few["burst"]["geomean"] == pytest.approx(1.2, rel=1e-3)
    assert few["regret"]["1"] in (0.0, 0.2)  # of the two that were timed, whichever ranks first
    assert few["regret"]["3"] == 0.0
    assert found["all"]["burst, even"]["problems"] == 2


def test_a_list_begins_with_what_loses_least_and_adds_what_it_lacks() -> None:
    assert grouped_speed.fixed_lists(ROWS) == {
        "configs": [B, A], "mean regret with each added": [0.1, 0.0]
    }  # fmt: skip


def test_what_is_timed_are_candidates() -> None:
    gpu, problem = hardware("H200"), next(iter(grouped_speed.PROBLEMS.values()))
    ranked = grouped_speed.ranked(problem, gpu)
    assert len(ranked) == grouped_speed.RANKED
    assert set(ranked) <= set(candidates(problem, gpu))


def test_figures_of_compiled_products_are_others_over_ours() -> None:
    times = {"eager": 12.0, grouped_compiled.RIVAL: 11.0, grouped_compiled.OURS: 10.0}
    seconds = {grouped_compiled.RIVAL: 40.0, grouped_compiled.OURS: 2.0}
    row = {"microseconds": {"burst": times}, "compile_seconds": seconds}
    found = grouped_compiled.figures([row])
    assert set(found) == {"burst", "compile time"}
    assert found["burst"]["ATEN,TRITON over TILECAST k=5"]["geomean"] == pytest.approx(1.1, 1e-3)
    assert found["compile time"]["geomean"] == pytest.approx(0.05, 1e-3)


def test_compiled_products_are_what_pytorch_multiplies() -> None:
    problem = GemmProblem(48, 64, 128, 4, GemmOperands.parse("bf16:rrr:row-groups"))
    a, b, ends = random_inputs(problem, "cpu")
    found = grouped_compiled.experts(a, b.mT, ends)
    assert torch.equal(found, torch.nn.functional.grouped_mm(a, b, offs=ends))
