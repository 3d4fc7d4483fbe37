"""What one timing says, and the columns of the data set that is made of such timings."""

from __future__ import annotations

from dataclasses import dataclass

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.problem import GemmProblem

PROTOCOL_VERSION = 5
"""Version of the measurement protocol, raised when the same kernel would get another time. Version
2 has idle gaps of 1 ms instead of 5 ms in the burst regime, and times that are 1% shorter. In
version 3 the L2 holds nothing to be written back when a kernel starts: up to 4% shorter. In
version 4 the card's level, which changes the times of a screen by up to a tenth, is taken out. In
version 5 the last rounds of a screen, which count, are of near kernels alone: up to 3%."""

REGIMES = ("burst", "sustained")
"""``burst``: the card has had idle gaps; ``sustained``: it has been busy long enough to meet its
power limit."""

PASSES = ("screen", "race", "verify")
"""``screen``: every candidate, briefly; ``race``: those near the best, interleaved until the order
is stable; ``verify``: the best again, later, for scoring only."""

REFERENCE = "torch.mm"
"""The config column of rows that time PyTorch's kernel."""


@dataclass(frozen=True)
class Measurement:
    """One problem, config, power regime and pass: a run time, or the reason there is none."""

    problem: GemmProblem
    """What was multiplied."""
    config: KernelConfig | None
    """The kernel; None for PyTorch's (`REFERENCE`)."""
    regime: str
    """One of `REGIMES`."""
    stage: str
    """The pass, one of `PASSES`; named as the data set's column is."""
    microseconds: float | None
    """Median time of one launch; None when it failed."""
    spread: float | None
    """Interquartile range of the rounds over their median, without drift in a race; None when it
    failed, had fewer than four rounds or raced alone."""
    rounds: int
    """Replays that the median is taken over."""
    failure: str | None = None
    """Why there is no time, in one line."""
