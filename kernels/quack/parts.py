"""A split of k whose parts lie in memory: what is multiplied, where, and how it is launched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilecast.heuristics.dtypes import dtype
from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.spec import KernelSpec

TOGETHER = 4
"""Elements of one thread of the kernel that adds up, which lie side by side: 16 bytes of each part.
Lines of a part have a multiple of them."""


def parts_of(operands: GemmOperands) -> GemmOperands:
    """The operands of the product of each part: float32 to memory, to which nothing is done yet."""
    return replace(operands, out=replace(operands.out, dtype=dtype("fp32")), scales="", epilogue=())


def launch_with_room(
    function: Callable[..., object], spec: KernelSpec, parts: int
) -> Callable[..., object]:
    """What launches such a kernel on every tile of all parts, with room for their sums.

    That goes back to PyTorch at once, which hands it to nobody but what comes later on the stream;
    a CUDA graph keeps it for itself.
    """
    import torch  # Only here: what compiles has none.

    along = -1 if spec.operands.out.major == "row" else -2

    def launch(a: Any, b: Any, out: Any, *extras: Any) -> object:
        length = out.shape[along]
        line = -(-length // TOGETHER) * TOGETHER
        size = parts * (out.numel() // length) * line
        room = torch.empty(size, dtype=torch.float32, device=out.device)
        return function(a, b, out, (*extras, room), 1)

    return launch
