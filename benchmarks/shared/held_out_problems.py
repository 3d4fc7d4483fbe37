"""Problems for `kernel_speed.py` whose (n, k) no training problem has.

`PROBLEMS` are linear layers of language models that are not in
`tilecast.data_collection.problems.language_models`, from the ``hidden_size``,
``intermediate_size`` and heads of their config.json, and ragged extents; of `RANDOM` all extents
are drawn.
"""

import math
import random
from itertools import cycle

from tilecast.heuristics.problem import GemmProblem

FAMILIES = (
    (9216, 7168), (7168, 7168), (40960, 7168), (7168, 20480),  # Yi-34B
    (24576, 8192), (45056, 8192), (8192, 22528),  # Command R
    (16896, 12288), (12288, 8448), (12288, 4224),  # Command R+, a quarter and an eighth
    (21504, 6144), (6144, 10752),  # DBRX, an expert
    (18432, 6144), (50432, 6144),  # GPT-NeoX-20B
    (21504, 7168), (28672, 7168), (7168, 28672),  # OPT-30B
    (27648, 9216), (9216, 9216), (9216, 36864),  # OPT-66B
    (5376, 14336), (14336, 1792), (7168, 14336),  # BLOOM-176B, an eighth and a quarter
    (27392, 4096), (4096, 13696), (65024, 4096),  # ChatGLM3-6B
    (11264, 2048), (2048, 5632),  # TinyLlama-1.1B
    (1600, 960), (960, 960), (5120, 960), (960, 2560),  # SmolLM-360M
    (6912, 2304), (11520, 2304), (2304, 5760),  # MiniCPM-2B
    (27392, 5120), (5120, 13696), (125696, 5120),  # Baichuan2-13B
    (44032, 8192), (8192, 22016),  # LLaMA-65B
    (19968, 6656), (6656, 6656), (35840, 6656), (6656, 17920),  # LLaMA-30B
    (14336, 2560), (2560, 7168),  # EXAONE-3.5-2.4B
    (54784, 5120), (5120, 27392),  # EXAONE-3.5-32B
    (46080, 6144), (6144, 23040),  # GLM-4-32B
    (21888, 4096), (4096, 10944), (2816, 4096), (4096, 1408),  # GLM-4.5-Air
    (2304, 768), (3072, 768), (768, 3072),  # BERT-base
    (20480, 7168),  # Kimi-K2, an eighth of its vocabulary
    (1288, 2568), (3336, 1112), (5048, 2024), (6008, 4104), (9992, 1016), (2728, 3400), (712, 5608),
)  # fmt: skip
EXTENTS = (
    8, 40, 192, 1024, 4096, 16, 64, 250, 700, 2048, 2, 32, 96, 512, 8192,
    12, 56, 128, 384, 3000, 1, 20, 256, 896, 6144, 4, 48, 160, 640, 1536,
)  # fmt: skip
"""m, one problem after the other: any five in a row are of the five sizes that tables tell apart,
so any span of the problems is a fair sample."""

PROBLEMS = tuple(GemmProblem(m, n, k) for m, (n, k) in zip(cycle(EXTENTS), FAMILIES, strict=False))


def drawn(count: int) -> tuple[GemmProblem, ...]:
    """Problems with n and k anywhere from 256 to 32,768, log-uniformly; as many of each size."""
    draw = random.Random("kernel speed")

    def extent(least: int, most: int, step: int = 1) -> int:
        found = math.exp(draw.uniform(math.log(least), math.log(most)))
        return max(round(found / step), 1) * step

    sizes = ((1, 16), (17, 64), (65, 256), (257, 1024), (1025, 16384))
    found = (
        GemmProblem(extent(*size), extent(256, 32768, 8), extent(256, 32768, 8))
        for size in cycle(sizes)
    )
    return tuple(next(found) for _ in range(count))


RANDOM = drawn(65)
