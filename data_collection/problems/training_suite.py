"""How the problems of the ``training`` suite were chosen from all other suites.

They are stored, so that a data set stays one of this suite when another suite grows. To choose them
anew: ``python -m tilecast.data_collection.problems.training_suite``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle, islice

from tilecast.data_collection.problems.language_models import Family
from tilecast.data_collection.problems.suites import TRAINING_PROBLEMS, suite
from tilecast.heuristics.problem import GemmProblem

MAX_BYTES = 4e9
"""Operands and result of one problem, so that several sets of them fit on any GPU."""
MAX_FLOPS, USUAL_FLOPS = 4e12, 1e12
"""Work of the largest problems, 6 ms on an H200, and of the largest of most (n, k) pairs: measuring
time grows with the sum, and a problem of this size already has hundreds of waves."""
LARGE_EVERY = 6
"""One in so many (n, k) pairs may have problems of up to `MAX_FLOPS`."""
FAMILIES_FROM = (
    ("llama_shapes", 12), ("deepgemm", 7), ("int8_issue", 1), ("square", 8), ("ragged", 8),
    ("skinny", 8), ("large_k", 6), ("llm", 44),
)  # fmt: skip
"""How many (n, k) pairs each suite gives, beyond those that a suite above it gave."""
BANDS = (
    (1, 2, 3, 4, 7, 8, 12, 16, 24, 32, 48, 64),
    (96, 128, 192, 256, 384, 512, 640, 768, 1000, 1024),
    (1536, 2048, 3000, 4096, 6144, 8192, 12288, 16384),
)
"""Small, medium and large values of m."""
BAND_STEPS = (5, 3, 3)
"""Stride through each band: prime to its length, so that every m comes up equally often, and above
one, so that the values of one (n, k) pair are far apart."""


def chosen_families() -> Iterator[tuple[str, Family]]:
    """Each chosen (n, k) once, with its suite: evenly spaced in the order of the weight's size."""
    taken: set[Family] = set()
    for name, count in FAMILIES_FROM:
        families = sorted(
            {problem.family for problem in suite(name)} - taken,
            key=lambda family: (family[0] * family[1], family),
        )
        chosen = [families[(2 * i + 1) * len(families) // (2 * count)] for i in range(count)]
        taken.update(chosen)
        yield from ((name, family) for family in chosen)


def training_families() -> Iterator[tuple[int, int, list[int]]]:
    """n, k and five m of every chosen (n, k), a third from each band over any three pairs.

    A pair that its suite has with one m only (m = n in ``square`` and ``large_k``) keeps that m.
    """
    rotations = [
        cycle([ms[i * step % len(ms)] for i in range(len(ms))])
        for ms, step in zip(BANDS, BAND_STEPS, strict=True)
    ]
    for index, (name, (n, k)) in enumerate(chosen_families()):
        max_flops = USUAL_FLOPS if index % LARGE_EVERY else MAX_FLOPS
        # Two of each band, but one of the band whose turn it is.
        bands = [0, 0, 1, 1, 2, 2]
        bands.remove(index % 3)
        own = {problem.m for problem in suite(name) if problem.family == (n, k)}
        drawn = own if len(own) == 1 else set()
        for m in drawn:
            bands.remove(next(band for band, ms in enumerate(BANDS) if m <= ms[-1]))
        for band in reversed(bands):
            # The next of the band that is small enough and new, or else of the band below.
            drawn.add(
                next(
                    m
                    for lower in range(band, -1, -1)
                    for m in islice(rotations[lower], len(BANDS[lower]))
                    if m not in drawn
                    and (problem := GemmProblem(m, n, k)).flops <= max_flops
                    and problem.min_bytes <= MAX_BYTES
                )
            )
        yield n, k, sorted(drawn)


def text() -> str:
    """The content of `TRAINING_PROBLEMS`: a line of JSON for each (n, k)."""
    return "[\n" + ",\n".join(map(json.dumps, training_families())) + "\n]\n"


if __name__ == "__main__":
    TRAINING_PROBLEMS.write_text(text())
