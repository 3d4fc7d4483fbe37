"""What is offered on a GPU of which nobody has measured anything, nor of one that runs its code.

The analytic time alone puts configs in order. On an H200 and an H100, taken as unmeasured, the best
of its first five loses about 2% (benchmarks/results/unmeasured_gpu.json) and the first one 5%, so
all are benchmarked and none is ever taken without.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilecast.heuristics.config import Candidates
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.features.features import leading, log_analytic
from tilecast.models.runtime.learned import Prediction, check_candidates

OFFERED = 5
"""Configs of a short list whose length nobody chose."""


@dataclass(frozen=True)
class AnalyticOrder:
    """Ranks candidates by their analytic time."""

    name = "analytic time"

    hardware: Hardware
    """The GPU."""

    def rank(
        self, problem: GemmProblem, candidates: Candidates, *, limit: int | None = None
    ) -> Candidates:
        """Order candidates; see `tilecast.heuristics.heuristic.Heuristic`."""
        return candidates.take(self._order(problem, candidates)[0][:limit])

    def predict(
        self, problem: GemmProblem, candidates: Candidates, *, limit: int | None = None
    ) -> list[Prediction]:
        """Rank candidates, with their analytic times, which are rough.

        Raises:
            TilecastError: there is none.
        """
        check_candidates(problem, candidates, self.hardware)
        order, times = self._order(problem, candidates)
        ranked = zip(candidates.take(order[:limit]), times[:limit].tolist(), strict=True)
        best = float(times.min())
        return [Prediction(config, time, max(time / best, 1.0)) for config, time in ranked]

    def _order(self, problem: GemmProblem, candidates: Candidates) -> tuple[np.ndarray, np.ndarray]:
        """Where candidates stand, best first, and the times of these in microseconds.

        Of those with one time, which differ in the order of tiles, say, all but the first come
        last: a short list of kernels that are told apart finds more.
        """
        order, features = leading(problem, candidates, self.hardware, len(candidates))
        times = np.exp(log_analytic(features))
        again = np.append(False, np.diff(times) == 0)[: len(times)]
        last = np.argsort(again, kind="stable")
        return order[last], times[last]


def terms(gpu: Hardware) -> str:
    """What is offered on a GPU without any model, in a line."""
    return (
        f"{gpu.name} has no model, and nothing was measured on a GPU that runs its kernels: the "
        "first ones by an analytic time are benchmarked (k=2 or more) and never taken without; "
        "`tilecast campaign` makes a model"
    )
