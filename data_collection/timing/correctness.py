"""When a kernel's results are correct: the problems of the check, and the allowed error."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tilecast.heuristics.operands import GATED_COLUMNS, K_GROUPS, GemmOperands
from tilecast.heuristics.problem import ALIGNMENT_BYTES, GemmProblem
from tilecast.kernels.families import family_of
from tilecast.kernels.spec import KernelSpec

if TYPE_CHECKING:
    import torch

CHECK_EXTENTS = ((2056, 10008, 520), (37, 1112, 1032), (1, 264, 200))
"""m, n, k of the correctness checks: ragged everywhere; many tiles per CTA, a deep k, one row."""
CHECK_GROUPS = 5
"""Groups of these; some are empty where they share a single row."""
DEEP_EXTENTS = (136, 520)
"""m and n of the check whose k is the deepest."""


def deep_k(spec: KernelSpec) -> int:
    """A k with which each CTA fills all its stages twice and then one, wherever k is split."""
    geometry = family_of(spec.config).geometry([spec.config])
    stretch = geometry.tile_k * geometry.split_k * (2 * geometry.stages + 1)
    return int(stretch.item())


def check_problems(spec: KernelSpec) -> list[GemmProblem]:
    """The ragged problems of a check; extents are padded where the 16-byte rule is on them."""
    operands = spec.operands
    share = CHECK_GROUPS if operands.groups == K_GROUPS else 1
    # Not a multiple of the stage: the last one is ragged.
    extents_of = (*CHECK_EXTENTS, (*DEEP_EXTENTS, share * deep_k(spec) - 16))
    step = 8 * ALIGNMENT_BYTES // min(operands.a.dtype.bits, operands.b.dtype.bits, 16)
    rows = step if "col" in (operands.a.major, operands.out.major) else 1
    batch = CHECK_GROUPS if operands.groups else 3 if spec.batched else 1
    columns = GATED_COLUMNS if operands.gate else step
    padded = [
        [
            -(-extent // unit) * unit
            for extent, unit in zip(extents, (rows, columns, step), strict=True)
        ]
        for extents in extents_of
    ]
    return [GemmProblem(m, n, k, batch, operands) for m, n, k in padded]


FUSED_SLACK = 3.0
"""How much scales near 1 and an activation may increase a product's error."""
LARGEST = 4
"""How many standard deviations a large sum may have: of 10,000 sums one has more."""
INT8_SPREAD = 32
"""Standard deviation of random int8 numbers: the ends of the range are at four of them."""
ROW_ERROR = 0.02
"""Allowed error of a whole row over the row, both by their norms, beside what elements are rounded
by: a stage of many that is left out or taken twice exceeds it, and no element's error."""
SHORTEST_ROW = 64
"""Fewest elements of which a norm says much: results with shorter rows are compared as one row."""
SMALLEST_ROW = 0.01
"""Of the norm of a row on average: what is less is zero, but for what its sums are rounded by."""


DEEPEST_STAGE = 256
"""Most products of fp8 that are added up before their sum is promoted."""


def _share_lost(k: int, operands: GemmOperands) -> float:
    """The share of a sum of k products that adding them up may lose.

    A unit in its last place each time; Hopper's tensor cores add 8-bit floats in some 14 bits, 32
    at a time. Where sums of stages are promoted, those are the ones that are so narrow.
    """
    if operands.acc.name == "fp22":
        return k / 32 * 2.0**-13
    if operands.promoted:
        return k / 32 * 2.0**-13 * min(1.0, math.sqrt(DEEPEST_STAGE / k))
    return k * 2.0**-23


def _lost(k: int, operands: GemmOperands) -> float:
    """What adding up k products may change a sum by: four times `_share_lost`.

    Its magnitude is near the square root of k, times those of the terms.
    """
    narrow = sum(one.dtype.name == "int8" for one in (operands.a, operands.b))
    magnitude = math.sqrt(k) * INT8_SPREAD**narrow
    lost = 4 * _share_lost(k, operands) * magnitude * (FUSED_SLACK if operands.fused else 1)
    # The hardware's hyperbolic tangent is right to 2^-11.
    lost += 2.0**-10 * magnitude if operands.activation else 0
    # A gate multiplies what one sum loses by another sum, and the largest are what shows.
    return lost * (LARGEST * magnitude if operands.gate else 1)


def wrong_elements(out: torch.Tensor, reference: torch.Tensor, problem: GemmProblem) -> str | None:
    """Compare a product of normal random operands with its reference, element by element.

    The allowed error is one unit in the last place of the element's dtype, plus what adding up k
    products can lose. That is far below the elements, so one tile that is missing, misplaced or NaN
    shows. The error of a whole row may not exceed `ROW_ERROR`, so that one of many stages shows.

    Both are (m, n), or (batch, m, n); the reference is float32.

    Returns:
        How many elements are wrong, the smallest box around them and the first of them; None when
        all are right.
    """
    import torch

    k, operands = problem.k, problem.operands
    floats = out.dtype.is_floating_point
    # Whole numbers are exact.
    unit, lost = (torch.finfo(out.dtype).eps, _lost(k, operands)) if floats else (0.0, 0.5)
    allowed = unit * reference.abs() + lost
    error = out.float() - reference
    wrong = ~(error.abs() <= allowed)  # NaN is not below anything
    if not wrong.any():
        compared = floats and out.numel() >= SHORTEST_ROW
        return wrong_row(out, reference, k, operands) if compared else None
    places = wrong.nonzero()
    first = tuple(places[0].tolist())
    box = zip(places.amin(0).tolist(), places.amax(0).tolist(), strict=True)
    return (
        f"{len(places)} wrong elements within [{', '.join(f'{a}:{b + 1}' for a, b in box)}], the "
        f"first {out[first].item():.4g} instead of {reference[first].item():.4g}, allowed error "
        f"{allowed[first].item():.2g}"
    )


def wrong_row(
    out: torch.Tensor, reference: torch.Tensor, k: int, operands: GemmOperands
) -> str | None:
    """Compare a product of any operands with its reference, row by row: what is wrong, or None.

    A row's error over the row, both by their norms, may be `ROW_ERROR` and what out's type and
    adding up k products lose. Sums of real operands may cancel in all of a row: see `SMALLEST_ROW`.
    """
    import torch

    right = reference.float()
    error = out.float() - right
    if short := out.shape[-1] < SHORTEST_ROW:
        right, error = right.reshape(1, -1), error.reshape(1, -1)
    norms = right.norm(dim=-1)
    least = SMALLEST_ROW * norms.square().mean().sqrt()
    shares = error.norm(dim=-1) / norms.maximum(least).clamp_min(2.0**-126)
    worst = shares.max().item()
    unit = torch.finfo(out.dtype).eps if out.dtype.is_floating_point else 0.0
    allowed = ROW_ERROR + unit + _share_lost(k, operands)
    if worst <= allowed:  # NaN is not
        return None
    where = "all of it" if short else f"row {int(shares.argmax()) % error.shape[-2]}"
    return f"{where} is wrong by {worst:.2g} of its norm, allowed error {allowed:.2g}"
