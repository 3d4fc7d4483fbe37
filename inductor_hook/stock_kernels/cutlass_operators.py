"""tilecast as a heuristic of ``cutlass.operators``, NVIDIA's library of CuTe DSL kernels.

That library takes heuristics by name. The one that it brings ranks no kernel of Hopper.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.settings import Settings, unbenchmarked
from tilecast.inductor_hook.stock_kernels.nvgemm import rank_kernels
from tilecast.models.runtime.objectives import ROBUST

NAME = "tilecast"
"""What ``cutlass.operators.get_heuristic`` finds it by."""


def register() -> type:
    """Register the heuristic as `NAME` and return its class.

    Its instances take the place of ``heuristic`` of ``cutlass.operators.get_operators``. They rank
    dense products on Hopper, and raise `TilecastError` for any other.

    Raises:
        ImportError: ``cutlass.operators`` is not installed.
    """
    library: Any = import_module("cutlass.operators")

    class Tilecast(library.Heuristic):
        """Orders operators by a trained model; those that it does not know come last."""

        def __init__(
            self, gpu: str | None = None, model: str | Path | None = None, power: str = ROBUST
        ):
            """Take what the model is chosen by.

            Args:
                gpu: name of the GPU, such as ``H200``; the current one when left out.
                model: folder of a model; the shipped ones when left out.
                power: the regime to aim at.

            Raises:
                TilecastError: one of them is not allowed.
            """
            self.settings = unbenchmarked(model, power)
            self.gpu = hardware(gpu) if gpu else None

        def rank(
            self,
            args: Any,
            operators: list[Any],
            *,
            target_sm: Any = None,
            limit: int | None = None,
        ) -> list[Any]:
            """The operators, best first; see ``cutlass.operators.Heuristic.rank``."""
            if not operators:
                return []
            if not isinstance(args, library.GemmArguments):
                raise TilecastError(
                    f"the arguments are {type(args).__name__}; allowed: GemmArguments; leave the "
                    "heuristic out"
                )
            gpu = self.gpu or _current_gpu(self.settings)

            def choose(
                problem: GemmProblem, configs: Sequence[KernelConfig], count: int
            ) -> Sequence[KernelConfig]:
                return selection.ranked(self.settings, problem, gpu, tuple(configs), count)

            extents = tuple(args.problem_size)
            return rank_kernels(operators, extents, limit or len(operators), choose)

    return library.register_heuristic(NAME)(Tilecast)


def _current_gpu(settings: Settings) -> Hardware:
    import torch

    return selection.hardware_of(torch.cuda.current_device(), settings)
