"""Layers that tests of the hook compile or call on a GPU, with their operands."""

from __future__ import annotations

from functools import partial
from pkgutil import resolve_name
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.functional import ScalingType

from on_gpu.tensors import Function, K, M, N, bf16
from tilecast.data_collection.timing.tensors import random_inputs
from tilecast.heuristics.operands import EPILOGUES, GemmOperands, activations
from tilecast.heuristics.problem import GemmProblem


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight.T


def stacked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.bmm(x, y.mT)


def single_row(x: torch.Tensor) -> torch.Tensor:
    """As Inductor sees the one row of a view, such as a layer's last token."""
    return x.flatten().as_strided((1, x.numel()), (0, 1))


BIASED: dict[str, tuple[Function, tuple[int, ...]]] = {
    "of nn.Linear": (lambda bias, x, w: F.linear(x, w, bias), (N,)),
    "as a matrix": (lambda bias, x, w: torch.addmm(bias, x, w.T), (1, N)),
    "expanded": (lambda bias, x, w: torch.addmm(bias.expand(M, N), x, w.T), (N,)),
    "of QKV": (lambda bias, x, w: F.linear(x, w, bias[N : 2 * N]), (3 * N,)),
    "4 bytes in": (lambda bias, x, w: F.linear(x, w, bias[2 : N + 2]), (N + 8,)),
}
"""Layers with a bias of one row, which a kernel adds, and the shape of that."""
FACTORS: dict[str, dict[str, Any]] = {
    "c": {},
    "alpha+c": {"alpha": 0.5},
    "beta-c": {"beta": -2},
    "alpha+beta-c": {"alpha": 0.5, "beta": 3},
}
"""Factors of an addmm, by the steps of our kernel."""


def added(steps: str) -> Function:
    """The addmm of a kernel with some steps."""
    return lambda c, x, weight: torch.addmm(c, x, weight.T, **FACTORS.get(steps, {}))


def activated(name: str) -> Function:
    """A linear layer with an activation or a gate, and a bias where one is given.

    Its function is looked up here: Dynamo breaks a graph where that is done in it.
    """
    row = EPILOGUES[name]
    assert row.torch
    activation, half = partial(resolve_name(row.torch), **dict(row.options)), row.half

    def function(x: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        product = F.linear(x, weight, *bias)
        if half is None:
            return activation(product)
        halves = product.chunk(2, -1)
        return activation(halves[half]) * halves[1 - half]

    return function


def weight_only(form: str) -> Function:
    """A linear layer with a weight of int8, as torchao writes it, and what scales it."""

    def function(x: torch.Tensor, weight: torch.Tensor, *rows: torch.Tensor) -> torch.Tensor:
        scales, bias = (*rows, None, None)[:2] if "scales" in form else (None, *rows, None)[:2]
        result = torch.mm(x.reshape(-1, x.shape[-1]), weight.t().to(x.dtype))
        if scales is not None:
            result = (result * scales.flatten()).to(x.dtype)
        result = result.reshape(*x.shape[:-1], weight.shape[0])
        return result if bias is None else result + bias

    return function


def weight_only_operands(form: str, *rows: int, n: int = N, k: int = K) -> list[torch.Tensor]:
    operands = [bf16(*rows, k) / k**0.5]
    operands += [torch.randint(-128, 128, (n, k), dtype=torch.int8, device="cuda")]
    if "scales" in form:
        dtype = torch.float32 if "fp32" in form else torch.bfloat16
        operands += [torch.rand(n, 1, dtype=dtype, device="cuda") / 64]
    return [*operands, *([bf16(n)] if "bias" in form else [])]


def whole(a: Any, column: Any, weight: Any, row: Any, *bias: Any) -> torch.Tensor:
    """The scaled product of int8 by int8, and what is added."""
    result = (torch.ops.aten._int_mm(a, weight.t()) * column * row.flatten()).to(torch.bfloat16)
    return result + bias[0] if bias else result


def whole_operands(extras: str, m: int, n: int = N, k: int = K) -> tuple:
    """What `whole` takes, and its result in double precision."""
    operands = GemmOperands.parse(f"int8:rcr>bf16:{extras}")
    a, b, column, *rows = random_inputs(GemmProblem(m, n, k, operands=operands))
    expected = (a.double() @ b.double()) * column.double()[:, None] * rows[0].double()
    return (a, column[:, None], b.t(), *rows), sum(map(torch.Tensor.double, rows[1:]), expected)


WEIGHT_ONLY = ("", "bias", "column-scales", "column-scales+bias")
WEIGHT_ONLY += ("fp32-column-scales", "fp32-column-scales+bias")
"""Forms of `weight_only`."""
WHOLE = ("row-scales", "out-row-scales", "out-row-scales+bias")
"""Extras of `whole`."""
FUSIBLE = {
    **{f"bf16:rcr:bias+{name}": name for name in activations()},
    **{f"bf16xint8:rcr{':' * bool(form)}{form}": "int8 weight" for form in WEIGHT_ONLY},
    **{f"int8:rcr>bf16:{extras}": "int8 product" for extras in WHOLE},
}
"""Operands of fused kernels, and the counter of each."""


def int_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._int_mm(a, b)


def scaled_mm(fast: bool) -> Function:
    def function(*operands: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._scaled_mm(*operands, out_dtype=torch.bfloat16, use_fast_accum=fast)

    return function


def _by_recipe(fast: bool) -> Function:
    def function(a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None) -> torch.Tensor:
        # Of one row, row scales too are one scale of a.
        recipe = ScalingType.TensorWise if scale_b.numel() == 1 else ScalingType.RowWise
        return F.scaled_mm(a, b, scale_a, recipe, scale_b, recipe, bias=bias, use_fast_accum=fast)

    return function


SCALED = {"_scaled_mm": scaled_mm, "F.scaled_mm": _by_recipe}
"""Functions of torch that scale fp8, by how products are added up."""
SCALES = ("tensor-scales", "row-scales", "row-scales+bias")
"""Extras that they take."""


def as_in_torch(operands: str, m: int = M, n: int = N, k: int = K) -> tuple[torch.Tensor, ...]:
    """Random inputs of some operands, with scales as ``_scaled_mm`` takes them."""
    parsed = GemmOperands.parse(operands)
    a, b, *extras = random_inputs(GemmProblem(m, n, k, operands=parsed))
    if parsed.scales == "row-scales":
        extras[:2] = extras[0][:, None], extras[1][None]
    return a, b, *extras
