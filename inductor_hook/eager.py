"""Multiplications without tuning: ``tilecast::mm``, ``addmm`` and ``bmm``, which the model decides.

The functions here are the quick way to the operators: a plain call on plain tensors skips PyTorch's
dispatcher, which costs more in Python than choosing and launching do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import ALIGNMENT_BYTES, GemmOperands, GemmProblem
from tilecast.inductor_hook import report
from tilecast.inductor_hook.launcher import StaticMatmul, add_bias, adds
from tilecast.inductor_hook.layout import major
from tilecast.inductor_hook.selection import Settings, gpu_of, shortlist
from tilecast.kernels.spec import KernelSpec

_REMEMBERED = 4096
"""Problems whose kernel is kept, those used last."""


class Plan(NamedTuple):
    """How a multiplication is done."""

    kernel: StaticMatmul
    """The kernel."""
    shape: tuple[int, ...]
    """Shape of its result."""


def mm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """``torch.mm`` with the kernel that the model expects to be fastest.

    Args:
        a: (m, k), of a GPU and dtype that there is a model for; the rest goes to ``torch.mm``.
        b: (k, n).
        out: (m, n), written to when given.

    Returns:
        (m, n).
    """
    if out is None and _plain(a) and _plain(b):
        return _product(torch.mm, a, b)
    return _dispatched(torch.ops.tilecast.mm, torch.mm, (a, b), {}, out)


def bmm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """``torch.bmm`` likewise: (batch, m, k) by (batch, k, n) is (batch, m, n)."""
    if out is None and _plain(a) and _plain(b):
        return _product(torch.bmm, a, b)
    return _dispatched(torch.ops.tilecast.bmm, torch.bmm, (a, b), {}, out)


def addmm(
    bias: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    alpha: float = 1,
    beta: float = 1,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``torch.addmm`` likewise: ``beta * bias + alpha * a @ b``, summed after the product.

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
    factors = {"alpha": alpha, "beta": beta}
    if out is None and _plain(a) and _plain(b) and _plain(bias):
        return _addmm(bias, a, b, **factors)
    return _dispatched(torch.ops.tilecast.addmm, torch.addmm, (bias, a, b), factors, out)


def _plain(tensor: torch.Tensor) -> bool:
    """Whether nothing of PyTorch wants to see what is done with a tensor."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.is_cuda
        and not (tensor.requires_grad and torch.is_grad_enabled())
        and not torch.compiler.is_compiling()
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def _dispatched(
    op: Any,
    stock: Callable[..., torch.Tensor],
    operands: tuple[torch.Tensor, ...],
    factors: dict[str, float],
    out: torch.Tensor | None,
) -> torch.Tensor:
    if forward_ad._current_level >= 0:
        # An operator of a library has no rule for tangents, and would lose them.
        return stock(*operands, **factors, out=out)
    if out is None:
        return op.default(*operands, **factors)
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*operands, out)):
        raise TilecastError(
            "out= is given and an operand requires a gradient; allowed: one of the two; "
            "leave out= away or enter torch.no_grad()"
        )
    op.out(*operands, **factors, out=out)
    return out


