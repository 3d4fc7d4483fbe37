"""What stands for a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fixtures import change_manifest

from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.stock_kernels.stock_order import Choose
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


def trained_anew(folder: Path) -> None:
    """Put another model into a folder, whole and with a digest of its own."""
    change_manifest(folder, lambda manifest: manifest["facts"].update(note="trained anew"))
