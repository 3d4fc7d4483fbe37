"""Named suites of GEMM problems: what people run, what benchmarks ask, and what breaks tilings.

A suite is a table of (n, k) families times a list of m. All problems have the operands of a bf16
``torch.nn.Linear`` (`LINEAR_BF16`), so n and k are multiples of 8. The ``training`` suite is a
fixed selection from the others; the shipped data set is collected on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice, product

from tilecast.data_collection.language_models import DEEPSEEK_V3, MODELS, Family
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import GemmProblem

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
_LARGE_K_EXTENTS = (16, 24, 32, 48, 64)
_LARGE_K = (4096, 8192, 16384, 32768)


def _grid(families: Iterable[Family], ms: Iterable[int]) -> tuple[GemmProblem, ...]:
    return tuple(GemmProblem(m, n, k) for (n, k), m in product(dict.fromkeys(families), tuple(ms)))


def _llm() -> tuple[GemmProblem, ...]:
    families = [family for model in MODELS for family in model.families()]
    return _grid([*families, *DEEPSEEK_V3], _LLM_M)


def _square() -> tuple[GemmProblem, ...]:
    return tuple(GemmProblem(extent, extent, extent) for extent in _SQUARE)


def _skinny() -> tuple[GemmProblem, ...]:
    return _grid(_NARROW, _NARROW_M) + _grid(_WIDE, _WIDE_M)


def _large_k() -> tuple[GemmProblem, ...]:
    return tuple(
        GemmProblem(extent, extent, k) for extent, k in product(_LARGE_K_EXTENTS, _LARGE_K)
    )


MAX_TRAINING_BYTES = 4e9
"""Operands and result of one training problem, so that several sets of them fit on any card."""

MAX_TRAINING_FLOPS = 4e12
"""Work of one training problem: about 6 ms on an H200."""

# Most families stop here: collection time goes with the sum, and a problem of this size already has
# hundreds of waves. Every `_LARGE_EVERY`-th family may go to MAX_TRAINING_FLOPS.
_USUAL_FLOPS = 1e12
_LARGE_EVERY = 6

_FAMILIES_FROM = {
    "llama_shapes": 12,
    "deepgemm": 7,
    "int8_issue": 1,
    "square": 8,
    "ragged": 8,
    "skinny": 8,
    "large_k": 6,
    "llm": 44,
}
"""Families that each suite gives to ``training``, beyond those that a suite above it gave."""

_M_BANDS = (
    (1, 2, 3, 4, 7, 8, 12, 16, 24, 32, 48, 64),
    (96, 128, 192, 256, 384, 512, 640, 768, 1000, 1024),
    (1536, 2048, 3000, 4096, 6144, 8192, 12288, 16384),
)
_BAND_STEPS = (5, 3, 3)
"""Stride through each band. Prime to its length, so every m comes up equally often, and above one,
so that a family's own are far apart."""


def _training_families() -> Iterator[tuple[str, Family]]:
    """Each chosen (n, k) once, with its suite: evenly spaced in the order of the weight's size."""
    taken: set[Family] = set()
    for name, count in _FAMILIES_FROM.items():
        families = sorted(
            {problem.family for problem in suite(name)} - taken,
            key=lambda family: (family[0] * family[1], family),
        )
        chosen = [families[(2 * i + 1) * len(families) // (2 * count)] for i in range(count)]
        taken.update(chosen)
        for family in chosen:
            yield name, family


def _training() -> tuple[GemmProblem, ...]:
    """Five m for every chosen family, a third of them from each band over any three families.

    A family that its suite pairs with one m only (m = n in ``square`` and ``large_k``) keeps it.
    """
    rotations = [
        cycle([ms[i * step % len(ms)] for i in range(len(ms))])
        for ms, step in zip(_M_BANDS, _BAND_STEPS, strict=True)
    ]

    def draw(band: int, n: int, k: int, max_flops: float, drawn: set[GemmProblem]) -> GemmProblem:
        """The next of the band that is affordable and new; where none is, of the band below."""
        return next(
            problem
            for lower in range(band, -1, -1)
            for m in islice(rotations[lower], len(_M_BANDS[lower]))
            if (problem := GemmProblem(m, n, k)) not in drawn
            and problem.flops <= max_flops
            and problem.min_bytes <= MAX_TRAINING_BYTES
        )

    result = []
    for index, (name, (n, k)) in enumerate(_training_families()):
        max_flops = MAX_TRAINING_FLOPS if index % _LARGE_EVERY == 0 else _USUAL_FLOPS
        # Two of each band, but one of the band whose turn it is.
        bands = [band for band in range(len(_M_BANDS)) for _ in range(2)]
        bands.remove(index % len(_M_BANDS))
        own = {problem for problem in suite(name) if problem.family == (n, k)}
        drawn = own if len(own) == 1 else set()
        for problem in drawn:
            bands.remove(next(band for band, ms in enumerate(_M_BANDS) if problem.m <= ms[-1]))
        for band in reversed(bands):
            drawn.add(draw(band, n, k, max_flops, drawn))
        result.extend(sorted(drawn, key=lambda problem: problem.m))
    return tuple(result)


@dataclass(frozen=True)
class Suite:
    """A named set of problems."""

    description: str
    """What it holds, in one line."""
    build: Callable[[], tuple[GemmProblem, ...]]
    """Makes the problems; `suite` keeps them."""


SUITES = {
    "training": Suite("selection from all others; the data set is collected on it", _training),
    "llm": Suite("linear layers of public language models, tensor-parallel shards too", _llm),
    "llama_shapes": Suite(
        "TritonBench llama_shapes", lambda: _grid(_LLAMA_SHAPES, _LLAMA_SHAPES_M)
    ),
    "deepgemm": Suite("DeepGEMM's benchmark", lambda: _grid(_DEEPGEMM, _DEEPGEMM_M)),
    "int8_issue": Suite(
        "shapes of pytorch#119685, in bf16", lambda: _grid(_INT8_ISSUE, _INT8_ISSUE_M)
    ),
    "square": Suite("m = n = k from 256 to 8192", _square),
    "ragged": Suite("extents that no tile divides", lambda: _grid(_RAGGED, _RAGGED_M)),
    "skinny": Suite("few rows, few columns or a short k", _skinny),
    "large_k": Suite("m = n from 16 to 64, k from 4096 to 32768", _large_k),
}
"""Every suite by name."""


@cache
def suite(name: str) -> tuple[GemmProblem, ...]:
    """The problems of a suite, without duplicates, in a fixed order.

    Raises:
        TilecastError: there is no suite of that name.
    """
    if name not in SUITES:
        raise TilecastError(f"suite {name!r} is not known; allowed: {', '.join(SUITES)}")
    return SUITES[name].build()


def problems(names: Iterable[str]) -> tuple[GemmProblem, ...]:
    """The distinct problems of several suites, in the order of the names and then of each suite.

    Raises:
        TilecastError: a name is not known.
    """
    return tuple(dict.fromkeys(problem for name in names for problem in suite(name)))
