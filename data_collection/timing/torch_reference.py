"""The call or calls of PyTorch that compute the product of some operands."""

# These operators of torch are not exported, and are what Inductor calls.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from tilecast.data_collection.gpu.environment import is_out_of_memory
from tilecast.data_collection.timing.tensors import applied, launch_tensors
from tilecast.heuristics.errors import one_line
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem, library_operator


def torch_launch(operands: GemmOperands) -> Callable[..., None]:
    """A function that writes the product of some operands to ``out``: f(a, b, out, *extras).

    It is one call where PyTorch has one: ``matmul``, ``addmm`` or ``baddbmm``,
    ``_addmm_activation``, ``_int_mm``, ``_scaled_mm``, ``_grouped_mm`` or ``_scaled_grouped_mm``.
    Else it is a call for the product, of a B that is converted where it is narrower than A, and one
    for each step of the epilogue, as in eager code. `GemmProblem.in_library` says which problems
    the calls accept.
    """
    names = [extra.name for extra in operands.extras]
    operator, done = library_operator(operands)

    def launch(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *extras) -> None:
        given = dict(zip(names, extras, strict=True))
        fast, steps = operands.acc.name == "fp22", operands.epilogue
        whole = out.new_empty(*out.shape[:-1], b.shape[-1]) if operands.gate else out
        _multiply(operator, steps[:done], fast, a, b, whole, given)
        for step in steps[done:]:
            target = out if step == operands.gate else whole
            target.copy_(applied(step, whole, given))

    return launch


def library_launch(operands: GemmOperands) -> Callable[..., torch.Tensor | None]:
    """What is timed as PyTorch's product of some operands; it takes what `torch_launch` takes.

    It is the same, but does not copy to ``out`` what products of groups can only allocate.
    """
    if not operands.groups or operands.epilogue:
        return torch_launch(operands)
    names, fast = [extra.name for extra in operands.extras], operands.acc.name == "fp22"
    return lambda a, b, out, *extras: _by_groups(
        fast, a, b, out.dtype, dict(zip(names, extras, strict=True))
    )


def torch_refusal(
    problem: GemmProblem, finish: Callable[[], None], device: str = "cuda"
) -> str | None:
    """Try PyTorch's call once: why it refuses a problem, in one line, or None.

    ``finish`` waits for the device, and raises if it is not usable any more.

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


def _by_groups(fast: bool, a, b, dtype: torch.dtype, given: dict) -> torch.Tensor:
    """What PyTorch computes of groups, with extras by name."""
    if "scale_a" not in given:
        return torch._grouped_mm(a, b, offs=given["offsets"])
    scales = given["scale_a"], given["scale_b"]
    return torch._scaled_grouped_mm(
        a, b, *scales, offs=given["offsets"], out_dtype=dtype, use_fast_accum=fast
    )


def _multiply(operator: str, steps: tuple[str, ...], fast: bool, a, b, out, given: dict) -> None:
    """Call a `library_operator`, which does some steps of the epilogue, with extras by name.

    ``fast`` says whether fp8 is added up as the tensor cores do, without promotion.
    """
    addmm = torch.addmm if a.ndim == 2 else torch.baddbmm
    match operator:
        case "_int_mm" if "scale_a" in given:
            scale_a = given["scale_a"]
            rows = scale_a if scale_a.numel() == 1 else scale_a[:, None]
            out.copy_(torch._int_mm(a, b) * rows * given["scale_b"])
        case "_int_mm":
            torch._int_mm(a, b, out=out)
        case "_scaled_mm":
            scale_a, scale_b = (given.get(name, _one(a.device)) for name in ("scale_a", "scale_b"))
            vectors = scale_a.dtype == torch.float32  # else those of blocks
            if vectors and (scale_a.numel() > 1 or scale_b.numel() > 1):
                scale_a, scale_b = scale_a[:, None], scale_b[None]
            torch._scaled_mm(
                a, b, scale_a=scale_a, scale_b=scale_b, bias=given["bias"] if steps else None,
                out_dtype=out.dtype, use_fast_accum=fast, out=out,
            )  # fmt: skip
        case "_grouped_mm" | "_scaled_grouped_mm":
            out.copy_(_by_groups(fast, a, b, out.dtype, given))
        case "_addmm_activation":
            gelu = steps[1] == "gelu-tanh"
            torch._addmm_activation(given["bias"], a, b, use_gelu=gelu, out=out)
        case "addmm" if steps[0] == "bias":
            addmm(given["bias"], a, b, out=out)
        case "addmm":
            numbers = {name: given.get(name, 1.0) for name in ("alpha", "beta")}
            addmm(given["c"], a, b, **numbers, out=out)
        case _:
            wide = b.to(a.dtype)
            if out.dtype == a.dtype:
                torch.matmul(a, wide, out=out)
            else:
                out.copy_(torch.matmul(a, wide))
            if "scale_b" in given:
                out.mul_(given["scale_b"])


@cache
def _one(device: torch.device) -> torch.Tensor:
    """A scale of 1, made once, as making it runs a kernel."""
    return torch.ones(1, device=device)
