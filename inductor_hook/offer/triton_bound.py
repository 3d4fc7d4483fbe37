"""Which of Inductor's own Triton configs cannot be as fast as what is expected of ours.

Triton's products have one CTA do all of k for a tile of the result. So a config's tile says how
much one SM has to multiply and to load at least, and what that takes at the least, before anything
is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch._inductor.select_algorithm import TritonTemplate

from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.problem import GemmProblem

SURE = 1.1
"""How many times what is expected of ours a bound has to be, as expectations err. Kernels take
more than the bound, too: of ours in one CTA a tile, half take more than three times as long."""
FASTEST = hardware("H200")
"""Whose SMs none of another Hopper GPU is faster than: its rates are the data sheets', not ones
that were measured."""
BOOST = 1.98 / 1.83
"""How much faster than the data sheets' rate an SM multiplies where few of them do: that rate is
4,096 FLOP a cycle at 1.83 GHz, and the card's clock goes up to 1.98 GHz (``clocks.max.sm`` of
nvidia-smi)."""
FLOPS_PER_BYTE = 4096 / 96
"""What an SM multiplies in bf16 while it loads a byte from level 2. Its tensor cores do 4,096 FLOP
a cycle at the data sheets' rate; the most that one of our kernels was seen to load is 93 bytes, of
44,050 measurements without clusters (tests/unit/inductor_hook/offer/test_triton_bound.py)."""


def least_microseconds(problem: GemmProblem, tile: tuple[int, int], gpu: Hardware) -> float:
    """A lower bound on the time of any kernel that uses a tile and does not split k.

    Args:
        problem: what it multiplies.
        tile: rows and columns of it.
        gpu: the GPU.
    """
    rows, columns = tile
    operands = problem.operands
    sm_flops = BOOST * FASTEST.peak(operands.a.dtype) / FASTEST.sm_count
    sm_bytes = FASTEST.peak_flops / FASTEST.sm_count / FLOPS_PER_BYTE
    tiles = math.ceil(problem.m / rows) * math.ceil(problem.n / columns) * problem.batch
    # Tensor cores multiply whole tiles, whatever is masked.
    multiplied = math.ceil(tiles / gpu.sm_count) * 2 * rows * columns * problem.k / sm_flops
    loaded = operands.a.dtype.bytes(min(rows, problem.m) * problem.k)
    loaded += operands.b.dtype.bytes(min(columns, problem.n) * problem.k)
    return 1e6 * max(multiplied, loaded / sm_bytes)


def pruned(
    choices: Sequence[Any], problem: GemmProblem, microseconds: float, gpu: Hardware
) -> list[Any]:
    """Those of Inductor's choices that may be faster than ours; the most promising always stays.

    Args:
        choices: `KernelTemplateChoice`, which generate nothing until they are asked to.
        problem: what they multiply.
        microseconds: what is expected of the best of ours.
        gpu: the GPU.
    """
    tiles = [_tile(choice) for choice in choices]
    bounds = [least_microseconds(problem, tile, gpu) if tile else 0.0 for tile in tiles]
    timed = [bound for bound, tile in zip(bounds, tiles, strict=True) if tile]
    limit = max(SURE * microseconds, min(timed, default=0.0))
    return [choice for choice, bound in zip(choices, bounds, strict=True) if bound <= limit]


def _tile(choice: Any) -> tuple[int, int] | None:
    """Rows and columns of a Triton config's tile; None of any other choice."""
    if not isinstance(choice.template, TritonTemplate):
        return None
    options = choice.params.to_kwargs()
    if not {"BLOCK_M", "BLOCK_N"} <= options.keys():
        return None
    return options["BLOCK_M"], options["BLOCK_N"]
