"""What PyTorch runs for some operands is what a kernel for them should write; on the CPU."""

from __future__ import annotations

import re

import pytest
import torch

from tilecast.data_collection.timing import torch_reference
from tilecast.data_collection.timing.tensors import applied, poisoned_out, random_inputs, reference
from tilecast.data_collection.timing.torch_reference import torch_launch, torch_refusal
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


def test_a_gate_is_of_the_half_that_its_name_begins_with() -> None:
    first, second = torch.randn(3, 8), torch.randn(3, 8)
    both = torch.cat((first, second), 1)
    silu = torch.nn.functional.silu
    assert torch.equal(applied("silu-mul", both, {}), silu(first) * second)
    assert torch.equal(applied("mul-silu", both, {}), silu(second) * first)


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
