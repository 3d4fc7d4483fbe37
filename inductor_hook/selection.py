"""Which configs a problem deserves: settings, the model behind them, and its answers, kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.heuristic import rank
from tilecast.heuristics.learned import LearnedHeuristic, Prediction, load_heuristic
from tilecast.heuristics.problem import GemmOperands, GemmProblem
from tilecast.heuristics.space import candidates

MOST = 64
"""The largest k: more would be an exhaustive search, which `tilecast collect` does better."""
_REMEMBERED = 4096
"""Problems whose answer is kept; a model has some dozens."""


@dataclass(frozen=True)
class Settings:
    """What `install` was asked for."""

    k: int | str = 5
    """Candidates per problem; 1 takes the model's word without a benchmark, ``auto`` lets the
    model's uncertainty decide, from 1 to 8."""
    model: str | None = None
    """Folder of a model of one's own; the shipped ones when left out."""
    power: str = "robust"
    """Power regime to aim at: ``burst``, ``sustained``, or ``robust``."""
    rank_nvgemm: bool = False
    """Whether the model also ranks the kernels of PyTorch's NVGEMM backend."""

    def __post_init__(self) -> None:
        """Check every field that can be checked without loading the model.

        Raises:
            TilecastError: a value is not allowed.
        """
        if self.k != "auto" and not (type(self.k) is int and 1 <= self.k <= MOST):
            raise TilecastError(
                f"k={self.k!r} is out of range; allowed: 1 to {MOST}, or 'auto'; "
                "1 picks without a benchmark"
            )
        if self.power not in ("burst", "sustained", "robust"):
            raise TilecastError(
                f"power {self.power!r} is not known; allowed: burst, sustained, robust"
            )
        if self.model is not None and not Path(self.model, "manifest.json").is_file():
            raise TilecastError(
                f"model {self.model} has no manifest.json; allowed: a folder that "
                "`tilecast train --out` wrote"
            )


@cache
def model_digest(folder: str | None) -> str:
    """What identifies the model in cache keys: the SHA-256 that its manifest states.

    Args:
        folder: a model's folder; all shipped models when None.
    """
    from tilecast.models.artifact import MANIFEST, SHIPPED

    manifests = [Path(folder, MANIFEST)] if folder else sorted(SHIPPED.glob(f"*/{MANIFEST}"))
    return "+".join(json.loads(path.read_text())["sha256"][:16] for path in manifests)


@cache
def gpu_of(device: int) -> Hardware:
    """The hardware of a CUDA device.

    Raises:
        TilecastError: tilecast does not know this GPU.
    """
    import torch

    return hardware(torch.cuda.get_device_name(device))


@lru_cache(_REMEMBERED)
def shortlist(settings: Settings, problem: GemmProblem, gpu: Hardware) -> tuple[Prediction, ...]:
    """The configs that a problem deserves and what is expected of them, best first.

    Raises:
        TilecastError: there is no model for the GPU, dtypes and majors.
    """
    heuristic = _heuristic(gpu, problem.operands, settings.power, settings.model)
    configs = candidates(problem, gpu)
    if settings.k == "auto":
        return tuple(heuristic.shortlist(problem, configs))
    return tuple(heuristic.predict(problem, configs, limit=int(settings.k)))


@lru_cache(_REMEMBERED)
def ranked(
    settings: Settings,
    problem: GemmProblem,
    gpu: Hardware,
    configs: tuple[KernelConfig, ...],
    limit: int,
) -> tuple[KernelConfig, ...]:
    """The ``limit`` of some configs that the model prefers for a problem, best first.

    Raises:
        TilecastError: there is no model for the GPU, dtypes and majors.
    """
    heuristic = _heuristic(gpu, problem.operands, settings.power, settings.model)
    return tuple(rank(heuristic, problem, configs, limit=limit))


def portfolio(
    settings: Settings, problems: Sequence[GemmProblem], gpu: Hardware
) -> tuple[KernelConfig, ...]:
    """The first choices for several problems, each once, in their order.

    Raises:
        TilecastError: there is no model for the GPU, dtypes and majors.
    """
    single = Settings(1, settings.model, settings.power)
    firsts = (shortlist(single, problem, gpu)[0].config for problem in problems)
    return tuple(dict.fromkeys(firsts))


@cache
def _heuristic(
    gpu: Hardware, operands: GemmOperands, power: str, model: str | None
) -> LearnedHeuristic:
    return load_heuristic(gpu, operands, power, Path(model) if model else None)
