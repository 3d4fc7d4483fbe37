"""Calls of any kind timed side by side, as `tilecast collect` times kernels."""

import os
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import cast

import torch

from tilecast.data_collection.timing.drift import without_drift
from tilecast.data_collection.timing.gpu_session import GpuSession
from tilecast.data_collection.timing.protocol import Bench, Entrant
from tilecast.data_collection.timing.tensors import launch_tensors, poisoned
from tilecast.data_collection.timing.torch_reference import library_launch
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.build.builder import compile_all
from tilecast.kernels.objects.cache import ObjectCache, default_root
from tilecast.kernels.spec import KernelSpec

ROUNDS = {"burst": 12, "sustained": 24}
MAX_RELATIVE_ERROR = 1e-2  # of ||out - torch's|| / ||torch's||

Call = Callable[..., object]  # takes a, b, out and what else the operands have


class Races(GpuSession):
    """Times calls by name: CUDA graphs over several operand sets, rounds interleaved."""

    def __init__(self):
        """Bind the first device that is visible."""
        super().__init__(ObjectCache(default_root()), 0, lambda entrant: None)
        self.calls: dict[str, Call] = {}

    def launcher(self, entrant: Entrant, problem: GemmProblem) -> Call:
        """What makes the call of a name."""
        return self.calls[cast(str, entrant)]

    def kernels(self, specs: Iterable[KernelSpec]) -> dict[KernelSpec, Call]:
        """Compile and load some kernels.

        Raises:
            RuntimeError: one does not compile.
        """
        specs = list(specs)
        for result in compile_all(specs, ObjectCache(default_root()), len(os.sched_getaffinity(0))):
            if result.error:
                raise RuntimeError(f"{result.spec}: {result.error}")
        return {spec: self._kernel(spec) for spec in specs}


def medians(bench: Bench, names: Iterable[str], regime: str, rounds: int) -> dict[str, float]:
    """Microseconds by name, without what drifts in all of them together."""
    # A bench compares entrants and asks the session what launches them, no more.
    found = bench.time(cast("list[Entrant]", [*names]), regime, rounds)
    return dict(zip(names, map(median, without_drift(found)), strict=True))


def largest_error(problem: GemmProblem, calls: Mapping[str, Call], device: str = "cuda") -> float:
    """The largest difference of a call's result from PyTorch's product of groups, by their norms.

    Raises:
        RuntimeError: it is more than `MAX_RELATIVE_ERROR`.
    """
    a, b, out, *extras = launch_tensors(problem, device)
    right = cast("torch.Tensor", library_launch(problem.operands)(a, b, out, *extras)).float()
    norm, worst = torch.linalg.norm(right), 0.0
    for name, call in calls.items():
        call(a, b, poisoned(out), *extras)
        error = (torch.linalg.norm(out.float() - right) / norm).item()
        if not error <= MAX_RELATIVE_ERROR:
            raise RuntimeError(f"{name} is wrong on {problem}: {error:.3g} of the norm")
        worst = max(worst, error)
    return worst
