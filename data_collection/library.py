"""What PyTorch runs for the same operands: the one call that it has for them, or several."""

# These operators of torch are not exported, and are what Inductor calls.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from tilecast.data_collection.tensors import applied
from tilecast.heuristics.operands import GemmOperands

_RELU, _GELU = ("bias", "relu"), ("bias", "gelu-tanh")
"""Activations that cuBLAS has with a bias."""
_ADDED = (("c",), ("beta-c",), ("alpha", "c"), ("alpha", "beta-c"))
"""What ``addmm`` does with a matrix."""


def library_launch(operands: GemmOperands) -> Callable[..., None]:
    """What writes the product of some operands to ``out``: f(a, b, out, *extras).

    One library call where there is one: ``matmul``, ``addmm``, ``_addmm_activation``, ``_int_mm``
    or ``_scaled_mm``. Else the product by one, of a B that is converted where it is narrower than
    A, and each step after it by its own, as eager code does. The calls take what PyTorch takes:
    `_int_mm` more than 16 rows, those with a bias or a matrix no batch.
    """
    names = [extra.name for extra in operands.extras]
    product, steps = _product(operands)

    def launch(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *extras) -> None:
        given = dict(zip(names, extras, strict=True))
        product(a, b, out, given)
        for step in steps:
            out.copy_(applied(step, out, given))

    return launch


def _product(operands: GemmOperands) -> tuple[Callable[..., None], tuple[str, ...]]:
    """The call that begins, and the steps that it leaves."""
    steps = operands.epilogue
    first, rest = steps[:1], steps[1:]
    matmul = _matmul if operands.out.dtype == operands.a.dtype else _matmul_into_another_type
    if operands.b.dtype.bits < operands.a.dtype.bits:
        return partial(_converted, matmul), steps
    if operands.a.dtype.name == "int8":
        return (_scaled_int8 if operands.scales else _int8), steps
    if operands.a.dtype.bits == 8:
        biased = first == ("bias",)
        return _ScaledMM(operands.acc.name == "fp22", biased), (rest if biased else steps)
    if matmul is _matmul_into_another_type:
        return matmul, steps
    if steps in (_RELU, _GELU):
        return partial(_with_activation, steps == _GELU), ()
    if first == ("bias",):
        return _with_bias, rest
    if steps in _ADDED:
        return _with_matrix, ()
    return matmul, steps


def _matmul(a, b, out, given) -> None:
    torch.matmul(a, b, out=out)


def _matmul_into_another_type(a, b, out, given) -> None:
    out.copy_(torch.matmul(a, b))


def _converted(matmul: Callable[..., None], a, b, out, given) -> None:
    matmul(a, b.to(a.dtype), out, given)
    if "scale_b" in given:
        out.mul_(given["scale_b"])


def _with_bias(a, b, out, given) -> None:
    torch.addmm(given["bias"], a, b, out=out)


def _with_activation(gelu: bool, a, b, out, given) -> None:
    torch._addmm_activation(given["bias"], a, b, use_gelu=gelu, out=out)


def _with_matrix(a, b, out, given) -> None:
    numbers = {name: given.get(name, 1.0) for name in ("alpha", "beta")}
    torch.addmm(given["c"], a, b, **numbers, out=out)


def _int8(a, b, out, given) -> None:
    torch._int_mm(a, b, out=out)


def _scaled_int8(a, b, out, given) -> None:
    scale_a = given["scale_a"]
    rows = scale_a if scale_a.numel() == 1 else scale_a[:, None]
    out.copy_(torch._int_mm(a, b) * rows * given["scale_b"])


@dataclass
class _ScaledMM:
    """fp8 with whatever scales there are."""

    fast: bool
    """Whether it adds up as the tensor cores do, without promotion."""
    biased: bool
    """Whether it adds the bias."""
    _one: torch.Tensor | None = None
    """A scale of 1, made once: to make it is a kernel of its own."""

    def __call__(self, a, b, out, given) -> None:
        if "scale_a" in given:
            scale_a, scale_b = given["scale_a"], given["scale_b"]
        else:
            if self._one is None:
                self._one = torch.ones(1, device=a.device)
            scale_a = scale_b = self._one
        if scale_a.numel() > 1 or scale_b.numel() > 1:
            scale_a, scale_b = scale_a[:, None], scale_b[None]
        bias = given["bias"] if self.biased else None
        torch._scaled_mm(
            a, b, scale_a=scale_a, scale_b=scale_b, bias=bias, out_dtype=out.dtype,
            use_fast_accum=self.fast, out=out,
        )  # fmt: skip
