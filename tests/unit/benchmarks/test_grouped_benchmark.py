"""Grouped products beside PyTorch's: what is timed, and that it is right."""

from __future__ import annotations

import grouped_compiled
import grouped_speed
import pytest
import races
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


def test_compiled_products_are_what_pytorch_multiplies() -> None:
    problem = GemmProblem(48, 64, 128, 4, GemmOperands.parse("bf16:rrr:row-groups"))
    a, b, ends = random_inputs(problem, "cpu")
    found = grouped_compiled.experts(a, b.mT, ends)
    assert torch.equal(found, torch.nn.functional.grouped_mm(a, b, offs=ends))


@pytest.mark.parametrize("wrong", [False, True])
def test_each_call_is_compared_with_pytorchs_and_may_not_keep_what_another_wrote(
    wrong: bool,
) -> None:
    problem = GemmProblem(48, 64, 128, 4, GemmOperands.parse("bf16:rcr:row-groups"))

    def right(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, ends: torch.Tensor) -> None:
        out.copy_(torch.nn.functional.grouped_mm(a, b, offs=ends))

    def near(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, ends: torch.Tensor) -> None:
        out.copy_((1 + 2**-7) * torch.nn.functional.grouped_mm(a, b, offs=ends))

    calls = {"right": right, "near": near}
    if wrong:
        with pytest.raises(RuntimeError, match="^idle is wrong on 4x48x64x128: nan of the norm"):
            races.largest_error(problem, calls | {"idle": lambda *tensors: None}, "cpu")
    else:
        found = races.largest_error(problem, calls, "cpu")
        assert found == pytest.approx(2**-7, rel=0.15)
