"""What stands for a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.stock_kernels.stock_order import Choose
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.models.runtime.manifest import digest_of


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
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["facts"]["note"] = "trained anew"
    manifest["sha256"] = digest_of(manifest)
    path.write_text(json.dumps(manifest))
