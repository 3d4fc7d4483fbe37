"""The eager switch: torch's products on a GPU run a tilecast kernel, or torch's own.

A kernel for the dispatch key of CUDA stands in for torch's, below everything that PyTorch does with
an operator before: gradients, autocast, transforms, tracing, subclasses. Variants with ``out=``
stay torch's, and with them the code that Inductor generates.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.describe.product import READERS, Read, Request
from tilecast.inductor_hook.dispatch.plan import Planner, multiplies_dtype
from tilecast.inductor_hook.patch import patching
from tilecast.inductor_hook.settings import unbenchmarked

_KEY = "CUDA"
_library: object | None = None
"""Keeps tilecast's kernels in place for as long as it lives; None while switched off."""


def enable(
    model: str | Path | None = None, *, power: str = "robust", invariant: bool = False
) -> None:
    """Let the model decide every eager product on a GPU, from now on and in all threads.

    ``torch.mm``, ``addmm``, ``bmm``, ``_int_mm``, ``_scaled_mm``, ``_grouped_mm`` and
    ``_scaled_grouped_mm``, and what PyTorch makes of them, such as ``F.linear``, ``F.scaled_mm``
    and ``matmul``, run a tilecast kernel if that is expected to be the fastest and is compiled. A
    missing one is compiled in the background, and torch does its problem until `decide_again`.
    Enabling again replaces the settings and decides anew.

    ``model``, ``power`` and ``invariant`` are those of `tilecast.inductor_hook.install`. If
    ``invariant``, a tilecast kernel runs wherever there is one, and the first call of a problem
    waits until it is compiled.

    Raises:
        TilecastError: an argument is not allowed, or PyTorch is built without CUDA.
    """
    global _library
    settings = unbenchmarked(model, power, invariant)
    planner = Planner(logging.INFO, settings, waits=invariant)
    disable()
    kernels = {
        name: _kernel(
            planner,
            read,
            _warning(name, patching.stock_kernel(name, _KEY), invariant),
            in_python=_in_python(name, _KEY),
        )
        for name, read in READERS.items()
    }
    _library = patching.replace_kernels(kernels, _KEY)


def disable() -> None:
    """Give torch its kernels back; nothing to do when it has them."""
    global _library
    _library = None


def _warning(name: str, stock: Callable[..., Any], invariant: bool) -> Callable[..., Any]:
    """Torch's kernel; if ``invariant`` one that warns of its rows once for each type."""
    if not invariant:
        return stock

    def run(*operands: Any, **options: Any) -> Any:
        result = stock(*operands, **options)
        a = operands[name == "addmm"]
        # With a k of 1 nothing is added up.
        if result.numel() and a.shape[-1] > 1:
            telemetry.say_once(
                "not invariant",
                f"torch does some {name} of {result.dtype}, so its rows may have other bits in "
                "another batch; logging at INFO says why",
            )
        return result

    return run


def _result(planner: Planner, request: Request | None) -> torch.Tensor | None:
    """The result of a tilecast kernel; None where torch does it."""
    if request is None:
        return None
    device = request.a.get_device()
    if any(scale.get_device() != device for scale in request.scales):
        return None
    return planner.multiply(request)


@cache
def _in_python(name: str, key: str) -> bool:
    """Whether torch's kernel of an operator is written in Python; asked before it is replaced."""
    return f"aten/{name}/{key}" in torch.library._impls


def _kernel(
    planner: Planner, read: Read, stock: Callable[..., torch.Tensor], *, in_python: bool
) -> Callable:
    """The replacement of an operator's kernel, which may be written in Python.

    Under a mode or a subclass, PyTorch runs the kernel that was registered last in place of every
    kernel that is written in Python, even after it was removed. So this one may be asked again when
    it calls torch's kernel, and must then not choose a second time.
    """

    def run(*operands: Any, **options: Any) -> torch.Tensor:
        # The quickest checks first: each call of torch's own pays for them.
        if not _library or not multiplies_dtype(planner, operands[0].dtype):
            return stock(*operands, **options)
        result = _result(planner, read(*operands, **options))
        return stock(*operands, **options) if result is None else result

    def above_python(*operands: Any, **options: Any) -> torch.Tensor:
        # Some of torch's get the dispatch keys.
        if isinstance(operands[0], torch._C.DispatchKeySet):
            operands = operands[1:]
        operands = tuple(map(_bare, operands))
        if torch._C._len_torch_dispatch_stack():
            with _disable_current_modes():
                return run(*operands, **options)
        return run(*operands, **options)

    return above_python if in_python else run


def _bare(operand: Any) -> Any:
    """An operand without its subclass, which PyTorch would ask in Python."""
    python = torch._C.DispatchKey.Python
    if type(operand) is torch.Tensor or not isinstance(operand, torch.Tensor):
        return operand
    if not torch._C._dispatch_keys(operand).has(python):
        return operand
    return torch.Tensor._make_subclass(torch.Tensor, operand)
