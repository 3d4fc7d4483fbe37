"""Kernels as they are used, on the CPU: stand-ins with one fault each, which has to be found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tilecast.data_collection.timing import in_use
from tilecast.data_collection.timing.in_use import InUse
from tilecast.data_collection.timing.tensors import launch_tensors, reference
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem

OPERANDS = ("bf16:rcr", "fp16:rrr", "bf16:ccc", "bf16:rcr>fp32", "bf16:rcr:bias+silu", "bf16:rcr:c")
OPERANDS += (
    "int8:rcr>int32",
    "int8:rcr>bf16:row-scales",
    "e4m3:rcr>bf16:row-scales+bias",
    "bf16:rcr:silu-mul",
    "bf16:rcr:row-groups",
    "bf16:crr:k-groups",
)


class Queue:
    """Launches run as they should: one after the other."""

    def __init__(self, problem: GemmProblem):
        self.problem = problem

    def launch(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *extras) -> None:
        self.write(out, reference(self.problem, (a, b, *extras)))

    def write(self, out: torch.Tensor, result: torch.Tensor) -> None:
        out.copy_(result)

    def finish(self) -> None:
        pass


class Late(Queue):
    """What a launch computes is written as the next one ends: nobody waited for it."""

    def __init__(self, problem: GemmProblem, *, only_reads: bool = False):
        super().__init__(problem)
        self.pending: list[Callable[[], object]] = []
        self.only_reads = only_reads

    def launch(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *extras) -> None:
        result = reference(self.problem, (a, b, *extras))  # of what was there
        if self.only_reads:
            self.finish()  # the order of writes is kept
            self.pending.append(lambda: out.copy_(result))
        else:
            self.pending.insert(0, lambda: out.copy_(result))

    def finish(self) -> None:
        for write in self.pending:
            write()
        self.pending = []


class TileLeftOut(Queue):
    def write(self, out: torch.Tensor, result: torch.Tensor) -> None:
        out.copy_(result)
        out[..., 64:128, 16:32] = 0


class Dense(Queue):
    """Takes rows of out to be as long as they are wide."""

    def write(self, out: torch.Tensor, result: torch.Tensor) -> None:
        out.as_strided(out.shape, (out.shape[-1], 1)).copy_(result)


def _use(problem: GemmProblem) -> InUse:
    torch.manual_seed(0)
    return InUse(problem, launch_tensors(problem, "cpu"), launch_tensors(problem, "cpu"))


@pytest.mark.parametrize("text", OPERANDS)
@pytest.mark.parametrize("extents", [(144, 96, 320), (144, 320, 96), (16, 64, 64, 3)], ids=str)
def test_right_kernels_pass_and_those_that_do_not_wait_are_found(
    text: str, extents: tuple[int, ...]
) -> None:
    operands = GemmOperands.parse(text)
    problem = GemmProblem(*extents, operands=operands)
    use, right, late = _use(problem), Queue(problem), Late(problem)
    assert use.wrong(right.launch, right.finish) is None
    found = use.wrong(late.launch, late.finish)
    assert found == "other results where the launch before writes to the same tensor"
    assert use.wrong(late.launch, late.finish, chains=False) is None
    reader = Late(problem, only_reads=True)
    found = use.wrong(reader.launch, reader.finish)
    if operands.out == operands.a:
        assert found == "other results where the launch before writes what it reads"
    else:
        assert found is None


def test_a_tile_that_is_left_out_of_the_timed_problem_is_found() -> None:
    problem = GemmProblem(256, 512, 256)
    kernel = TileLeftOut(problem)
    found = _use(problem).wrong(kernel.launch, kernel.finish)
    assert found and "wrong elements within [64:128, 16:32], the first 0 instead of" in found
    assert found.endswith(", on the tensors that were timed")


def test_of_a_large_result_rows_of_every_tile_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_use, "MOST_COMPARED", 512 * 16)
    scaled = (f"e4m3:rcr>bf16:{scales}-scales" for scales in ("row", "block"))
    for text in ("bf16:rcr", "bf16:rcr:c", "bf16:rcr:row-groups", *scaled):
        operands = GemmOperands.parse(text)
        problem = GemmProblem(256, 512, 256, 5 if operands.groups else 1, operands)
        use, right, wrong = _use(problem), Queue(problem), TileLeftOut(problem)
        assert use.wrong(right.launch, right.finish) is None
        found = use.wrong(wrong.launch, wrong.finish)
        assert found and "wrong elements within [4:8, 16:32]" in found


def test_a_kernel_that_takes_rows_to_be_dense_is_found() -> None:
    problem = GemmProblem(64, 512, 256)
    kernel = Dense(problem)
    assert _use(problem).wrong(kernel.launch, kernel.finish) == (
        "other results where rows are padded"
    )


def test_the_tensors_that_were_timed_stay_as_they_were_but_for_the_result() -> None:
    problem = GemmProblem(64, 256, 512, operands=GemmOperands.parse("bf16:rcr:c"))
    first = launch_tensors(problem, "cpu")
    before = [tensor.clone() for tensor in first]
    kernel = Queue(problem)
    assert InUse(problem, first, first).wrong(kernel.launch, kernel.finish) is None
    for place in (0, 1, 3):
        assert torch.equal(first[place], before[place])
