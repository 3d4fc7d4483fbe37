"""PyTorch's own kernels in a model's order, or in their own where no model ranks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import telemetry

Choose = Callable[[GemmProblem, Sequence[Any], int], Sequence[Any]]
"""Takes a problem, the configs at hand and how many are wanted; returns the best, best first.
Raises `TilecastError` when no model knows the problem or the GPU."""

HOPPER = hardware("H200")
"""Any GPU of the architecture: pipelines are sized for sm_90, whatever the card."""


def in_order(
    found: Sequence[tuple[KernelConfig | None, Any]],
    problem: GemmProblem,
    count: int,
    choose: Choose,
) -> list[Any]:
    """The best ``count`` kernels, best first; those without a config come last, in their order.

    Each stands behind the config that stands for it and for no other, or None.

    Raises:
        TilecastError: no model knows the problem.
    """
    known = {config: kernel for config, kernel in found if config}
    unknown = [kernel for config, kernel in found if not config]
    ranking = choose(problem, list(known), count)
    return [*(known[config] for config in ranking), *unknown][:count]


def ranked_or_stock(
    kind: str, ranked: Callable[[], Sequence[Any]], stock: Callable[[], Sequence[Any]]
) -> Sequence[Any]:
    """What the model ranks, or, where that fails, PyTorch; a warning gives each reason.

    ``kind`` is PyTorch's name of the kernels.
    """
    try:
        return ranked()
    except Exception as error:
        telemetry.count(f"failed: ranking {kind} kernels")
        reason = telemetry.reason(error)
        telemetry.say_once(f"ranking {kind}", f"PyTorch ranks its own {kind} kernels: {reason}")
        return stock()
