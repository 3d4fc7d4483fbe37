"""tilecast as a heuristic of ``cutlass.operators``, NVIDIA's library of CuTe DSL kernels.

That library takes heuristics by name. The one that it brings ranks no kernel of Hopper.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.settings import unbenchmarked
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
            """Take the name of a GPU, the folder of a model, and the regime to aim at.

            When left out: the current GPU, and the shipped models.
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
            gpu = self.gpu or selection.hardware_of(torch.cuda.current_device(), self.settings)
            return rank_kernels(
                operators,
                tuple(args.problem_size),
                limit or len(operators),
                lambda problem, configs, count: selection.ranked(
                    self.settings, problem, gpu, tuple(configs), count
                ),
            )

    return library.register_heuristic(NAME)(Tilecast)
