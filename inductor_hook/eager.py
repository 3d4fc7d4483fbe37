"""Products without tuning: ``mm``, ``addmm`` and ``bmm``, which the model decides.

`enable` does the same for torch's own functions, in code that does not know tilecast. The model is
the one that `tilecast.inductor_hook.install` was given, or else the environment names.

A plain call on plain tensors skips PyTorch's dispatcher, which costs more in Python than choosing
and launching do. Where PyTorch has to see the call, as for gradients, autocast, subclasses and
``torch.compile``, it is a call of torch's function, which the switch and the hook decide.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from tilecast.inductor_hook.describe.product import READERS
from tilecast.inductor_hook.dispatch.plan import Planner, decide_again
from tilecast.inductor_hook.dispatch.switch import disable, enable
from tilecast.inductor_hook.settings import Settings, active

__all__ = ["addmm", "bmm", "decide_again", "disable", "enable", "mm"]


def mm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """``torch.mm`` with the kernel that the model expects to be fastest, torch's own among them.

    Args:
        a: (m, k), of a GPU and dtype that there is a model for; the rest goes to ``torch.mm``.
        b: (k, n).
        out: (m, n), written to when given.
    """
    return _product("mm", a, b, out=out)


def bmm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """``torch.bmm`` likewise: (batch, m, k) by (batch, k, n) is (batch, m, n)."""
    return _product("bmm", a, b, out=out)


def addmm(
    bias: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    alpha: float = 1,
    beta: float = 1,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``torch.addmm`` likewise: ``beta * bias + alpha * a @ b``.

    A tilecast kernel adds a row, and a matrix if the model knows such kernels
    (`tilecast.inductor_hook.describe.layout.Stored.added_as`); torch does the others.
    """
    return _product("addmm", bias, a, b, out=out, alpha=alpha, beta=beta)


def _product(
    name: str, *operands: torch.Tensor, out: torch.Tensor | None, **factors: float
) -> torch.Tensor:
    """What torch's function of a name returns, by a tilecast kernel or by torch."""
    if _plain(*operands, *(() if out is None else (out,))):
        request = READERS[name](*operands, **factors)
        result = None
        if out is None or not _shared(request.bias, out):
            result = _planner(active()).multiply(request, out)
        if result is not None:
            # PyTorch does not see what a kernel writes, and a gradient may need what was there.
            if out is not None and not out.is_inference():
                increment_version(out)
            return result
    return getattr(torch, name)(*operands, **factors, out=out)


@cache
def _planner(settings: Settings | None) -> Planner:
    return Planner(settings=settings and replace(settings, k=1))


def _plain(*tensors: torch.Tensor) -> bool:
    """Whether nothing of PyTorch wants to see what is done with some tensors."""
    if (
        torch.compiler.is_dynamo_compiling()
        or torch.is_autocast_enabled()  # on CUDA; asked with a device, it takes twice as long
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state()
        or forward_ad._current_level >= 0
    ):
        return False
    recorded = torch.is_grad_enabled()
    for tensor in tensors:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not tensor.is_cuda:
            return False
        # A view may stand for the negative of what is in memory.
        if tensor.layout is not torch.strided or tensor.is_neg():
            return False
        if recorded and tensor.requires_grad:
            return False
    return True


def _shared(bias: torch.Tensor | None, out: torch.Tensor) -> bool:
    """Whether the result may overwrite the bias before it is added."""
    return bias is not None and (
        bias.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
    )
