"""The table of operators: every product that the hook knows, and how PyTorch is asked for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from tilecast.heuristics.dtypes import dtype_of_torch
from tilecast.heuristics.operands import K_GROUPS, ROW_GROUPS, GemmOperands, TensorSpec
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.describe.layout import Stored, ends_groups, padded, scaling

GROUPS_OF = {(2, 3): ROW_GROUPS, (2, 2): K_GROUPS}
"""Which groups ``torch._grouped_mm`` means, by the dimensions of A and B."""


class Product(NamedTuple):
    """What is asked for beside A and B."""

    rank: int = 2
    """Dimensions of A, B and the result; of groups, of one product."""
    out: torch.dtype | None = None
    """Type of the result; None for A's, which B then shares."""
    scales: tuple[Stored, ...] = ()
    """Those of A and B, or none."""
    fast: bool = True
    """``use_fast_accum`` of ``torch._scaled_mm``."""
    steps: tuple[str, ...] = ()
    """Those of the epilogue."""
    groups: str = ""
    """One of `GROUPS`; "" for none."""
    many: int = 1
    """How many groups there are."""

    @property
    def ranks(self) -> tuple[int, int]:
        """Dimensions of A and B."""
        found = (ranks for ranks, groups in GROUPS_OF.items() if groups == self.groups)
        return next(found, (self.rank, self.rank))

    def extents(self, a: Stored, b: Stored) -> tuple[int, ...]:
        """Those of the result."""
        batch = (self.many,) if self.groups == K_GROUPS else a.shape[:-2]
        return (*batch, a.shape[-2], b.shape[-1])

    def problem(
        self, a: Stored, b: Stored, out_strides: tuple[int, ...] | None = None
    ) -> GemmProblem:
        """What the model is asked; n is longer where TMA does not store rows of the result.

        ``out_strides`` are those of an ``out`` that the caller has.

        Raises:
            TilecastError: no kernel reads operands of these strides, types or scales.
        """
        *batch, m, k = a.shape
        if self.groups:
            batch = [self.many]
        n, out_dtype = b.shape[-1], self.out or a.dtype
        if out_strides:
            out = Stored((*batch, m, n), out_strides, out_dtype).spec("out")
        else:
            out = TensorSpec(dtype_of_torch(out_dtype), "row")
        operands = GemmOperands.product(a.spec("A"), b.spec("B"), out)
        if self.scales:
            groups = self.many if self.groups else None
            operands = operands.scaled(scaling(self.scales, m, n, k, groups), self.fast)
        operands = operands.grouped(self.groups)
        # PyTorch refuses int8 and fp8 with an n that TMA does not store, and threads store no
        # groups.
        fixed = out_strides or self.groups or a.dtype.itemsize == 1
        stored = n if fixed else padded(n, out_dtype.itemsize)
        return GemmProblem(m, stored, k, *batch, operands=operands.then(*self.steps))


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
    offsets: torch.Tensor | None = None
    """Where groups end."""

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
            "offsets": self.offsets,
        }


Read = Callable[..., Any]
"""Makes a `Request` of the arguments of PyTorch's operator; None where no kernel does what they ask
for."""

_MM = Product()


def _of_two(product: Product) -> Read:
    return lambda a, b: Request(product, a, b)


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


_ONE, _ROWS, _BLOCKS = (0, 0), (1, 0), (3, 1)
"""``ScalingType`` and ``SwizzleType`` of one number for all, of one a row of A and a column of B,
and of one for each 32 along k in swizzled tiles."""


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
    recipe = (*recipe_a, *(swizzle_a or (0,)))
    alike = recipe == (*recipe_b, *(swizzle_b or (0,))) and len(scale_a) == len(scale_b) == 1
    if not alike or recipe not in (_ONE, _ROWS, _BLOCKS) or contraction_dim:
        return None
    one_each = scale_a[0].numel() == scale_b[0].numel() == 1
    powers = scale_a[0].dtype == scale_b[0].dtype == torch.float8_e8m0fnu
    if one_each != (recipe == _ONE) or powers != (recipe == _BLOCKS):
        return None
    return _scaled_mm(a, b, scale_a[0], scale_b[0], bias, None, out_dtype, use_fast_accum)


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Request | None:
    """Of groups of rows, or along k as those of a weight's gradient are; others are a batch."""
    groups = GROUPS_OF.get((a.ndim, b.ndim))
    if not groups or offs is None or bias is not None or (out_dtype or a.dtype) != a.dtype:
        return None
    many = b.shape[0] if groups == ROW_GROUPS else offs.shape[0]
    # Torch says what is wrong.
    if not ends_groups(Stored.of(offs), many) or offs.device != a.device:
        return None
    return Request(Product(groups=groups, many=many), a, b, offsets=offs)


def _scaled_grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Request | None:
    found = _grouped_mm(a, b, offs, bias)
    if found is None or scale_result is not None:
        return None
    product = found.product._replace(
        out=out_dtype or torch.bfloat16,
        scales=(Stored.of(scale_a), Stored.of(scale_b)),
        fast=use_fast_accum,
    )
    return found._replace(product=product, scales=(scale_a, scale_b))


@dataclass(frozen=True)
class Operator:
    """One product, under the name that Inductor has for it."""

    inputs: tuple[str, ...]
    """Its tensors in Inductor's order; those beside A and B under the names of the extras that they
    may be. A bias at the end may be missing."""
    adds: bool = False
    """Whether it adds ``beta`` times anything that broadcasts to ``alpha`` times the product."""
    read: Mapping[str, Read] = field(default_factory=dict)
    """The operators of ``torch.ops.aten`` for it that the eager switch replaces and whose kernels
    `tilecast.inductor_hook.offer.precompile` starts, and how their arguments are read."""


OPERATORS = {
    "mm": Operator(("A", "B"), read={"mm": _of_two(_MM)}),
    "bmm": Operator(("A", "B"), read={"bmm": _of_two(Product(3))}),
    "addmm": Operator(("bias", "A", "B"), adds=True, read={"addmm": _addmm}),
    "baddbmm": Operator(("bias", "A", "B"), adds=True),
    "int_mm": Operator(("A", "B"), read={"_int_mm": _of_two(Product(out=torch.int32))}),
    "grouped_mm": Operator(("A", "B", "offsets"), read={"_grouped_mm": _grouped_mm}),
    "scaled_grouped_mm": Operator(
        ("A", "B", "scale_a", "scale_b", "offsets"),
        read={"_scaled_grouped_mm": _scaled_grouped_mm},
    ),
    "scaled_mm": Operator(
        ("A", "B", "scale_a", "scale_b", "bias"),
        read={"_scaled_mm": _scaled_mm, "_scaled_mm_v2": _scaled_mm_v2},
    ),
}
"""By Inductor's name."""
READERS = {name: read for operator in OPERATORS.values() for name, read in operator.read.items()}
"""How the arguments of an operator of ``torch.ops.aten`` are read, by its name."""
