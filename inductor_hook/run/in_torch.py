"""What torch does in place of a tilecast kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from tilecast.heuristics.operands import GemmOperands


def instead(operands: GemmOperands, *tensors: torch.Tensor | float) -> None:
    """Have torch write what a tilecast kernel failed to write.

    Below autograd, as a kernel is: parts of a tensor subclass may ask for gradients even here.
    """
    with torch.no_grad():
        in_torch(operands)(*tensors)


def in_torch(operands: GemmOperands) -> Callable[..., None]:
    """What has torch write the product of some operands to ``out``: f(a, b, out, *extras)."""
    # Only here: a graph whose kernels run needs none of it.
    from tilecast.data_collection.timing.torch_reference import torch_launch

    wide = operands.a.dtype.bits == 16 and operands.out.dtype != operands.a.dtype
    once = wide and not operands.scales
    launch = partial(_rounded_once, operands) if once else torch_launch(operands)

    def multiply(
        a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *extras: torch.Tensor | float
    ) -> None:
        # Operators of cuBLAS write no rows with gaps between them.
        whole = out if out.stride(-1) > 1 or out.is_contiguous() else out.new_empty(out.shape)
        launch(a, b, whole, *extras)
        if whole is not out:
            out.copy_(whole)

    return multiply


def _rounded_once(
    operands: GemmOperands,
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    *extras: torch.Tensor | float,
) -> None:
    """A product in fp32, as ``torch.matmul`` rounds to A's type, and behind it the epilogue."""
    from tilecast.data_collection.timing.tensors import applied

    given = dict(zip((extra.name for extra in operands.extras), extras, strict=True))
    # With an output, because autocast would narrow what has none.
    result = out.new_empty(*out.shape[:-1], b.shape[-1], dtype=torch.float32)
    torch.matmul(a.float(), b.float(), out=result)
    for step in operands.epilogue:
        result = applied(step, result, given)
    out.copy_(result)
