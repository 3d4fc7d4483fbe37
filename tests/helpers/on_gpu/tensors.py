"""Operands of the hook's tests on a GPU, and how far a result is from the exact one."""

from __future__ import annotations

from collections.abc import Callable

import torch

M, N, K = 192, 1024, 512
"""Extents of most products."""
TOLERANCE = 1e-2
"""Rounding to bf16 costs 2^-8 = 0.4% at most, twice with a bias; a wrong element far more."""
ONE_ROUNDING = 2e-3
"""A normal product with a row loses 1.7e-3 of its norm to one rounding to bf16, 2.3e-3 to two."""

Function = Callable[..., torch.Tensor]


def bf16(*shape: int) -> torch.Tensor:
    """Normal numbers on the GPU."""
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """||found - expected|| / ||expected||; NaN where found has one."""
    difference = torch.linalg.vector_norm(found.double() - expected.double())
    return (difference / torch.linalg.vector_norm(expected.double())).item()


def exact(function: Function, *operands: torch.Tensor) -> torch.Tensor:
    """The result in float32, from the same views."""
    with torch.no_grad():
        return function(*(operand.float() for operand in operands))


def product_error(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> float:
    """`error` of a product, or of several."""
    return error(out, a.float() @ b.float())
