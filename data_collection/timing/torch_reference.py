"""The call or calls of PyTorch that compute the product of some operands."""

# These operators of torch are not exported, and are what Inductor calls.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from tilecast.data_collection.gpu.out_of_memory import is_out_of_memory
from tilecast.data_collection.timing.tensors import applied, launch_tensors
from tilecast.heuristics.errors import one_line
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem, library_operator


def torch_launch(operands: GemmOperands) -> Callable[..., None]:
    """A function that writes the product of some operands to ``out``: f(a, b, out, *extras).

    It is one call where PyTorch has one: ``matmul``, ``addmm`` or ``baddbmm``,
    ``_addmm_activation``, ``_int_mm`` or ``_scaled_mm``. Else it is a call for the product, of a B
    that is converted where it is narrower than A, and one for each step of the epilogue, as in
    eager code. `GemmProblem.in_library` says which problems the calls accept.
    """
    names = [extra.name for extra in operands.extras]
    operator, done = library_operator(operands)
    product, steps = _product(operator, done, operands), operands.epilogue[done:]

    def launch(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *extras) -> None:
        given = dict(zip(names, extras, strict=True))
        product(a, b, out, given)
        for step in steps:
            out.copy_(applied(step, out, given))

    return launch


def torch_refusal(
    problem: GemmProblem, finish: Callable[[], None], device: str = "cuda"
) -> str | None:
    """Try PyTorch's call once: why it refuses a problem, in one line, or None.

    Args:
        problem: what to multiply.
        finish: waits for the device; raises if it is not usable any more.
        device: where to try.

    Raises:
        RuntimeError: memory is short, or the device is not usable any more.
    """
    tensors = launch_tensors(problem, device)
    try:
        torch_launch(problem.operands)(*tensors)
    except (RuntimeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        finish()
        return one_line(error)
    finish()
    return None


def _product(operator: str, done: int, operands: GemmOperands) -> Callable[..., None]:
    """The call for the product and, in some operators, for steps of the epilogue."""
    match operator:
        case "_int_mm":
            return _scaled_int8 if operands.scales else _int8
        case "_scaled_mm":
            return _ScaledMM(operands.acc.name == "fp22", done == 1)
        case "_addmm_activation":
            return partial(_with_activation, operands.epilogue[1] == "gelu-tanh")
        case "addmm":
            return _with_bias if operands.epilogue[0] == "bias" else _with_matrix
    matmul = _matmul if operands.out.dtype == operands.a.dtype else _matmul_into_another_type
    return partial(_converted, matmul) if operands.converted else matmul


def _matmul(a, b, out, given) -> None:
    torch.matmul(a, b, out=out)


def _matmul_into_another_type(a, b, out, given) -> None:
    out.copy_(torch.matmul(a, b))


def _converted(matmul: Callable[..., None], a, b, out, given) -> None:
    matmul(a, b.to(a.dtype), out, given)
    if "scale_b" in given:
        out.mul_(given["scale_b"])


def _with_bias(a, b, out, given) -> None:
    _addmm(a)(given["bias"], a, b, out=out)


def _with_activation(gelu: bool, a, b, out, given) -> None:
    torch._addmm_activation(given["bias"], a, b, use_gelu=gelu, out=out)


def _with_matrix(a, b, out, given) -> None:
    numbers = {name: given.get(name, 1.0) for name in ("alpha", "beta")}
    _addmm(a)(given["c"], a, b, **numbers, out=out)


def _addmm(a: torch.Tensor) -> Callable[..., torch.Tensor]:
    """The operator that multiplies operands of A's rank and adds."""
    return torch.addmm if a.ndim == 2 else torch.baddbmm


def _int8(a, b, out, given) -> None:
    torch._int_mm(a, b, out=out)


def _scaled_int8(a, b, out, given) -> None:
    scale_a = given["scale_a"]
    rows = scale_a if scale_a.numel() == 1 else scale_a[:, None]
    out.copy_(torch._int_mm(a, b) * rows * given["scale_b"])


@dataclass
class _ScaledMM:
    """fp8, with or without scales."""

    fast: bool
    """Whether it accumulates as the tensor cores do, without promotion."""
    biased: bool
    """Whether it adds the bias."""
    _one: torch.Tensor | None = None
    """A scale of 1, made once, as making it runs a kernel."""

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
