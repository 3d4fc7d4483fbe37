"""Products without tuning: ``mm``, ``addmm`` and ``bmm``, which the model decides.

`enable` does the same for torch's own functions, in code that does not know tilecast. The model is
the one that `tilecast.inductor_hook.install` was given, or else the environment names.

The functions are also operators, ``tilecast::mm`` and so on. A plain call on plain tensors skips
PyTorch's dispatcher, which costs more in Python than choosing and launching do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tilecast.inductor_hook.describe.product import OPERATORS, Operator
from tilecast.inductor_hook.dispatch.plan import Planner
from tilecast.inductor_hook.dispatch.switch import disable, enable
from tilecast.inductor_hook.settings import Settings, active

__all__ = ["addmm", "bmm", "disable", "enable", "mm"]


def mm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """``torch.mm`` with the kernel that the model expects to be fastest, torch's own among them.

    Args:
        a: (m, k), of a GPU and dtype that there is a model for; the rest goes to ``torch.mm``.
        b: (k, n).
        out: (m, n), written to when given.
    """
    if out is None and _plain(a, b):
        return MM(a, b)
    return _dispatched(MM, (a, b), {}, out)


def bmm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """``torch.bmm`` likewise: (batch, m, k) by (batch, k, n) is (batch, m, n)."""
    if out is None and _plain(a, b):
        return BMM(a, b)
    return _dispatched(BMM, (a, b), {}, out)


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
    (`tilecast.inductor_hook.describe.layout.Addend.kind`); torch does the others.
    """
    if out is None and _plain(a, b, bias):
        return ADDMM(bias, a, b, alpha=alpha, beta=beta)
    return _dispatched(ADDMM, (bias, a, b), {"alpha": alpha, "beta": beta}, out)


@dataclass(frozen=True)
class Function:
    """An operator as a function of tilecast: how it is declared and run, and its gradients."""

    operator: Operator

    @property
    def name(self) -> str:
        """Name of the function, and of torch's."""
        return self.operator.name

    @property
    def torch(self) -> Callable[..., torch.Tensor]:
        """Torch's function of this name."""
        return getattr(torch, self.name)

    def __call__(
        self, *operands: torch.Tensor, out: torch.Tensor | None = None, **factors: float
    ) -> torch.Tensor:
        """The product of plain tensors, by a tilecast kernel or by torch."""
        request = self.operator.read[self.name](*operands, **factors)
        plan = _planner(active()).plan(request, out)
        if plan is None or (out is not None and _shared(request.bias, out)):
            return self.torch(*operands, **factors, out=out)
        return plan.launch(request, out)

    def save(
        self, ctx: Any, inputs: tuple, output: torch.Tensor, keyword_only_inputs: Any = None
    ) -> None:
        """Keep what `gradients` needs: of A and B what the other's gradient is made of."""
        *bias, a, b = inputs
        *_, wanted_a, wanted_b = ctx.needs_input_grad[: len(inputs)]
        ctx.save_for_backward(a if wanted_b else None, b if wanted_a else None)
        ctx.bias_shapes = [tensor.shape for tensor in bias]
        ctx.factors = keyword_only_inputs or {"alpha": 1, "beta": 1}

    def gradients(self, ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Of every operand that wants one."""
        a, b = ctx.saved_tensors
        alpha, beta = ctx.factors["alpha"], ctx.factors["beta"]
        *wanted_biases, wanted_a, wanted_b = ctx.needs_input_grad
        multiply = mm if self.operator.rank == 2 else bmm
        scaled = _times(gradient, alpha)
        return (
            *(
                _times(gradient.sum_to_size(shape), beta) if wanted else None
                for shape, wanted in zip(ctx.bias_shapes, wanted_biases, strict=True)
            ),
            multiply(scaled, b.mH) if wanted_a else None,
            multiply(a.mH, scaled) if wanted_b else None,
        )


FUNCTIONS = {name: Function(operator) for name, operator in OPERATORS.items() if operator.function}
MM, BMM, ADDMM = (FUNCTIONS[name] for name in ("mm", "bmm", "addmm"))


@cache
def _planner(settings: Settings | None) -> Planner:
    return Planner(settings=settings and replace(settings, k=1))


def _times(gradient: torch.Tensor, factor: float) -> torch.Tensor:
    """A gradient times a factor, without a kernel for a factor of 1."""
    return gradient if factor == 1 else gradient * factor


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
        if tensor.layout is not torch.strided:
            return False
        if recorded and tensor.requires_grad:
            return False
    return True


def _dispatched(
    function: Function,
    operands: tuple[torch.Tensor, ...],
    factors: dict[str, float],
    out: torch.Tensor | None,
) -> torch.Tensor:
    if out is not None and _plain(*operands, out):
        function(*operands, **factors, out=out)
        # PyTorch does not see what a kernel writes, and a gradient may need what was there.
        if not out.is_inference():
            increment_version(out)
        return out
    # An operator of a library has no rule for tangents, and would lose them; nor one for how a
    # subclass is sharded; nor any for sparse gradients.
    if (
        out is not None
        or forward_ad._current_level >= 0
        or any(map(is_traceable_wrapper_subclass, operands))
        or any(operand.layout is not torch.strided for operand in operands)
    ):
        return function.torch(*operands, **factors, out=out)
    return getattr(torch.ops.tilecast, function.name).default(*operands, **factors)


def _shared(bias: torch.Tensor | None, out: torch.Tensor) -> bool:
    """Whether the result may overwrite the bias before it is added."""
    return bias is not None and (
        bias.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
    )


def _define(library: torch.library.Library, function: Function) -> None:
    """Define an operator: how it runs, shapes, gradients, autocast."""
    name, parameters = function.name, "Tensor a, Tensor b"
    if function.operator.adds:
        parameters = "Tensor bias, Tensor a, Tensor b, *, float alpha=1., float beta=1."
    library.define(f"{name}({parameters}) -> Tensor")
    library.impl(name, function.__call__, "CompositeExplicitAutograd")
    # Torch's own operator knows what comes of operands without values.
    torch.library.register_fake(f"tilecast::{name}", function.torch, lib=library)
    torch.library.register_autograd(
        f"tilecast::{name}", function.gradients, setup_context=function.save, lib=library
    )
    for device in ("cuda", "cpu"):
        library.impl(name, _autocast(name, device), f"Autocast{device.upper()}")


def _autocast(name: str, device: str) -> Callable[..., torch.Tensor]:
    """An operator as it runs under autocast, which casts operands of the device as torch does.

    ``torch.library.register_autocast`` knows one dtype for ever, and no factors.
    """

    def run(*operands: torch.Tensor, **factors: float) -> torch.Tensor:
        dtype = torch.get_autocast_dtype(device)
        cast = (
            t.to(dtype)
            if t.device.type == device and t.is_floating_point() and t.dtype != torch.double
            else t
            for t in operands
        )
        with torch._C._DisableAutocast():
            return getattr(torch.ops.tilecast, name).default(*cast, **factors)

    return run


_LIBRARY = torch.library.Library("tilecast", "DEF")
"""Kept, because the operators go when it does."""
for _function in FUNCTIONS.values():
    _define(_LIBRARY, _function)