def _product(stock: Callable[..., torch.Tensor], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    plan = _plan(a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.get_device())
    if plan is None or not _aligned(a, b):
        return stock(a, b)
    out = a.new_empty(plan.shape)
    _launch(plan.kernel, a, b, out)
    return out


def _product_out(
    stock: Callable[..., torch.Tensor], a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor
) -> None:
    plan = _plan_into(a, b, out)
    if plan is None:
        stock(a, b, out=out)
    else:
        _launch(plan.kernel, a, b, out)


def _mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _product(torch.mm, a, b)


def _mm_out(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    _product_out(torch.mm, a, b, out=out)


def _bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _product(torch.bmm, a, b)


def _bmm_out(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    _product_out(torch.bmm, a, b, out=out)


def _addmm(
    bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, alpha: float = 1, beta: float = 1
) -> torch.Tensor:
    plan = _plan(a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.get_device())
    if plan is None or not _aligned(a, b) or not _adds(bias, plan.shape, a.dtype, alpha, beta):
        return torch.addmm(bias, a, b, alpha=alpha, beta=beta)
    out = a.new_empty(plan.shape)
    _launch(plan.kernel, a, b, out)
    add_bias(out, bias, alpha, beta)
    return out


def _addmm_out(
    bias: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    alpha: float = 1,
    beta: float = 1,
    out: torch.Tensor,
) -> None:
    plan = _plan_into(a, b, out)
    # A bias that shares the output's memory would be overwritten before it is added.
    shared = bias.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
    if plan is None or shared or not _adds(bias, plan.shape, a.dtype, alpha, beta):
        torch.addmm(bias, a, b, alpha=alpha, beta=beta, out=out)
    else:
        _launch(plan.kernel, a, b, out)
        add_bias(out, bias, alpha, beta)


def _adds(
    bias: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, alpha: float, beta: float
) -> bool:
    """Whether `add_bias` can add this; torch refuses the rest, or does it."""
    broadcasts = all(
        have in (1, want) for have, want in zip(reversed(bias.shape), reversed(shape), strict=False)
    )
    return adds(alpha, beta) and bias.dtype == dtype and bias.ndim <= 2 and broadcasts


def _aligned(*operands: torch.Tensor) -> bool:
    """Whether TMA can read operands from where they start."""
    start = 0
    for operand in operands:
        start |= operand.data_ptr()
    if start % ALIGNMENT_BYTES == 0:
        return True
    report.say_once(
        "alignment",
        f"a multiplication goes to torch, as others like it: an operand starts at no multiple of "
        f"{ALIGNMENT_BYTES} bytes",
    )
    return False


def _launch(kernel: StaticMatmul, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    if torch._C._cuda_getDevice() == a.get_device():
        kernel(a, b, out)
    else:
        with torch.cuda.device(a.get_device()):
            kernel(a, b, out)


def _plan_into(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Plan | None:
    plan = _plan(
        a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.get_device(), out.stride()
    )
    # Any other output is refused or resized by torch, in its own words.
    fits = plan and out.shape == plan.shape and out.dtype == a.dtype and out.device == a.device
    return plan if fits and _aligned(a, b, out) else None


@lru_cache(_REMEMBERED)
def _plan(
    a_shape: tuple[int, ...],
    b_shape: tuple[int, ...],
    a_stride: tuple[int, ...],
    b_stride: tuple[int, ...],
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    device: int,
    out_stride: tuple[int, ...] | None = None,
) -> Plan | None:
    """How operands of these shapes and strides are multiplied; None where torch does it."""
    matching = a_dtype == b_dtype and a_shape[-1] == b_shape[-2] and a_shape[:-2] == b_shape[:-2]
    if not matching:
        return None  # torch says what is wrong
    shape = (*a_shape[:-1], b_shape[-1])
    dtype = str(a_dtype).removeprefix("torch.")
    batched = len(shape) == 3
    try:
        if device < 0:
            raise TilecastError("its operands are not on a GPU")
        operands = GemmOperands(
            dtype,
            dtype,
            "float32",
            major("A", a_stride),
            major("B", b_stride),
            major("out", out_stride) if out_stride else "row",
        )
        batch = shape[0] if batched else 1
        problem = GemmProblem(shape[-2], shape[-1], a_shape[-1], batch, operands)
        gpu = gpu_of(device)
        config = shortlist(Settings(k=1), problem, gpu)[0].config
    except TilecastError as error:
        report.say_once("eager", f"a multiplication goes to torch, as others like it: {error}")
        return None
    # Whatever goes wrong in here, torch multiplies.
    except Exception as error:
        report.warn_once("choosing a kernel", error)
        return None
    return Plan(StaticMatmul(KernelSpec(config, operands, batched, gpu.arch)), shape)


def _mm_shape(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    torch._check(a.ndim == b.ndim == 2, lambda: f"mm of {a.ndim} and {b.ndim} dimensions, not 2")
    torch._check(a.shape[1] == b.shape[0], lambda: f"mm of {tuple(a.shape)} by {tuple(b.shape)}")
    return a.new_empty((a.shape[0], b.shape[1]))


def _bmm_shape(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    torch._check(a.ndim == b.ndim == 3, lambda: f"bmm of {a.ndim} and {b.ndim} dimensions, not 3")
    torch._check(
        a.shape[0] == b.shape[0] and a.shape[2] == b.shape[1],
        lambda: f"bmm of {tuple(a.shape)} by {tuple(b.shape)}",
    )
    return a.new_empty((*a.shape[:2], b.shape[2]))


def _addmm_shape(
    bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, alpha: float = 1, beta: float = 1
) -> torch.Tensor:
    out = _mm_shape(a, b)
    bias.expand(out.shape)  # raises where it cannot be added
    return out


def _written(*operands: torch.Tensor, **kwargs: Any) -> None:
    """What an out variant returns: nothing."""


def _save_product(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _product_gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    a, b = ctx.saved_tensors
    multiply = mm if a.ndim == 2 else bmm
    wanted_a, wanted_b = ctx.needs_input_grad
    return (
        multiply(gradient, b.mT) if wanted_a else None,
        multiply(a.mT, gradient) if wanted_b else None,
    )


def _save_addmm(ctx: Any, inputs: tuple, keyword_only_inputs: dict, output: torch.Tensor) -> None:
    bias, a, b = inputs
    ctx.save_for_backward(a, b)
    ctx.bias_shape = bias.shape
    ctx.alpha, ctx.beta = keyword_only_inputs["alpha"], keyword_only_inputs["beta"]


def _addmm_gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    a, b = ctx.saved_tensors
    wanted_bias, wanted_a, wanted_b = ctx.needs_input_grad
    scaled = gradient if ctx.alpha == 1 else gradient * ctx.alpha
    return (
        gradient.sum_to_size(ctx.bias_shape) * ctx.beta if wanted_bias else None,
        mm(scaled, b.mT) if wanted_a else None,
        mm(a.mT, scaled) if wanted_b else None,
    )


def _register() -> torch.library.Library:
    """Define the operators: kernels for CUDA, torch's for the rest, shapes, gradients."""
    library = torch.library.Library("tilecast", "DEF")
    product = "(Tensor a, Tensor b{}) -> {}"
    addition = "(Tensor bias, Tensor a, Tensor b, *, float alpha=1., float beta=1.{}) -> {}"
    written = "Tensor(a!) out"
    for name, schema, separator, kernel, kernel_out, shape in (
        ("mm", product, ", *, ", _mm, _mm_out, _mm_shape),
        ("bmm", product, ", *, ", _bmm, _bmm_out, _bmm_shape),
        ("addmm", addition, ", ", _addmm, _addmm_out, _addmm_shape),
    ):
        library.define(name + schema.format("", "Tensor"))
        library.define(f"{name}.out" + schema.format(separator + written, "()"))
        library.impl(name, kernel, "CompositeExplicitAutograd")
        library.impl(f"{name}.out", kernel_out, "CompositeExplicitAutograd")
        torch.library.register_fake(f"tilecast::{name}", shape, lib=library)
        torch.library.register_fake(f"tilecast::{name}.out", _written, lib=library)
    for name in ("mm", "bmm"):
        torch.library.register_autograd(
            f"tilecast::{name}", _product_gradients, setup_context=_save_product, lib=library
        )
    torch.library.register_autograd(
        "tilecast::addmm", _addmm_gradients, setup_context=_save_addmm, lib=library
    )
    return library


_LIBRARY = _register()
"""Kept, because the operators go when it does."""
