"""One graph serves every size of a symbolic extent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from on_gpu import layers
from on_gpu.hook import hooked
from on_gpu.tensors import TOLERANCE, Function, K, M, N, bf16, error, exact
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code


class Dynamic(NamedTuple):
    """A function whose operands have symbolic extents."""

    function: Function
    operands: Callable[[int], Sequence[torch.Tensor]]
    """Of one size."""
    symbolic: dict[int, tuple[int, ...]]
    """Symbolic dimensions by the operand's position."""
    sizes: tuple[int, ...] = (17, 2, 16, 100, 192, 1000, 5000, 20000)
    fused: str = ""
    """The counter of a fused product."""
    known: str = ""
    """Operands that the model knows; the shipped model when left out."""


OF_ONE, OF_TWO = {0: (0,)}, {0: (0,), 1: (0,)}
FEW, BATCHES, ROWS = (17, M, 500, 3000), (5, 2, 16, 33), "e4m3:rcr>bf16:row-scales"
DYNAMIC: dict[str, Dynamic] = {
    "linear": Dynamic(F.linear, lambda m: (bf16(m, K), bf16(N, K)), OF_ONE),
    "a bias": Dynamic(F.linear, lambda m: (bf16(m, K), bf16(N, K), bf16(N)), OF_ONE),
    "a matrix": Dynamic(
        layers.added("c"),
        lambda m: (bf16(m, N), bf16(m, K), bf16(N, K)),
        *(OF_TWO, FEW, "", "bf16:rcr bf16:rcr:c"),
    ),
    # Whose scales are as many as its rows.
    "fp8 by rows": Dynamic(
        layers.scaled_mm(fast=True),
        lambda m: layers.as_in_torch(ROWS, m),
        *({0: (0,), 2: (0,)}, (17, 2, 16, 192, 5000), "", ROWS),
    ),
    "a batch": Dynamic(
        torch.bmm, lambda batch: (bf16(batch, M, K), bf16(batch, N, K).mT), OF_TWO, BATCHES
    ),
    "a batch and m": Dynamic(
        torch.bmm,
        lambda batch: (bf16(batch, 40 * batch, K), bf16(batch, N, K).mT),
        *({0: (0, 1), 1: (0,)}, BATCHES),
    ),
    "silu": Dynamic(
        layers.activated("silu"),
        lambda m: (bf16(m, K) / K**0.5, bf16(N, K), bf16(N)),
        *(OF_ONE, FEW, "silu"),
    ),
    "int8 weight": Dynamic(
        layers.weight_only(""), partial(layers.weight_only_operands, ""), OF_ONE, FEW, "int8 weight"
    ),
    "int8 weight with scales and bias": Dynamic(
        layers.weight_only("column-scales+bias"),
        partial(layers.weight_only_operands, "column-scales+bias"),
        *(OF_ONE, FEW, "int8 weight"),
    ),
    "int8 product": Dynamic(
        layers.whole,
        lambda m: layers.whole_operands("out-row-scales+bias", m)[0],
        *(OF_TWO, FEW, "int8 product"),
    ),
}


def _expected(function: Function, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """The result in float32, or in double precision; of fp8 that of torch."""
    if operands[0].dtype == torch.int8:
        a, column, weight, row, bias = (operand.double() for operand in operands)
        return a @ weight.t() * column * row + bias
    if operands[0].itemsize == 1:
        return function(*operands)
    return exact(function, *operands)


@pytest.mark.parametrize("kind", DYNAMIC)
def test_one_graph_for_every_extent(model_here: Callable[..., Path], kind: str) -> None:
    function, operands_of, symbolic, sizes, fused, known = DYNAMIC[kind]
    model = model_here(known) if known else None
    compiled = torch.compile(function, fullgraph=True)
    with hooked(1 if fused else 3, model, fuse=bool(fused)), torch.no_grad():
        operands = operands_of(sizes[0])
        for position, dimensions in symbolic.items():
            torch._dynamo.mark_dynamic(operands[position], dimensions)
        result, codes = run_and_get_code(compiled, *operands)
        assert error(result, _expected(function, operands)) < TOLERANCE
        assert "DynamicMatmul.named" in codes[-1]
        for size in (*sizes[1:], sizes[0]):
            operands = operands_of(size)
            result = compiled(*operands)
            assert error(result, _expected(function, operands)) < TOLERANCE, size
    assert counters["stats"]["unique_graphs"] == 1
    assert counters["tilecast"]["problems"] == 1
    assert not fused or counters["tilecast"][f"fused: {fused}"] == 1
