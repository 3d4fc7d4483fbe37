"""Compiled products of int8 and of fp8 with scales."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from on_gpu.layers import SCALED, SCALES, as_in_torch, int_mm, single_row
from on_gpu.tensors import TOLERANCE, K, M, N, error
from torch._inductor.lowering import lowerings


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("backends", ["TILECAST", "ATEN,TILECAST"])
def test_int_mm_of_a_single_row_that_steps_by_nothing(
    compiled: Callable, k: int, backends: str
) -> None:
    """ATen's own takes no fewer than 17 rows."""
    x = torch.randint(-128, 128, (K,), dtype=torch.int8, device="cuda")
    weight = torch.randint(-128, 128, (N, K), dtype=torch.int8, device="cuda")
    found, code = compiled(
        lambda a, b: torch.ops.aten._int_mm(a, b.T), single_row(x), weight, k=k, backends=backends
    )
    assert torch.equal(found.double(), x.double()[None] @ weight.double().T)
    assert "StaticMatmul" in code


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("extents", [(M, N, K), (5, N, K), (37, 1112, 1040)], ids=str)
def test_int_mm(
    compiled: Callable, model_here: Callable[..., Path], extents: tuple[int, int, int], k: int
) -> None:
    """Exact, also for the few rows that torch itself does not multiply."""
    text = "int8:rcr>int32"
    a, b = as_in_torch(text, *extents)
    result, code = compiled(int_mm, a, b, k=k, model=model_here(text))
    assert result.dtype == torch.int32
    assert torch.equal(result.double(), a.double() @ b.double())
    assert repr(text) in code


@pytest.mark.parametrize("extents", [(M, N, K), (1, N, K), (37, 1120, 1040)], ids=str)
@pytest.mark.parametrize("acc", ["", "@fp32"], ids=["fast", "exact"])
@pytest.mark.parametrize("extras", SCALES)
@pytest.mark.parametrize("name", SCALED)
def test_scaled_mm(
    compiled: Callable,
    model_here: Callable[..., Path],
    name: str,
    extents: tuple[int, int, int],
    acc: str,
    extras: str,
) -> None:
    if name == "F.scaled_mm" and torch.ops.aten._scaled_mm_v2.default not in lowerings:
        pytest.skip("before PyTorch 2.13 a graph calls the library for F.scaled_mm")
    text = f"e4m3:rcr>bf16{acc}:{extras}"
    inputs, function = as_in_torch(text, *extents), SCALED[name](not acc)
    result, code = compiled(function, *inputs, model=model_here(text))
    assert error(result, function(*inputs)) < TOLERANCE
    assert repr(text) in code
