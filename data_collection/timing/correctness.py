"""When a kernel's results are correct: the problems of the check, and the allowed error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilecast.heuristics.problem import ALIGNMENT_BYTES, GATED_COLUMNS, GemmProblem
from tilecast.kernels.spec import KernelSpec

if TYPE_CHECKING:
    import torch

CHECK_EXTENTS = ((2056, 10008, 520), (37, 1112, 1032), (1, 264, 200))
"""m, n, k of the correctness checks: ragged everywhere; many tiles per CTA, a deep k, one row."""
CHECK_GROUPS = 5
"""Groups of rows of these; some are empty, as there is a single row in one."""


def check_problems(spec: KernelSpec) -> list[GemmProblem]:
    """The ragged problems of a check; extents are padded where the 16-byte rule is on them."""
    operands = spec.operands
    step = 8 * ALIGNMENT_BYTES // min(operands.a.dtype.bits, operands.b.dtype.bits, 16)
    rows = step if "col" in (operands.a.major, operands.out.major) else 1
    batch = CHECK_GROUPS if operands.groups else 3 if spec.batched else 1
    columns = GATED_COLUMNS if operands.gate else step
    padded = [
        [
            -(-extent // unit) * unit
            for extent, unit in zip(extents, (rows, columns, step), strict=True)
        ]
        for extents in CHECK_EXTENTS
    ]
    return [GemmProblem(m, n, k, batch, operands) for m, n, k in padded]


FUSED_SLACK = 3.0
"""How much scales near 1 and an activation may increase a product's error."""


def wrong_elements(out: torch.Tensor, reference: torch.Tensor, problem: GemmProblem) -> str | None:
    """Compare a product of normal random operands with its reference, element by element.

    The allowed error is one unit in the last place of the element's dtype, plus what adding k
    products in float32 can lose: k roundings of a sum of magnitudes near k. That is far below the
    elements, which are near the square root of k, so one tile that is missing, misplaced or NaN
    shows. Hopper's tensor cores add 8-bit floats in some 14 bits, 32 products at a time: each of
    k / 32 roundings may lose that much of a sum near the square root of k; four times that is
    allowed. A gate multiplies what one sum loses by another sum.

    Both are (m, n), or (batch, m, n); the reference is float32.

    Returns:
        How many elements are wrong, the smallest box around them and the first of them; None when
        all are right.
    """
    import torch

    k, operands = problem.k, problem.operands
    if out.dtype.is_floating_point:
        narrow = operands.acc.name == "fp22"
        lost = k**1.5 / 32 * 2**-11 if narrow else k * k * torch.finfo(torch.float32).eps
        lost *= FUSED_SLACK if operands.fused else 1
        lost *= k**0.5 if operands.gate else 1
        allowed = torch.finfo(out.dtype).eps * reference.abs() + lost
    else:
        allowed = torch.full_like(reference, 0.5)  # whole numbers are exact
    wrong = ~((out.float() - reference).abs() <= allowed)  # NaN is not below anything
    if not wrong.any():
        return None
    places = wrong.nonzero()
    first = tuple(places[0].tolist())
    box = zip(places.amin(0).tolist(), places.amax(0).tolist(), strict=True)
    return (
        f"{len(places)} wrong elements within [{', '.join(f'{a}:{b + 1}' for a, b in box)}], the "
        f"first {out[first].item():.4g} instead of {reference[first].item():.4g}, allowed error "
        f"{allowed[first].item():.2g}"
    )
