"""Reading a product from the shapes, strides, types and devices of tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tilecast.heuristics.dtypes import dtype_of_torch
from tilecast.heuristics.operands import GemmOperands, TensorSpec
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.describe.layout import major, padded, scaling
from tilecast.inductor_hook.describe.product import Product


class Stored(NamedTuple):
    """How a tensor is stored."""

    shape: torch.Size
    strides: tuple[int, ...]
    """In elements."""
    dtype: torch.dtype
    device: int
    """The CUDA device; negative for the CPU."""


def problem_of(
    product: Product, a: Stored, b: Stored, out_strides: tuple[int, ...] | None = None
) -> GemmProblem:
    """What the model is asked; n is longer where TMA does not store rows of the result's length.

    ``out_strides`` are those of an ``out`` that the caller has.

    Raises:
        TilecastError: no kernel reads operands of these strides, types or scales.
    """
    *batch, m, k = a.shape
    n, out_dtype = b.shape[-1], product.out or a.dtype
    out_major = "row"
    if out_strides:
        out_major = major("out", (*batch, m, n), out_strides, out_dtype.itemsize)
    a_spec, b_spec = (
        TensorSpec(dtype_of_torch(x.dtype), major(name, x.shape, x.strides, x.dtype.itemsize))
        for name, x in (("A", a), ("B", b))
    )
    operands = GemmOperands.product(
        a_spec, b_spec, TensorSpec(dtype_of_torch(out_dtype), out_major)
    )
    if product.scales:
        of_a, of_b = product.scales
        operands = operands.scaled(scaling(of_a, of_b, m, n), product.fast)
    # PyTorch refuses int8 and fp8 with an n that TMA does not store.
    fixed = out_strides or a.dtype.itemsize == 1
    stored = n if fixed else padded(n, out_dtype.itemsize)
    return GemmProblem(m, stored, k, batch[0] if batch else 1, operands.then(*product.steps))
