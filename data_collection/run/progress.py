"""The progress of a collection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far a collection is."""

    phase: str
    """``compile``, ``check``, ``measure``, ``verify`` or ``compare``."""
    done: int
    """Jobs of the phase that are finished."""
    total: int
    """Jobs of the phase: all problems to measure or verify, or the kernels of the next ones."""
    measurements: int
    """Measurements taken by this run."""
    seconds: float
    """Time since the run began."""
    seconds_left: float
    """Time that the rest of the phase will take at the pace so far."""
    gpus: int
    """GPUs at work."""
    noise: float | None
    """The `label_noise` of the races so far."""


@dataclass
class Phase:
    """Jobs of one kind, and their pace."""

    name: str
    """One of `Progress.phase`."""
    total: int
    """Jobs."""
    done: int = 0
    """Those that are finished."""
    seconds: float = 0.0
    """Their time together."""

    def count(self, seconds: float) -> float:
        """Count one more job, which took so long; the seconds that the rest will take."""
        self.done += 1
        self.seconds += seconds
        return self.seconds / self.done * (self.total - self.done)


def label_noise(errors: Sequence[float]) -> float | None:
    """The 90th percentile of the standard errors of raced kernels; None without any."""
    return sorted(errors)[len(errors) * 9 // 10] if errors else None
