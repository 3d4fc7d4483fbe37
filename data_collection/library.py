"""What PyTorch runs for the same operands: the one call that it has for them, or several."""

# These operators of torch are not exported, and are what Inductor calls.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable

import torch

from tilecast.data_collection.tensors import applied
from tilecast.heuristics.operands import GemmOperands

_ACTIVATED: dict[tuple[str, ...], bool] = {("bias", "relu"): False, ("bias", "gelu-tanh"): True}
"""Epilogues that cuBLAS has with a bias, and whether it is its gelu."""


def library_launch(operands: GemmOperands) -> Callable[..., None]:
    """What writes the product of some operands to ``out``: f(a, b, out, *extras).

    One library call where there is one: ``matmul``, ``addmm``, ``_addmm_activation``, ``_int_mm``,
    ``_scaled_mm``. Else the product by one and each step after it by its
    own, as eager code does.
    """
    names = [extra.name for extra in operands.extras]

    def launch(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *extras) -> None:
        given = dict(zip(names, extras, strict=True))
        steps = list(operands.epilogue)
        if operands.a.dtype.name == "int8":
            _int8(a, b, out, given, operands)
        elif operands.a.dtype.bits == 8:
            bias = given["bias"] if steps[:1] == ["bias"] else None
            steps = steps[1:] if bias is not None else steps
            _fp8(a, b, out, given, bias, operands)
        elif tuple(steps) in _ACTIVATED:
            torch._addmm_activation(given["bias"], a, b, use_gelu=_ACTIVATED[tuple(steps)], out=out)
            steps = []
        elif steps[:1] == ["bias"]:
            torch.addmm(given["bias"], a, b, out=out)
            steps = steps[1:]
        elif steps and set(steps) <= {"alpha", "c", "beta-c"}:
            numbers = {name: given.get(name, 1.0) for name in ("alpha", "beta")}
            torch.addmm(given["c"], a, b, **numbers, out=out)
            steps = []
        else:
            torch.matmul(a, b, out=out)
        for step in steps:
            out.copy_(applied(step, out, given))

    return launch


def _int8(a, b, out, given, operands) -> None:
    if not operands.scales:
        torch._int_mm(a, b, out=out)
        return
    scale_a = given["scale_a"]
    rows = scale_a if scale_a.numel() == 1 else scale_a[:, None]
    out.copy_(torch._int_mm(a, b) * rows * given["scale_b"])


def _fp8(a, b, out, given, bias, operands) -> None:
    one = torch.ones(1, device=a.device)
    scale_a, scale_b = given.get("scale_a", one), given.get("scale_b", one)
    if scale_a.numel() > 1 or scale_b.numel() > 1:
        scale_a, scale_b = scale_a[:, None], scale_b[None]
    torch._scaled_mm(
        a, b, scale_a=scale_a, scale_b=scale_b, bias=bias, out_dtype=out.dtype,
        use_fast_accum=operands.acc.name == "fp22", out=out,
    )  # fmt: skip
