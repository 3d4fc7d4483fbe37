"""A graph of every kind of product under Inductor's C++ wrapper: compiled, and called on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fixtures import check_handed
from torch._dynamo.utils import counters
from torch._inductor import config, graph
from torch._inductor.kernel_inputs import KernelInputs
from torch._inductor.utils import fresh_cache, run_and_get_code

from tilecast.inductor_hook import installed
from tilecast.inductor_hook.offer import cpp_wrapper
from tilecast.inductor_hook.run import cpp_operator, in_torch, static
from tilecast.kernels.spec import KernelSpec

M, N, K = 48, 264, 72
TEXTS = "bf16:rcr bf16:rrr bf16:rcr:bias bf16:rcr:c bf16:rcr:row-groups"


@pytest.fixture
def launched(hook: object, monkeypatch: pytest.MonkeyPatch) -> list[KernelSpec]:
    """Has the CPU pass for a GPU; gives the kernels launched, which torch stands in for."""
    launched: list[KernelSpec] = []

    def load(spec: KernelSpec, device: int) -> Callable[..., None]:
        def kernel(*tensors: torch.Tensor) -> None:
            launched.append(spec)
            check_handed(spec, *tensors)
            in_torch.in_torch(spec.operands)(*tensors)

        return kernel

    cpp_operator._named.cache_clear()
    monkeypatch.setattr(static, "loaded_kernel", load)
    monkeypatch.setattr(graph, "should_assume_input_aligned", lambda example: True)
    monkeypatch.setattr(KernelInputs, "device_type", "cuda")
    return launched


def _near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Within a rounding to bf16: what torch adds in one step, we round before."""
    difference = torch.linalg.vector_norm(found.double() - expected.double())
    return bool(difference < 4e-3 * torch.linalg.vector_norm(expected.double()))


def test_every_kind_of_product_is_called_from_cpp(
    launched: list[KernelSpec], model_of: Callable[..., Path], request: pytest.FixtureRequest
) -> None:
    """Views of operands, a row that a kernel adds, a batch, a matrix that a kernel adds with its
    factors, rows that TMA does not store, groups of rows; all in one graph, as its compiler takes
    ten seconds."""

    def function(x: Any, w: Any, bias: Any, c: Any, a: Any, b: Any, d: Any, odd: Any, ends: Any):
        hidden = F.linear(x[:, 8:], w[8:], bias)
        return (
            torch.relu(hidden) @ w[8:],
            torch.bmm(a, b.mT),
            torch.addmm(d, c, w[8:].T, alpha=0.5, beta=3),
            c @ odd.T,
            F.grouped_mm(c, b.mT, offs=ends),
        )

    request.addfinalizer(cpp_operator._named.cache_clear)
    shapes = ((M, K + 8), (N + 8, K), (N,), (M, K), (3, M, K), (3, N, K), (M, N), (N + 1, K))
    operands = [torch.randn(shape).bfloat16() for shape in shapes]
    operands.append(torch.tensor([5, 5, M], dtype=torch.int32))
    torch._dynamo.reset()
    settings: dict[str, Any] = {
        "max_autotune": True,
        "max_autotune_gemm_backends": "TILECAST",
        "cpp_wrapper": True,
    }
    with installed(k=1, model=model_of(TEXTS), fuse=False), fresh_cache(), config.patch(settings):
        results, codes = run_and_get_code(torch.compile(function, fullgraph=True), *operands)
    assert [(spec.operands.text, spec.batched, spec.any_rows) for spec in launched] == [
        ("bf16:rcr:bias", False, False),
        ("bf16:rrr", False, False),
        ("bf16:rcr", True, False),
        ("bf16:rcr:alpha+beta-c", False, False),
        ("bf16:rcr", False, True),
        ("bf16:rcr:row-groups", False, False),
    ]
    for found, expected in zip(results, function(*operands), strict=True):
        assert _near(found, expected)
    assert counters["tilecast"] == {"problems": 6}
    code = "\n".join(codes)
    assert all(f'"{spec.config.name}"' in code for spec in launched)
    assert cpp_wrapper.IMPORT in code.split("cpp_wrapper_src")[0].splitlines()
