"""Which configs a problem deserves: settings, the model behind them, and its answers, kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.heuristic import rank
from tilecast.heuristics.problem import DTYPE_BYTES, LINEAR_BF16, GemmOperands, GemmProblem
from tilecast.kernels.cutlass_sm90.space import candidates
from tilecast.models.learned import LearnedHeuristic, Prediction, load_heuristic

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
    digest: str = field(init=False)
    """What identifies the model in every cache, of ours and of Inductor's, when this was made."""

    def __post_init__(self) -> None:
        """Check every field that can be checked without loading the model.

        Raises:
            TilecastError: a value is not allowed, or the model's manifest cannot be read.
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
        object.__setattr__(self, "digest", model_digest(self.model))


def model_digest(folder: str | None) -> str:
    """What identifies a model: the head of the SHA-256 that its manifest states.

    Args:
        folder: a model's folder; all shipped models when None.

    Raises:
        TilecastError: there is no manifest, or it is none.
    """
    from tilecast.models.artifact import MANIFEST, SHIPPED

    manifests = [Path(folder, MANIFEST)] if folder else sorted(SHIPPED.glob(f"*/{MANIFEST}"))
    return "+".join(str(_manifest(path)["sha256"])[:16] for path in manifests)


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text())
        if {"sha256", "operands"} <= manifest.keys():
            return manifest
        found = "a manifest.json that does not say what it is for"
    except FileNotFoundError:
        found = "no manifest.json"
    except (OSError, ValueError, AttributeError) as error:
        found = f"a manifest.json that cannot be read ({error})"
    raise TilecastError(
        f"model {path.parent} has {found}; allowed: a folder that `tilecast train --out` wrote"
    )


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
        TilecastError: no model knows the GPU, dtypes and majors, or not well enough to decide
            without a benchmark where ``settings.k`` is 1.
    """
    heuristic, known = _known(settings, problem, gpu)
    if settings.k == 1 and known.operands.layout != problem.operands.layout:
        raise TilecastError(
            f"no model has seen layout {problem.operands.layout}; allowed without a benchmark: "
            f"{known.operands.layout}; train one or take k=5"
        )
    configs = candidates(problem, gpu)
    if settings.k == "auto":
        return tuple(heuristic.shortlist(known, configs))
    return tuple(heuristic.predict(known, configs, limit=int(settings.k)))


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
        TilecastError: no model knows the GPU, dtypes and majors.
    """
    heuristic, known = _known(settings, problem, gpu)
    return tuple(rank(heuristic, known, configs, limit=limit))


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


def _known(
    settings: Settings, problem: GemmProblem, gpu: Hardware
) -> tuple[LearnedHeuristic, GemmProblem]:
    """A model, and the problem as one that it knows.

    Operands of its own widths are ranked by a model that has not seen them: another dtype of 16
    bits loses nothing, another layout 0.3 to 0.6% in the first 5 and 4% in the first
    (benchmarks/results/layout_transfer.json).
    """
    heuristic = _heuristic(gpu, problem.operands, settings.power, settings.model, settings.digest)
    trained = heuristic.artifact.operands
    if _widths(problem.operands) != _widths(trained):
        raise TilecastError(
            f"no model is for {problem.operands.dtype} {problem.operands.layout} with "
            f"{problem.operands.out_dtype} out; allowed: what is stored like {trained.dtype} with "
            f"{trained.out_major}-major {trained.out_dtype} out; train one with `tilecast train`"
        )
    return heuristic, replace(problem, operands=trained)


def _widths(operands: GemmOperands) -> tuple[int, int, str]:
    return DTYPE_BYTES[operands.dtype], DTYPE_BYTES[operands.out_dtype], operands.out_major


@cache
def _heuristic(
    gpu: Hardware, operands: GemmOperands, power: str, model: str | None, digest: str
) -> LearnedHeuristic:
    from tilecast.models.artifact import MANIFEST, artifact_name, shipped_names

    if model:
        operands = GemmOperands(**_manifest(Path(model, MANIFEST))["operands"])
        return load_heuristic(gpu, operands, power, Path(model))
    shipped = artifact_name(gpu, operands) in shipped_names()
    return load_heuristic(gpu, operands if shipped else LINEAR_BF16, power)
