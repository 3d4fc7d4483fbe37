"""What torch does in place of a kernel, or behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import ADDED


def add_bias(out: torch.Tensor, bias: torch.Tensor, alpha: float, beta: float) -> None:
    """``out = alpha * out + beta * bias`` in place, for factors that `layout.adds` allows.

    Args:
        out: (m, n), or (batch, m, n).
        bias: broadcastable to it.
        alpha: factor of the product.
        beta: factor of the bias; with 0 its values do not matter, not even those that are none.
    """
    if beta == 0:
        out.mul_(alpha)
    elif beta == 1:
        torch.add(bias, out, alpha=alpha, out=out)
    else:
        torch.add(out, bias, alpha=beta, out=out)


def instead(operands: GemmOperands, *tensors: torch.Tensor | float) -> None:
    """Have torch write what a tilecast kernel failed to write.

    Below autograd, as a kernel is: parts of a tensor subclass may ask for gradients even here.
    """
    with torch.no_grad():
        in_torch(operands)(*tensors)


def in_torch(operands: GemmOperands) -> Callable[..., None]:
    """What has torch write the product of some operands to ``out``: f(a, b, out, *extras)."""
    if operands.a.dtype.bits > 8 and not operands.scales and operands.epilogue in _ONE_OPERATOR:
        return partial(_multiply, [extra.name for extra in operands.extras])
    # Only here: a graph whose kernels run needs none of it.
    from tilecast.data_collection.timing.torch_reference import torch_launch

    launch = torch_launch(operands)

    def multiply(
        a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *extras: torch.Tensor | float
    ) -> None:
        # Operators of cuBLAS write no rows with gaps between them.
        whole = out if out.stride(-1) > 1 or out.is_contiguous() else out.new_empty(out.shape)
        launch(a, b, whole, *extras)
        if whole is not out:
            out.copy_(whole)

    return multiply


_ONE_OPERATOR = ((), ("bias",), *ADDED)
"""Epilogues that one operator of torch does."""


def _multiply(
    names: Sequence[str],
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    *extras: torch.Tensor | float,
) -> None:
    """Write a @ b to ``out`` with torch, rounded as a kernel does: once, to out's dtype.

    With the extras of these names, a bias (n,) or a matrix and factors, where there are some.

    That may be another one than A's and B's, which ``torch.matmul`` refuses.
    """
    # The dtype that holds every value of both: bf16 operands are exact in fp32.
    wide = torch.promote_types(a.dtype, out.dtype)
    product = out if out.dtype == wide else out.new_empty(out.shape, dtype=wide)
    # With an output even here, because autocast would narrow what has none.
    given: dict[str, Any] = dict(zip(names, extras, strict=True))
    added = given.pop("bias", given.pop("c", None))
    if added is None:
        torch.matmul(a.to(wide), b.to(wide), out=product)
    else:
        add = torch.addmm if a.ndim == 2 else torch.baddbmm
        add(added.to(wide), a.to(wide), b.to(wide), **given, out=product)
    if product is not out:
        out.copy_(product)
