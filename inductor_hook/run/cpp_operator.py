"""What generated C++ calls at run time: tilecast kernels as an operator of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from tilecast.heuristics.operands import GemmOperands
from tilecast.inductor_hook.describe.arguments import launch_arguments, tensor_names
from tilecast.inductor_hook.describe.layout import padded
from tilecast.inductor_hook.run.dynamic import DynamicMatmul
from tilecast.inductor_hook.run.static import StaticMatmul

_SCHEMA = (
    "launch(Tensor a, Tensor b, Tensor(x!) out, Tensor[] extras, str[] configs, str operands, "
    "str[] model, float alpha, float beta, bool untried=False) -> ()"
)


def launch(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    extras: Sequence[torch.Tensor],
    configs: Sequence[str],
    operands: str,
    model: Sequence[str],
    alpha: float,
    beta: float,
    untried: bool = False,
) -> None:
    """Write to ``out`` what one of some kernels makes of A and B, as a `StaticMatmul` does.

    Args:
        a: (m, k), or (batch, m, k); b and out likewise.
        b: B.
        out: the result.
        extras: those of the operands that are tensors, as the graph has them.
        configs: names; several where an extent is symbolic.
        operands: their text.
        model: folder, objective and digest of the model that picks by the extents of the call, and
            ``invariant`` if rows have to be the same in every batch;
            nothing where these are fixed.
        alpha: factor of the product.
        beta: factor of a matrix that the kernel adds.
        untried: whether nobody has run the kernel on such a GPU: its first result is checked.
    """
    any_rows = out.stride(-1) == 1 and out.stride(-2) % padded(1, out.itemsize) != 0
    matmul = _named(tuple(configs), operands, a.ndim == 3, any_rows, tuple(model), untried)
    kinds = GemmOperands.parse(operands).extras
    values = dict(zip(tensor_names(kinds), extras, strict=True))
    arguments = launch_arguments(kinds, values | {"alpha": alpha, "beta": beta})
    matmul(a, b, out, *arguments)


@cache
def _named(
    configs: tuple[str, ...],
    operands: str,
    batched: bool,
    any_rows: bool,
    model: tuple[str, ...],
    untried: bool,
) -> StaticMatmul | DynamicMatmul:
    if not model:
        (config,) = configs
        return StaticMatmul.named(config, operands, batched, any_rows, untried)
    folder, power, digest, *invariant = model
    return DynamicMatmul.named(
        *(configs, operands, batched, any_rows),
        **{"model": folder, "power": power, "digest": digest, "invariant": bool(invariant)},
    )


_LIBRARY = torch.library.Library("tilecast", "FRAGMENT")
"""Kept, because the operator goes when it does."""
_LIBRARY.define(_SCHEMA)
_LIBRARY.impl("launch", launch, "CompositeExplicitAutograd")
