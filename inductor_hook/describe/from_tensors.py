"""Reading a product from how tensors are stored."""

from __future__ import annotations

from tilecast.heuristics.dtypes import dtype_of_torch
from tilecast.heuristics.operands import GemmOperands, TensorSpec
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.describe.layout import Stored, padded, scaling
from tilecast.inductor_hook.describe.product import Product


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
    if out_strides:
        out = Stored((*batch, m, n), out_strides, out_dtype).spec("out")
    else:
        out = TensorSpec(dtype_of_torch(out_dtype), "row")
    operands = GemmOperands.product(a.spec("A"), b.spec("B"), out)
    if product.scales:
        operands = operands.scaled(scaling(product.scales, m, n), product.fast)
    # PyTorch refuses int8 and fp8 with an n that TMA does not store.
    fixed = out_strides or a.dtype.itemsize == 1
    stored = n if fixed else padded(n, out_dtype.itemsize)
    return GemmProblem(m, stored, k, batch[0] if batch else 1, operands.then(*product.steps))
