"""What stands beside a product and becomes part of it: activations, gates, and int8 weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from on_gpu import layers
from on_gpu.tensors import ONE_ROUNDING, TOLERANCE, Function, K, M, N, bf16, error, exact
from torch._dynamo.utils import counters

from tilecast.heuristics.operands import activations

GATED = {"bf16:rcr:silu-mul": "silu-mul", "bf16:rcr:bias+mul-gelu": "mul-gelu"}
"""As `FUSIBLE`, of kernels that are fused if that is measured to be faster, and never at k = 1."""


def _fusible(
    text: str, *rows: int, n: int = N, k: int = K
) -> tuple[Function, Sequence[torch.Tensor], torch.Tensor]:
    """What a kernel of some operands replaces, on random tensors, and the exact result."""
    kind, _, extras = text.partition(":rcr")
    if kind == "int8":
        return layers.whole, *layers.whole_operands(extras.partition(":")[2], *rows, n=n, k=k)
    if kind == "bf16xint8":
        function = layers.weight_only(extras)
        operands = layers.weight_only_operands(extras, *rows, n=n, k=k)
    else:
        *bias, name = extras.removeprefix(":").split("+")
        function = layers.activated(name)
        operands = [bf16(*rows, k) / k**0.5, bf16(n, k), *(bf16(n) for _ in bias)]
    return function, operands, exact(function, *operands)


@torch.no_grad()
@pytest.mark.parametrize("rows", [(M,), (5,), (2, 96)], ids=str)
@pytest.mark.parametrize("text", [*layers.FUSIBLE, *(f"bf16:rcr:{name}" for name in activations())])
def test_what_is_fused_is_one_kernel(compiled: Callable, text: str, rows: tuple[int, ...]) -> None:
    """Rounded once, while eager code rounds the product, too."""
    if text.startswith("int8"):
        rows = rows[-1:]  # ``_int_mm`` takes matrices
    name = layers.FUSIBLE.get(text, text.rpartition(":")[2])
    function, operands, expected = _fusible(text, *rows)
    result, code = compiled(function, *operands, k=1)
    assert repr(text) in code
    assert "triton" not in code.split("def call")[-1]
    assert result.dtype == torch.bfloat16
    assert error(result, expected) < (1.5 if name in activations() else 1.2) * ONE_ROUNDING
    assert counters["tilecast"] == {f"fused: {name}": 1, "problems": 1}


@torch.no_grad()
@pytest.mark.parametrize("backends", ["ATEN,TILECAST", "ATEN,TRITON,TILECAST", "TILECAST"])
@pytest.mark.parametrize("rows", [32, 2048])
@pytest.mark.parametrize("text", [*layers.FUSIBLE, *GATED])
def test_what_may_be_fused_is_or_not_as_measured(
    compiled: Callable, text: str, rows: int, backends: str
) -> None:
    name = (layers.FUSIBLE | GATED)[text]
    function, operands, expected = _fusible(text, rows, n=4096, k=1024)
    result, code = compiled(function, *operands, k=3, backends=backends)
    assert error(result, expected) < TOLERANCE
    fused = counters["tilecast"][f"fused: {name}"]
    assert fused + counters["tilecast"][f"not fused: {name}"] == 1
    assert (repr(text) in code) == bool(fused)
    assert "on_trial" not in code


@torch.no_grad()
@pytest.mark.parametrize("form", ["column-scales", "fp32-column-scales+bias", ""])
def test_an_int8_weight_is_fused_at_few_rows(compiled: Callable, form: str) -> None:
    """By a wide margin: what Inductor does without us reads the weight three times, or slowly."""
    operands = layers.weight_only_operands(form, 16, n=4096, k=4096)
    compiled(layers.weight_only(form), *operands, k=3, backends="ATEN,TILECAST")
    assert counters["tilecast"]["fused: int8 weight"] == 1


@torch.no_grad()
@pytest.mark.parametrize("form", [*layers.WEIGHT_ONLY, "gelu"])
def test_what_is_not_fused_is_as_if_it_had_not_been_tried(
    compiled: Callable, model_here: Callable[..., Path], form: str
) -> None:
    if gelu := form == "gelu":
        function, operands = layers.activated("gelu"), [bf16(2, 96, K), bf16(N, K), bf16(N)]
    else:
        function, operands = layers.weight_only(form), layers.weight_only_operands(form, 2, 96)
    model = model_here("bf16:rcr" if gelu else "bf16xint8:rcr:column-scales", leaves=True)
    options = {"k": 1, "backends": "ATEN,TILECAST", "model": model}
    found, code = compiled(function, *operands, **options)
    assert counters["tilecast"][f"not fused: {'gelu' if gelu else 'int8 weight'}"] == 1
    expected, without = compiled(function, *operands, fuse=False, **options)
    # Not bit by bit: 2.11 has two ways to add a row in ATen, of which one rounds twice, and takes
    # what it finds faster.
    assert error(found, expected) < (2 if gelu else 1) * ONE_ROUNDING
    for call in ("extern_kernels.", ".run(", "_weight_int8pack_mm"):
        assert code.count(call) == without.count(call)


def _dynamic(x: torch.Tensor, weight: torch.Tensor, row: torch.Tensor, bias: torch.Tensor):
    """A linear layer as torchao's int8 dynamic quantization writes it, in bf16 throughout."""
    scales = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-5)
    rounded = torch.clamp(torch.round(x / scales), -128, 127).to(torch.int8)
    product = torch.ops.aten._int_mm(rounded.reshape(-1, x.shape[-1]), weight.t())
    column = scales.reshape(-1, 1).expand(product.shape)
    result = (product * column).to(scales.dtype) * row.flatten()
    return result.reshape(*x.shape[:-1], weight.shape[0]) + bias


@torch.no_grad()
def test_dynamic_quantization_is_a_kernel_and_the_product_another(compiled: Callable) -> None:
    """A's scales are written in fp32 where they are computed, and nothing is read again."""
    operands = layers.weight_only_operands("column-scales+bias", 2, 96)
    result, code = compiled(_dynamic, *operands, k=1)
    assert counters["tilecast"] == {"fused: int8 product": 1, "problems": 1}
    _, without = compiled(_dynamic, *operands, k=1, fuse=False)
    assert "'int8:rcr>bf16:out-row-scales+bias'" in code
    x, weight, row, bias = (operand.double() for operand in operands)
    expected = x @ weight.t() * row.flatten() + bias
    assert error(result, expected) < 0.02  # what A loses in 8 bits
    assert code.count(".run(") == without.count(".run(") - 1


def test_gradients_behind_a_relu_that_is_fused(compiled: Callable) -> None:
    """Its derivative wants the result alone, so that nothing else is kept for it."""
    function = layers.activated("relu")
    operands = [tensor.requires_grad_() for tensor in (bf16(M, K), bf16(N, K), bf16(N))]
    result, _ = compiled(function, *operands, k=1)
    found = torch.autograd.grad(result, operands, torch.ones_like(result))
    wide = [operand.detach().float().requires_grad_() for operand in operands]
    expected = function(*wide)
    right = torch.autograd.grad(expected, wide, torch.ones_like(expected))
    for mine, theirs in zip(found, right, strict=True):
        # Numbers close to 0 are cut off on one side or the other.
        assert error(mine, theirs) < 5 * TOLERANCE
