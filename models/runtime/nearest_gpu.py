"""Which model a GPU borrows that has none of its own, and what a borrowed model may do.

Features are computed from the figures of the GPU that borrows: so far as these explain a time, the
model holds there, too. The H200's model loses 1.8% at one kernel, 0.62% at three and 0.32% at five
on an H100 (robust, benchmarks/results/new_gpu.json), so the first choices of a borrowed model are
benchmarked and never taken without.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.kernels.families import same_code
from tilecast.models.runtime.artifact import Artifact, load_shipped, shipped_names
from tilecast.models.runtime.manifest import HARDWARE_FIELDS


def shipped_for(gpu: Hardware) -> Artifact:
    """The shipped model of a GPU, or that of the nearest one, `borrowed`.

    Raises:
        TilecastError: none is of a GPU that runs the same code, or
            `tilecast.models.runtime.artifact.load` refuses it.
    """
    nearest = next(iter(known_gpus(gpu)), gpu)
    return borrowed(load_shipped(nearest), gpu)


def nearest_shipped(gpu: Hardware) -> Artifact | None:
    """The same; None where no model is shipped for any GPU that runs the same code."""
    return shipped_for(gpu) if known_gpus(gpu) else None


def borrowed(artifact: Artifact, gpu: Hardware) -> Artifact:
    """A model as another GPU uses it: it ranks there and decides nothing; its own stays as it is.

    Nothing was measured there: neither kernels, to choose without a benchmark, nor cuBLAS.
    """
    if artifact.hardware == gpu:
        return artifact
    return replace(
        artifact,
        hardware=gpu,
        measured=(),
        ranker=replace(artifact.ranker, hardware=gpu),
        deferral=None,
        trained_for=artifact.hardware.name,
        groups={kind: borrowed(one, gpu) for kind, one in artifact.groups.items()},
    )


def known_gpus(gpu: Hardware) -> list[Hardware]:
    """Those that a model is shipped for and that run the same code, by how near they are to one."""
    rivals = [one for one in map(hardware, shipped_names()) if same_code(one.arch, gpu.arch)]
    return sorted(rivals, key=lambda one: (one != gpu, _distance(one, gpu)))


def terms(artifact: Artifact) -> str:
    """Whose model a GPU borrows, and on which terms, in a line."""
    return (
        f"{artifact.hardware.name} has no model of its own and uses the {artifact.trained_for} "
        "model, whose choices are benchmarked (k=2 or more) and never taken without; `tilecast "
        "campaign` makes one in some ten minutes"
    )


def _distance(one: Hardware, other: Hardware) -> float:
    """How far two GPUs are from each other: the sum of the logarithms of their figures' ratios."""
    pairs = (np.hstack([getattr(gpu, name) for name in HARDWARE_FIELDS]) for gpu in (one, other))
    first, second = (np.log1p(figures.astype(np.float64)) for figures in pairs)
    return float(np.abs(first - second).sum())
