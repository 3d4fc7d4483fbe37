"""What stands for a model where PyTorch's own kernels are put in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.stock_order import Choose
from tilecast.kernels.quack_sm90.config import QuackConfig


def forwards(problem: GemmProblem, configs: Sequence[QuackConfig], limit: int) -> list[QuackConfig]:
    """A model that likes the first best."""
    return list(configs)[:limit]


def backwards(
    problem: GemmProblem, configs: Sequence[QuackConfig], limit: int
) -> list[QuackConfig]:
    """A model that likes the last best."""
    return list(reversed(configs))[:limit]


@dataclass
class Asked:
    """A model that remembers what it was asked."""

    answer: Choose = forwards
    problem: GemmProblem | None = None
    configs: list[QuackConfig] = field(default_factory=list)

    def __call__(
        self, problem: GemmProblem, configs: Sequence[QuackConfig], limit: int
    ) -> Sequence[QuackConfig]:
        self.problem, self.configs = problem, list(configs)
        return self.answer(problem, configs, limit)
