"""What PyTorch runs for some operands is what a kernel for them should write; on the CPU."""

from __future__ import annotations

import re

import pytest
import torch

from tilecast.data_collection.timing import torch_reference
from tilecast.data_collection.timing.tensors import (
    applied,
    group_ends,
    in_tiles,
    of_rows,
    poisoned_out,
    random_inputs,
    reference,
)
from tilecast.data_collection.timing.torch_reference import (
    library_launch,
    torch_launch,
    torch_refusal,
)
from tilecast.heuristics.operands import EPILOGUES, GemmOperands
from tilecast.heuristics.problem import GemmProblem

OPERANDS = (
    "bf16:rcr",
    "fp16:rrr",
    *(f"bf16:rcr:{step}" for step in EPILOGUES if step not in ("alpha", "c", "beta-c")),
    "bf16:rcr:c",
    "bf16:rcr:beta-c",
    "bf16:rcr:alpha+beta-c",
    "bf16:rcr:alpha",
    "bf16:rcr:beta-c+alpha",
    "bf16:rcr:c+bias",
    "bf16:rcr:relu+c",
    "bf16:rcr>fp32:bias",
    "bf16:rcr:bias+gelu-tanh",
    "bf16:rcr:bias+gelu",
    "bf16:rcr:bias+silu",
    "bf16:rcr:bias+mul-silu",
    "int8:rcr>bf16:row-scales+bias+silu-mul",
    "int8:rcr>int32",
    "int8:rcr>bf16:row-scales",
    "int8:rcr>bf16:out-row-scales+bias",
    "bf16xint8:rcr",
    "bf16xint8:rcr:column-scales",
    "bf16xint8:rcr:fp32-column-scales",
    "bf16xint8:rcr>fp32:column-scales+bias",
)


@pytest.mark.parametrize("text", OPERANDS)
def test_pytorch_computes_what_the_operands_say(text: str) -> None:
    torch.manual_seed(0)
    problem = GemmProblem(48, 64, 128, operands=GemmOperands.parse(text))
    a, b, *extras = random_inputs(problem, "cpu")
    out = poisoned_out(problem, "cpu")
    torch_launch(problem.operands)(a, b, out, *extras)
    right = reference(problem, (a, b, *extras))
    # By its norm, as the CPU's own addmm rounds on the way.
    assert torch.linalg.norm(out.float() - right) / torch.linalg.norm(right) < 5e-3
    assert right.shape == out.shape
    bare = a.float() @ b.float()
    assert (
        right.shape != bare.shape or not torch.allclose(right, bare) or not problem.operands.fused
    )


