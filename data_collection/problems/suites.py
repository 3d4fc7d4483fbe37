"""Named suites of GEMM problems: of models, of benchmarks, and such as break tilings.

A suite is a table of (n, k) families times a list of m. All problems have the operands of a bf16
``torch.nn.Linear`` (`LINEAR_BF16`), so n and k are multiples of 8; but for those of ``grouped``,
``grouped_random``, ``gradients``, ``gradients_random`` and ``locked``. The ``training`` suite is a
fixed selection from the others; the shipped data set is collected on it. The ``locked`` suite is
for scoring alone.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable
from functools import cache
from itertools import product
from pathlib import Path

from tilecast.data_collection.problems.language_models import DEEPSEEK_V3, MODELS, Family
from tilecast.data_collection.problems.mixtures import (
    MOST_BYTES,
    gradients,
    grouped,
    weight_bytes,
)
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem

TRAINING_PROBLEMS = Path(__file__).parents[1].joinpath("data") / "training_problems.json"
"""n, k and every m of 94 families: of each other suite but ``random`` those that are evenly spaced
by the size of the weight, with five m each, a third of all up to 64 and a third above 1024. Stored,
so that a data set stays one of this suite when another suite grows."""

LOCKED_PROBLEMS = TRAINING_PROBLEMS.with_name("locked_problems.json")
"""m, n, k, operands and source of 200 problems, each of a family of its own, in random order. Half
of the families are drawn, n and k log-uniformly from 256 to 32,768; half are layers of the models
that the source names, which came out after the training suite or are of another kind, from their
config.json. None was within 3% of one that was measured, nor of another of these. m is drawn
log-uniformly, up to 16,384 and 2 TFLOP, for every fifth problem from 65 to 256. Every tenth has
other operands."""

_LLM_M = (1, 8, 16, 64, 256, 1024, 4096, 8192)

# TritonBench, `llama_shapes`: QKV, attention out, gate and up, down of Llama 7B, then of 70B and
# 405B at tensor-parallel degree 8.
_LLAMA_SHAPES: tuple[Family, ...] = (
    (12288, 4096), (4096, 4096), (22016, 4096), (4096, 11008),
    (1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584),
    (2304, 16384), (16384, 2048), (13312, 16384), (16384, 6656),
)  # fmt: skip
_LLAMA_SHAPES_M = tuple(2**i for i in range(17))

# DeepGEMM, the dense shapes of its tests.
_DEEPGEMM: tuple[Family, ...] = (
    (2112, 7168), (576, 7168), (24576, 1536), (32768, 512),
    (7168, 16384), (4096, 7168), (7168, 2048),
)  # fmt: skip
_DEEPGEMM_M = (1, 128, 4096)

# pytorch#119685, the benchmark of `_int_mm` autotuning ("llama shapes"), which lists (n, k, m).
_INT8_ISSUE: tuple[Family, ...] = (
    (4096, 11008), (12288, 4096), (22016, 4096), (4096, 4096), (65536, 4096),
)  # fmt: skip
_INT8_ISSUE_M = (16, 64, 256, 1024)

_SQUARE = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)

# Just beside a multiple of a tile, far from one, and in one extent only: partial tiles in n, and a
# last k block that is mostly zero fill.
_RAGGED: tuple[Family, ...] = (
    (72, 136), (200, 1000), (520, 264), (1000, 520), (1000, 4096), (1032, 2056), (1544, 3080),
    (2056, 1544), (3000, 1000), (4088, 4104), (4104, 4096), (5000, 3000), (8200, 1032),
    (10008, 2504),
)  # fmt: skip
_RAGGED_M = (1, 3, 17, 77, 129, 300, 1000, 2049, 5000)

# Routers, value heads and LoRA: few columns, or a short k. And wide layers at the fewest rows.
_NARROW: tuple[Family, ...] = (
    (8, 4096), (16, 4096), (16, 14336), (32, 7168), (64, 2048), (64, 8192), (128, 5120),
    (4096, 16), (4096, 64), (14336, 32), (28672, 128),
)  # fmt: skip
_NARROW_M = (1, 16, 128, 1024, 4096, 16384)
_WIDE: tuple[Family, ...] = ((16384, 1024), (32768, 4096), (65536, 2048), (131072, 1024))
_WIDE_M = (1, 2, 3, 4, 7, 8)

# One or a few output tiles: only a split of k can fill the card.
_LARGE_K_MN = (16, 24, 32, 48, 64)
_LARGE_K = (4096, 8192, 16384, 32768)


# n and k anywhere, away from the layers of models, and an m of every size for each.
_RANDOM_FAMILIES, _RANDOM_EXTENTS = 2000, (256, 32768)
_RANDOM_M = ((1, 16), (17, 64), (65, 256), (257, 1024), (1025, 16384))
_RANDOM_FLOPS = 4e12


# Another (n, k) teaches a model of groups more than other rows of one that it knows, and more than
# so many rows teach it little (models/EXPERIMENTS.md).
_GROUPED_FAMILIES, _GROUPED_EXTENTS, _GROUPS = 90, (512, 16384), (2, 128)
_GROUPED_M = _RANDOM_M[1:4]
_GRADIENTS_FAMILIES, _GRADIENTS_EXTENTS = 40, (512, 8192)
_GRADIENTS_K = ((1024, 4096), (4096, 32768))
_GRADIENTS_FLOPS = 1e12


def _extent(draw: random.Random, least: int, most: int, step: int = 1) -> int:
    """A multiple of the step, drawn log-uniformly."""
    drawn = math.exp(draw.uniform(math.log(least), math.log(most)))
    return max(round(drawn / step), 1) * step


def _random() -> tuple[GemmProblem, ...]:
    """Drawn log-uniformly; the same every time."""
    draw, found = random.Random("tilecast"), []
    for _ in range(_RANDOM_FAMILIES):
        n, k = (_extent(draw, *_RANDOM_EXTENTS, step=8) for _ in range(2))
        found += [GemmProblem(_extent(draw, *band), n, k) for band in _RANDOM_M]
    return tuple(problem for problem in dict.fromkeys(found) if problem.flops <= _RANDOM_FLOPS)


def _grouped_random() -> tuple[GemmProblem, ...]:
    """Groups of rows, drawn in the same way."""
    draw, found = random.Random("tilecast"), []
    while len(found) < _GROUPED_FAMILIES * len(_GROUPED_M):
        n, k = (_extent(draw, *_GROUPED_EXTENTS, step=64) for _ in range(2))
        groups, majors = _extent(draw, *_GROUPS), draw.choice(("rcr", "rrr"))
        operands = GemmOperands.parse(f"bf16:{majors}:row-groups")
        if operands.b.dtype.bytes(groups * n * k) <= MOST_BYTES:
            found += [GemmProblem(_extent(draw, *m), n, k, groups, operands) for m in _GROUPED_M]
    return tuple(found)


def _gradients_random() -> tuple[GemmProblem, ...]:
    """Groups along k, drawn in the same way; each ``k`` is that of all groups together."""
    draw, found = random.Random("tilecast"), []
    operands = GemmOperands.parse("bf16:crr:k-groups")
    while len(found) < _GRADIENTS_FAMILIES * len(_GRADIENTS_K):
        m, n = (_extent(draw, *_GRADIENTS_EXTENTS, step=64) for _ in range(2))
        groups, ks = _extent(draw, *_GROUPS), [_extent(draw, *k, step=64) for k in _GRADIENTS_K]
        drawn = [GemmProblem(m, n, k, groups, operands) for k in ks]
        if weight_bytes(drawn[0]) <= MOST_BYTES and drawn[-1].flops <= _GRADIENTS_FLOPS:
            found += drawn
    return tuple(found)


def _grid(families: Iterable[Family], ms: Iterable[int]) -> tuple[GemmProblem, ...]:
    return tuple(GemmProblem(m, n, k) for (n, k), m in product(dict.fromkeys(families), tuple(ms)))


def _llm() -> tuple[GemmProblem, ...]:
    families = [family for model in MODELS for family in model.families()]
    return _grid([*families, *DEEPSEEK_V3], _LLM_M)


def _training() -> tuple[GemmProblem, ...]:
    families = json.loads(TRAINING_PROBLEMS.read_text())
    return tuple(GemmProblem(m, n, k) for n, k, ms in families for m in ms)


def _locked() -> tuple[GemmProblem, ...]:
    rows = json.loads(LOCKED_PROBLEMS.read_text())
    return tuple(
        GemmProblem(m, n, k, operands=GemmOperands.parse(text)) for m, n, k, text, _ in rows
    )


SUITES: dict[str, Callable[[], tuple[GemmProblem, ...]]] = {
    "training": _training,
    "llm": _llm,
    "llama_shapes": lambda: _grid(_LLAMA_SHAPES, _LLAMA_SHAPES_M),
    "deepgemm": lambda: _grid(_DEEPGEMM, _DEEPGEMM_M),
    "int8_issue": lambda: _grid(_INT8_ISSUE, _INT8_ISSUE_M),
    "square": lambda: tuple(GemmProblem(extent, extent, extent) for extent in _SQUARE),
    "ragged": lambda: _grid(_RAGGED, _RAGGED_M),
    "skinny": lambda: _grid(_NARROW, _NARROW_M) + _grid(_WIDE, _WIDE_M),
    "random": _random,
    "grouped": grouped,
    "gradients": gradients,
    "grouped_random": _grouped_random,
    "gradients_random": _gradients_random,
    "locked": _locked,
    "large_k": lambda: tuple(GemmProblem(mn, mn, k) for mn, k in product(_LARGE_K_MN, _LARGE_K)),
}
"""The function that makes the problems of each suite, by name."""


@cache
def suite(name: str) -> tuple[GemmProblem, ...]:
    """The problems of a suite, without duplicates, in a fixed order.

    Raises:
        TilecastError: there is no suite of that name.
    """
    if name not in SUITES:
        raise TilecastError(f"suite {name!r} is not known; allowed: {', '.join(SUITES)}")
    return SUITES[name]()


def problems(names: Iterable[str]) -> tuple[GemmProblem, ...]:
    """The distinct problems of several suites, in the order of the names and then of each suite.

    Raises:
        TilecastError: a name is not known.
    """
    return tuple(dict.fromkeys(problem for name in names for problem in suite(name)))
