"""The table of operators: every product that the hook knows, and how PyTorch is asked for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from tilecast.inductor_hook.describe.layout import Stored


class Product(NamedTuple):
    """What is asked for beside A and B."""

    rank: int = 2
    """Dimensions of A, B and the result."""
    out: torch.dtype | None = None
    """Type of the result; None for A's, which B then shares."""
    scales: tuple[Stored, ...] = ()
    """Those of A and B, or none."""
    fast: bool = True
    """``use_fast_accum`` of ``torch._scaled_mm``."""
    steps: tuple[str, ...] = ()
    """Those of the epilogue."""


class Request(NamedTuple):
    """A call of one of PyTorch's operators."""

    product: Product
    """What is asked for, without what is added."""
    a: torch.Tensor
    """In a graph that is being compiled it has no values, like all tensors below."""
    b: torch.Tensor
    bias: torch.Tensor | None = None
    alpha: float = 1
    """Factor of the product."""
    beta: float = 1
    """Factor of the bias."""
    scales: tuple[torch.Tensor, ...] = ()
    """Those of A and B, or none."""

    @property
    def values(self) -> dict[str, torch.Tensor | float | None]:
        """What there is beside A and B, by the names of the extras that it may be."""
        scale_a, scale_b = self.scales or (None, None)
        return {
            "scale_a": scale_a,
            "scale_b": scale_b,
            "alpha": self.alpha,
            "bias": self.bias,
            "c": self.bias,
            "beta": self.beta,
        }


Read = Callable[..., Any]
"""Makes a `Request` of the arguments of PyTorch's operator; None where no kernel does what they ask
for."""

_MM, _BMM, _INT_MM = Product(), Product(3), Product(out=torch.int32)


def _mm(a: torch.Tensor, b: torch.Tensor) -> Request:
    return Request(_MM, a, b)


def _bmm(a: torch.Tensor, b: torch.Tensor) -> Request:
    return Request(_BMM, a, b)


def _int_mm(a: torch.Tensor, b: torch.Tensor) -> Request:
    return Request(_INT_MM, a, b)


def _addmm(
    bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> Request:
    return Request(_MM, a, b, bias, alpha, beta)


def _scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Request | None:
    if out_dtype is None or scale_result is not None:
        return None
    product = Product(2, out_dtype, (Stored.of(scale_a), Stored.of(scale_b)), use_fast_accum)
    return Request(product, a, b, bias, scales=(scale_a, scale_b))


_RECIPES = ([0], [1])
"""``ScalingType`` of one number for all, and of one a row of A and a column of B."""


def _scaled_mm_v2(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: list[torch.Tensor],
    recipe_a: list[int],
    swizzle_a: list[int],
    scale_b: list[torch.Tensor],
    recipe_b: list[int],
    swizzle_b: list[int],
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Request | None:
    """What ``F.scaled_mm`` calls; scales that do not fit their recipe are PyTorch's to refuse."""
    known = recipe_a == recipe_b and recipe_a in _RECIPES and len(scale_a) == len(scale_b) == 1
    if not known or any((*swizzle_a, *swizzle_b)) or contraction_dim:
        return None
    one_each = scale_a[0].numel() == scale_b[0].numel() == 1
    if one_each != (recipe_a == _RECIPES[0]):
        return None
    return _scaled_mm(a, b, scale_a[0], scale_b[0], bias, None, out_dtype, use_fast_accum)


@dataclass(frozen=True)
class Operator:
    """One product, under the name that Inductor has for it."""

    name: str
    """Inductor's name."""
    inputs: tuple[str, ...]
    """Its tensors in Inductor's order; those beside A and B under the names of the extras that they
    may be. A bias at the end may be missing."""
    adds: bool = False
    """Whether it adds ``beta`` times anything that broadcasts to ``alpha`` times the product."""
    read: Mapping[str, Read] = field(default_factory=dict)
    """The operators of ``torch.ops.aten`` for it that the eager switch replaces and whose kernels
    `tilecast.inductor_hook.offer.precompile` starts, and how their arguments are read."""


OPERATORS = {
    operator.name: operator
    for operator in (
        Operator("mm", ("A", "B"), read={"mm": _mm}),
        Operator("bmm", ("A", "B"), read={"bmm": _bmm}),
        Operator("addmm", ("bias", "A", "B"), adds=True, read={"addmm": _addmm}),
        Operator("baddbmm", ("bias", "A", "B"), adds=True),
        Operator("int_mm", ("A", "B"), read={"_int_mm": _int_mm}),
        Operator(
            "scaled_mm",
            ("A", "B", "scale_a", "scale_b", "bias"),
            read={"_scaled_mm": _scaled_mm, "_scaled_mm_v2": _scaled_mm_v2},
        ),
    )
}
"""By Inductor's name."""
READERS = {name: read for operator in OPERATORS.values() for name, read in operator.read.items()}
"""How the arguments of an operator of ``torch.ops.aten`` are read, by its name."""
