"""Grouped products beside PyTorch's: what is timed, and figures of what was compiled."""

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


def test_what_is_timed_are_candidates() -> None:
    gpu, problem = hardware("H200"), next(iter(grouped_speed.PROBLEMS.values()))
    ranked = grouped_speed.ranked(problem, gpu)
    assert len(ranked) == grouped_speed.RANKED
    assert set(ranked) <= set(candidates(problem, gpu))


def test_figures_of_compiled_products_are_others_over_ours() -> None:
    times = {"eager": 12.0, grouped_compiled.RIVAL: 11.0, grouped_compiled.OURS: 10.0}
    seconds = {grouped_compiled.RIVAL: 40.0, grouped_compiled.OURS: 2.0}
    row = {"microseconds": {"burst": times}, "compile_seconds": seconds}
    again = {**row, "compile_seconds": seconds | {grouped_compiled.AGAIN: 1.0}}
    found = grouped_compiled.figures([row, again])
    cold, there = (f"compile time of TILECAST k=5{more}" for more in ("", ", kernels there"))
    assert set(found) == {"burst", cold, there}
    assert found["burst"]["ATEN,TRITON over TILECAST k=5"]["geomean"] == pytest.approx(1.1, 1e-3)
    assert found[cold]["geomean"] == pytest.approx(0.05, 1e-3)
    assert found[there] == {"problems": 1} | dict.fromkeys(
        found[there].keys() - {"problems"}, 0.025
    )


def test_compiled_products_are_what_pytorch_multiplies() -> None:
    problem = GemmProblem(48, 64, 128, 4, GemmOperands.parse("bf16:rrr:row-groups"))
    a, b, ends = random_inputs(problem, "cpu")
    found = grouped_compiled.experts(a, b.mT, ends)
    assert torch.equal(found, torch.nn.functional.grouped_mm(a, b, offs=ends))
