"""Choices for products of grouped rows, ``torch._grouped_mm``.

Inductor makes its own in the operator's lowering, without asking a handler: ATen's, Triton's and on
some GPUs others. Tilecast's join them where they are handed to the autotuner.
"""

from __future__ import annotations

from typing import Any

from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.virtualized import V

from tilecast.inductor_hook.offer.offer import beside

OPERATOR = "grouped_mm"
"""Inductor's name; ``_scaled_grouped_mm`` has another."""


def with_tilecast(op: str, choices: list[Any], nodes: list[Any], layout: Any) -> list[Any]:
    """Inductor's choices for a grouped product, and tilecast's where it is one of groups of rows.

    Args:
        op: Inductor's name of the operator.
        choices: Inductor's.
        nodes: the operands; of groups of rows A, their matrices, and where they end.
        layout: of the result.
    """
    if op != OPERATOR or [len(node.get_size()) for node in nodes] != [2, 3, 1]:
        return choices
    _ = V.choices  # which is bound when it is asked for, so that times are passed on
    return beside(choices, MMKernelInputs(nodes, None, layout.dtype, 0, 1), op)