def test_blocks_along_k_have_scales_of_their_own() -> None:
    """As PyTorch stores them: the formula of its documentation, element by element."""
    torch.manual_seed(0)
    m, n, k = 200, 144, 160
    problem = GemmProblem(m, n, k, operands=GemmOperands.parse("e4m3:rcr>bf16:block-scales"))
    a, b, scale_a, scale_b = random_inputs(problem, "cpu")
    assert (scale_a.numel(), scale_b.numel()) == (2 * 2 * 512, 2 * 2 * 512)

    def of(scales: torch.Tensor, row: int, place: int) -> float:
        tile, block = 2 * (row // 128) + place // 128, place // 32 % 4
        return scales[512 * tile + 16 * (row % 32) + 4 * (row % 128 // 32) + block].float().item()

    result = reference(problem, (a, b, scale_a, scale_b))
    for i, j in ((0, 0), (33, 143), (137, 70), (199, 128)):
        row = [a[i, p].float().item() * of(scale_a, i, p) for p in range(k)]
        column = [b[p, j].float().item() * of(scale_b, j, p) for p in range(k)]
        right = sum(x * y for x, y in zip(row, column, strict=True))
        assert result[i, j].item() == pytest.approx(right, rel=1e-4, abs=1e-3)
    assert torch.equal(in_tiles(of_rows(scale_a, m, k)).float(), scale_a.float())
    assert {0.5, 1.0, 2.0} <= set(scale_a.float().tolist())


def test_a_gate_is_of_the_half_that_its_name_begins_with() -> None:
    first, second = torch.randn(3, 8), torch.randn(3, 8)
    both = torch.cat((first, second), 1)
    silu = torch.nn.functional.silu
    torch.testing.assert_close(applied("silu-mul", both, {}), silu(first) * second)
    torch.testing.assert_close(applied("mul-silu", both, {}), silu(second) * first)


@pytest.mark.parametrize("text", ["bf16:rcr:row-groups", "fp16:rrr:row-groups+silu"])
@pytest.mark.parametrize("groups", [1, 4, 60])
def test_pytorch_multiplies_each_group_with_its_own_matrix(text: str, groups: int) -> None:
    torch.manual_seed(0)
    problem = GemmProblem(48, 64, 128, groups, GemmOperands.parse(text))
    a, b, ends = random_inputs(problem, "cpu")
    assert (a.shape, b.shape) == ((48, 128), (groups, 128, 64))
    assert ends.dtype == torch.int32
    counts = ends.diff(prepend=ends.new_zeros(1))
    assert counts.min() >= 0 and counts.sum() == 48
    out = poisoned_out(problem, "cpu")
    torch_launch(problem.operands)(a, b, out, ends)
    if not problem.operands.epilogue:
        untouched = poisoned_out(problem, "cpu")
        found = library_launch(problem.operands)(a, b, untouched, ends)
        assert found is not None and torch.equal(found, out)
        assert bool(untouched.isnan().all())
    of_row = torch.arange(groups).repeat_interleave(counts)
    right = (a[:, None].double() @ b[of_row].double())[:, 0]
    if problem.operands.activation:
        right = torch.nn.functional.silu(right)
    assert torch.linalg.norm(out.double() - right) / torch.linalg.norm(right) < 5e-3
    again = reference(problem, (a, b, ends)).double()
    assert torch.linalg.norm(again - right) / torch.linalg.norm(right) < 1e-5


@pytest.mark.parametrize("groups", [1, 4, 60])
def test_pytorch_multiplies_each_group_along_k_into_a_matrix_of_its_own(groups: int) -> None:
    torch.manual_seed(0)
    problem = GemmProblem(48, 64, 96, groups, GemmOperands.parse("bf16:crr:k-groups"))
    a, b, ends = random_inputs(problem, "cpu")
    assert (a.shape, a.stride(0), b.shape) == ((48, 96), 1, (96, 64))
    assert ends[-1].item() == 96
    out = poisoned_out(problem, "cpu")
    torch_launch(problem.operands)(a, b, out, ends)
    assert out.shape == (groups, 48, 64)
    start = 0
    for group, end in enumerate(ends.tolist()):
        right = a[:, start:end].double() @ b[start:end].double()
        assert torch.linalg.norm(out[group].double() - right) <= 5e-3 * torch.linalg.norm(right)
        start = end
    again = reference(problem, (a, b, ends))
    assert torch.linalg.norm(again - out.float()) <= 5e-3 * torch.linalg.norm(again)


def test_groups_are_spread_unevenly_and_rows_behind_the_last_have_no_result() -> None:
    torch.manual_seed(0)
    counts = group_ends(6400, 64).diff(prepend=torch.zeros(1, dtype=torch.int32))
    assert counts.min() < 20 and 300 < counts.max() < 800
    problem = GemmProblem(48, 64, 128, 2, GemmOperands.parse("bf16:rcr:row-groups"))
    a, b, _ = random_inputs(problem, "cpu")
    result = reference(problem, (a, b, torch.tensor([0, 40])))
    assert bool(result[:40].isfinite().all()) and bool(result[40:].isnan().all())


def test_a_refusal_of_pytorch_is_one_line_once_the_device_is_seen_to_work() -> None:
    waits: list[int] = []
    batch = GemmProblem(48, 64, 128, 3, GemmOperands.parse("bf16:rcr:bias+relu"))
    told = torch_refusal(batch, lambda: waits.append(1), "cpu")
    assert told and told.startswith("RuntimeError: ")
    assert "\n" not in told
    assert waits == [1]
    plain = GemmProblem(48, 64, 128, 3, GemmOperands.parse("bf16:rcr"))
    assert torch_refusal(plain, lambda: waits.append(1), "cpu") is None
    assert waits == [1, 1]

    def lost() -> None:
        raise RuntimeError("the context is lost")

    with pytest.raises(RuntimeError, match="the context is lost"):
        torch_refusal(batch, lost, "cpu")


@pytest.mark.parametrize(
    "lack",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
    ids=str,
)
def test_a_lack_of_memory_is_no_refusal(
    lack: RuntimeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*tensors: torch.Tensor) -> None:
        raise lack

    monkeypatch.setattr(torch_reference, "torch_launch", lambda operands: short)
    with pytest.raises(type(lack), match=re.escape(str(lack))):
        torch_refusal(GemmProblem(16, 16, 16), lambda: None, "cpu")
