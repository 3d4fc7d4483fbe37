"""Choices for products of groups, ``torch._grouped_mm``.

Inductor makes its own in the operator's lowering, without asking a handler: ATen's, Triton's and on
some GPUs others. Tilecast's join them where they are handed to the autotuner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.virtualized import V

from tilecast.data_collection.timing.tensors import group_ends
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.describe.product import GROUPS_OF
from tilecast.inductor_hook.offer.offer import beside

OPERATOR = "grouped_mm"
"""Inductor's name; ``_scaled_grouped_mm`` has another."""
ENDS = 2
"""Which operand says where groups end."""


class GroupedInputs(MMKernelInputs):
    """What is multiplied, with Inductor's layout of the result: it is not that of one product."""

    def __init__(self, nodes: list[Any], layout: Any):
        """Take A, B and where groups end."""
        super().__init__(nodes, None, layout.dtype, 0, 1)
        self._layout = layout

    def output_layout(self, flexible: bool = True) -> Any:
        """The layout, whether or not another would do."""
        return self._layout


def with_tilecast(
    op: str, choices: list[Any], nodes: list[Any], layout: Any, options: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Inductor's choices for a grouped product, and tilecast's.

    All of these are timed with groups that are as long as the collector's are. Inductor would have
    equal ones, in eights: of few rows in many groups most groups would get none, and what the
    others read would stay in the L2 cache.

    Args:
        op: Inductor's name of the operator.
        choices: Inductor's.
        nodes: the operands: A, B, and where the groups end.
        layout: of the result.
        options: what else the autotuner is called with, of which a copy is returned.
    """
    options = dict(options)
    if op != OPERATOR or tuple(len(node.get_size()) for node in nodes[:ENDS]) not in GROUPS_OF:
        return choices, options
    _ = V.choices  # which is bound when it is asked for, so that times are passed on
    every = beside(choices, GroupedInputs(nodes, layout), op)
    for caller in every[len(choices) :][:1]:
        options["input_gen_fns"] = makers(caller.choice.matmul.hint)
    return every, options


def makers(problem: GemmProblem) -> dict[int, Callable[[Any], torch.Tensor]]:
    """What makes operands that are not any numbers to time a product with: where groups end.

    The same each time, and without a draw from the user's generator.
    """

    def ends(node: Any) -> torch.Tensor:
        found = group_ends(problem.dealt, problem.batch, torch.Generator().manual_seed(0))
        return found.to(node.get_device(), node.get_dtype())

    return {ENDS: ends} if problem.operands.groups else {}
