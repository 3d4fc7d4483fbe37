"""Choices for products of grouped rows, ``torch._grouped_mm``.

Inductor makes its own in the operator's lowering, without asking a handler: ATen's, Triton's and on
some GPUs others. Tilecast's join them where they are handed to the autotuner.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.virtualized import V

from tilecast.inductor_hook.offer.offer import beside

OPERATOR = "grouped_mm"
"""Inductor's name; ``_scaled_grouped_mm`` has another."""


@cache
def wrapped(home: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    """A replacement for Inductor's `tilecast.inductor_hook.patch.torch_versions.GROUPED`."""

    @wraps(stock)
    def autotuned(
        op: str, choices: list[Any], nodes: list[Any], layout: Any, *rest: Any, **options: Any
    ) -> Any:
        # Groups of rows alone: a matrix of A, several of B, and where groups end.
        if op == OPERATOR and [len(node.get_size()) for node in nodes] == [2, 3, 1]:
            _ = V.choices  # which is bound when it is asked for, so that times are passed on
            inputs = MMKernelInputs(nodes, out_dtype=layout.dtype, mat1_idx=0, mat2_idx=1)
            choices = beside(choices, inputs, op)
        return stock(op, choices, nodes, layout, *rest, **options)

    return autotuned
