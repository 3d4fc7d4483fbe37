"""Multiplications without tuning: ``tilecast::mm``, ``addmm`` and ``bmm``, which the model decides.

`enable` has it decide torch's own instead, in code that knows nothing of us. The model is the one
that `tilecast.inductor_hook.install` was given, or else the environment names.

The functions here are the quick way to the operators: a plain call on plain tensors skips PyTorch's
dispatcher, which costs more in Python than choosing and launching do.
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

from tilecast.heuristics.errors import TilecastError
from tilecast.inductor_hook.dispatch.plan import Planner, Product
from tilecast.inductor_hook.dispatch.switch import disable, enable
from tilecast.inductor_hook.settings import Settings, active

__all__ = ["addmm", "bmm", "disable", "enable", "mm"]


def mm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """``torch.mm`` with the kernel that the model expects to be fastest, torch's own among them.

    Args:
        a: (m, k), of a GPU and dtype that there is a model for; the rest goes to ``torch.mm``.
        b: (k, n).
        out: (m, n), written to when given.

    Returns:
        (m, n).
    """
    if out is None and _plain(a, b):
        return MM.multiply(a, b)
    return _dispatched(MM, (a, b), {}, out)


def bmm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """``torch.bmm`` likewise: (batch, m, k) by (batch, k, n) is (batch, m, n)."""
    if out is None and _plain(a, b):
        return BMM.multiply(a, b)
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

    Our kernel adds a row, and a matrix if the model knows such kernels
    (`tilecast.inductor_hook.describe.layout.Addend.kind`); torch does the others.

    Args:
        bias: broadcastable to (m, n).
        a: (m, k).
        b: (k, n).
        alpha: factor of the product.
        beta: factor of the bias.
        out: (m, n), written to when given.

    Returns:
        (m, n).
    """
    if out is None and _plain(a, b, bias):
        return ADDMM.add(bias, a, b, alpha=alpha, beta=beta)
    return _dispatched(ADDMM, (bias, a, b), {"alpha": alpha, "beta": beta}, out)


@dataclass(frozen=True)
class Operator:
    """A multiplication as torch offers it: how it is declared and run, and its gradients."""

    name: str
    """What torch calls it, which does what no kernel of ours does."""
    product: Product
    """What it multiplies, without a bias."""
    biased: bool = False
    """Whether a bias comes before A and B, and factors after them."""

    def multiply(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """A @ B."""
        plan = _planner(active()).plan(self.product, a, b, out)
        if plan is None:
            return getattr(torch, self.name)(a, b, out=out)
        return plan.launch(a, b, out)

    def add(
        self,
        bias: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        *,
        alpha: float = 1,
        beta: float = 1,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The same times ``alpha``, and ``beta`` times the bias."""
        plan = _planner(active()).plan(self.product, a, b, out, bias, alpha, beta)
        if plan and not _shared(bias, out):
            return plan.launch(a, b, out, *plan.added(bias, alpha, beta))
        return getattr(torch, self.name)(bias, a, b, alpha=alpha, beta=beta, out=out)

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
        multiply = mm if self.product.rank == 2 else bmm
        scaled = _times(gradient, alpha)
        return (
            *(
                _times(gradient.sum_to_size(shape), beta) if wanted else None
                for shape, wanted in zip(ctx.bias_shapes, wanted_biases, strict=True)
            ),
            multiply(scaled, b.mH) if wanted_a else None,
            multiply(a.mH, scaled) if wanted_b else None,
        )


MM, BMM, ADDMM = OPERATORS = (
    Operator("mm", Product()),
    Operator("bmm", Product(3)),
    Operator("addmm", Product(), biased=True),
)


@cache
def _planner(settings: Settings | None) -> Planner:
    """The planner of those settings, or of the environment's."""
    return Planner(settings=settings and replace(settings, k=1))


def _times(gradient: torch.Tensor, factor: float) -> torch.Tensor:
    """A gradient times a factor, without a kernel for a factor of 1."""
    return gradient if factor == 1 else gradient * factor


def _plain(*tensors: torch.Tensor) -> bool:
    """Whether nothing of PyTorch wants to see what is done with some tensors."""
    if (
        torch.compiler.is_dynamo_compiling()
        or torch.is_autocast_enabled()  # on CUDA; told which device, it takes twice as long
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
    operator: Operator,
    operands: tuple[torch.Tensor, ...],
    factors: dict[str, float],
    out: torch.Tensor | None,
) -> torch.Tensor:
    # An operator of a library has no rule for tangents, and would lose them; nor one for how a
    # subclass is sharded, whose own tensors come to us where torch's operators are ours; nor any
    # for sparse gradients.
    if (
        forward_ad._current_level >= 0
        or any(map(is_traceable_wrapper_subclass, operands))
        or any(operand.layout is not torch.strided for operand in operands)
    ):
        return getattr(torch, operator.name)(*operands, **factors, out=out)
    op = getattr(torch.ops.tilecast, operator.name)
    if out is None:
        return op.default(*operands, **factors)
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*operands, out)):
        raise TilecastError(
            "out= is given and an operand requires a gradient; allowed: one of the two; "
            "leave out= away or enter torch.no_grad()"
        )
    op.out(*operands, **factors, out=out)
    return out


def _shared(bias: torch.Tensor, out: torch.Tensor | None) -> bool:
    """Whether the result may overwrite the bias before it is added."""
    return out is not None and (
        bias.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
    )


def _define(library: torch.library.Library, operator: Operator) -> None:
    """Define an operator and its out variant: how they run, shapes, gradients, autocast."""
    name, run = operator.name, operator.add if operator.biased else operator.multiply

    def run_out(*operands: torch.Tensor, out: torch.Tensor, **options: Any) -> None:
        run(*operands, out=out, **options)
        # PyTorch does not see what a kernel of ours writes, and a gradient may need what was there.
        if not out.is_inference():
            increment_version(out)

    parameters, written = "Tensor a, Tensor b", "*, Tensor(a!) out"
    if operator.biased:
        parameters = "Tensor bias, Tensor a, Tensor b, *, float alpha=1., float beta=1."
        written = "Tensor(a!) out"
    library.define(f"{name}({parameters}) -> Tensor")
    library.define(f"{name}.out({parameters}, {written}) -> ()")
    library.impl(name, run, "CompositeExplicitAutograd")
    library.impl(f"{name}.out", run_out, "CompositeExplicitAutograd")
    # Torch's own operator knows what comes of operands without values.
    torch.library.register_fake(f"tilecast::{name}", getattr(torch, name), lib=library)
    torch.library.register_fake(f"tilecast::{name}.out", lambda *_, **__: None, lib=library)
    torch.library.register_autograd(
        f"tilecast::{name}", operator.gradients, setup_context=operator.save, lib=library
    )
    for device in ("cuda", "cpu"):
        library.impl(name, _autocast(name, device), f"Autocast{device.upper()}")


def _autocast(name: str, device: str) -> Callable[..., torch.Tensor]:
    """An operator as it runs under autocast, which casts operands of the device as torch does.

    Not by ``torch.library.register_autocast``, which knows one dtype for ever, and no factors. An
    out variant is left alone, as torch leaves its own. The cast of a weight is not kept for the
    next call, as torch's is.
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
for _operator in OPERATORS:
    _define(_LIBRARY, _operator)
