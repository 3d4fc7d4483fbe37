"""Grouped products of mixtures of experts: the layers of their experts, on one GPU or several."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem

ROWS = tuple(2**exponent for exponent in range(4, 16))
"""Rows of all experts of a GPU together: tokens times the experts of each."""
MOST_BYTES, MOST_FLOPS = 6e9, 4e12
"""Of the weights of a layer that is measured, as eight such are held at once, and of a product."""
COUNT, GRADIENTS = 400, 60
"""Problems of the suites."""
TRAINED_ROWS = ROWS[6:]
"""Rows of a training step, along which gradients of weights add up."""


@dataclass(frozen=True)
class Mixture:
    """The experts of a model."""

    name: str
    """Its name on the Hugging Face hub."""
    hidden: int
    intermediate: int
    """Width of one expert."""
    experts: int
    shards: tuple[int, ...] = (1,)
    """GPUs that the experts are spread over."""
    majors: str = "rcr"
    """How A, an expert's weight and out are stored."""

    def layers(self) -> Iterator[tuple[int, int, int]]:
        """Experts, n and k of each grouped product, on one of its shards: gate and up, and down."""
        for shards in self.shards:
            yield self.experts // shards, 2 * self.intermediate, self.hidden
            yield self.experts // shards, self.hidden, self.intermediate


# Source of every row: config.json of that model on the Hugging Face hub; the majors are those of
# its modules in transformers 5.
# fmt: off
MIXTURES = (
    #       name                                hidden inter experts
    Mixture("Mixtral-8x7B-v0.1",                  4096, 14336,   8, (1, 2, 4)),
    Mixture("Mixtral-8x22B-v0.1",                 6144, 16384,   8, (1, 2, 4)),
    Mixture("Qwen3-30B-A3B",                      2048,   768, 128, (1, 4, 16)),
    Mixture("Qwen3-235B-A22B",                    4096,  1536, 128, (1, 4, 16)),
    Mixture("DeepSeek-V3",                        7168,  2048, 256, (8, 16, 32)),
    Mixture("GLM-4.5",                            5120,  1536, 160, (2, 8, 32)),
    Mixture("GLM-4.5-Air",                        4096,  1408, 128, (1, 4, 16)),
    Mixture("gpt-oss-20b",                        2880,  2880,  32, (1, 4), "rrr"),
    Mixture("gpt-oss-120b",                       2880,  2880, 128, (1, 4, 16), "rrr"),
    Mixture("Llama-4-Scout-17B-16E",              5120,  8192,  16, (1, 2, 8), "rrr"),
    Mixture("Llama-4-Maverick-17B-128E",          5120,  8192, 128, (8, 32), "rrr"),
    Mixture("OLMoE-1B-7B-0924",                   2048,  1024,  64, (1, 4)),
)
# fmt: on
"""Models whose experts are served and trained, from 8 wide ones to 256 narrow ones."""


def grouped() -> tuple[GemmProblem, ...]:
    """`COUNT` of the layers of `MIXTURES` with `ROWS`, drawn; the same every time."""
    return _drawn(
        (
            GemmProblem(m, n, k, experts, GemmOperands.parse(f"bf16:{mixture.majors}:row-groups"))
            for mixture in MIXTURES
            for experts, n, k in mixture.layers()
            for m in ROWS
        ),
        COUNT,
    )


def gradients() -> tuple[GemmProblem, ...]:
    """`GRADIENTS` of the gradients of their weights with `TRAINED_ROWS`, drawn as they are."""
    operands = GemmOperands.parse("bf16:crr:k-groups")
    return _drawn(
        (
            GemmProblem(*_stored(mixture, n, k), rows, experts, operands)
            for mixture in MIXTURES
            for experts, n, k in mixture.layers()
            for rows in TRAINED_ROWS
        ),
        GRADIENTS,
    )


def _stored(mixture: Mixture, n: int, k: int) -> tuple[int, int]:
    """Rows and columns of a weight, as it is stored."""
    return (n, k) if mixture.majors[1] == "c" else (k, n)


def weight_bytes(problem: GemmProblem) -> float:
    """Of the weights of all groups, or of their gradients."""
    sides = (problem.m * problem.k, problem.k * problem.n, problem.m * problem.n)
    (side,) = (x for x, stacked in zip(sides, problem.operands.stacked, strict=True) if stacked)
    return problem.operands.a.dtype.bytes(problem.batch * side)


def _drawn(layers: Iterable[GemmProblem], count: int) -> tuple[GemmProblem, ...]:
    """Some of those that are not too large."""
    held = [
        p for p in dict.fromkeys(layers) if weight_bytes(p) <= MOST_BYTES and p.flops <= MOST_FLOPS
    ]
    return tuple(random.Random("tilecast").sample(held, count))
