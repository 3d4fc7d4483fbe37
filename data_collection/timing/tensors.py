"""The tensors of a product: random inputs, an unwritten out, and a reference result."""

from __future__ import annotations

import math
from pkgutil import resolve_name

import torch

from tilecast.data_collection.timing.correctness import INT8_SPREAD
from tilecast.heuristics.dtypes import DTYPES
from tilecast.heuristics.operands import (
    BLOCK,
    COLUMN,
    COLUMN_BLOCKS,
    EPILOGUES,
    GROUP_ENDS,
    K_GROUPS,
    MATRIX,
    NUMBER,
    ONE,
    ROW,
    ROW_BLOCKS,
    ROW_GROUPS,
    Extra,
    TensorSpec,
)
from tilecast.heuristics.problem import GemmProblem

FACTOR = 0.75
"""The value of alpha and beta."""

Inputs = tuple
"""A (m, k) and B (k, n), with the batch or the groups in front of what is `GemmOperands.stacked`;
and the operands' extras, in order."""


def random_inputs(problem: GemmProblem, device: str = "cuda") -> Inputs:
    """Normal random inputs of a problem; scales are near 1."""
    operands = problem.operands
    of_a, of_b, _ = _batches(problem)
    a = _random(of_a, problem.m, problem.k, operands.a, device)
    b = _random(of_b, problem.k, problem.n, operands.b, device)
    return a, b, *(_extra(problem, extra, device) for extra in operands.extras)


def empty_out(problem: GemmProblem, device: str = "cuda") -> torch.Tensor:
    """An unwritten out (m, n), stored as the operands say, with a batch in front as `Inputs`.

    Behind a gate it has n/2 columns.
    """
    return _empty(_batches(problem)[2], problem.m, problem.out_n, problem.operands.out, device)


def poisoned_out(problem: GemmProblem, device: str = "cuda") -> torch.Tensor:
    """The same, filled with what no product has."""
    return poisoned(empty_out(problem, device))


def poisoned(out: torch.Tensor) -> torch.Tensor:
    """A tensor, filled with what no product has: NaN, or the least integer."""
    return out.fill_(math.nan if out.dtype.is_floating_point else torch.iinfo(out.dtype).min)


def reference(problem: GemmProblem, inputs: Inputs) -> torch.Tensor:
    """The result that a kernel should write, in float32."""
    a, b, *values = inputs
    operands = problem.operands
    given = {extra.name: value for extra, value in zip(operands.extras, values, strict=True)}
    a, b = a.float(), b.float()
    if operands.block_scaled:
        a = a * _each(given["scale_a"], *a.shape)
        b = b * _each(given["scale_b"], *b.mT.shape).mT
    result = _BY_GROUPS[operands.groups](a, b, given["offsets"]) if operands.groups else a @ b
    if operands.scales and not operands.block_scaled:
        by_row = any(e.name == "scale_a" and e.kind == COLUMN for e in operands.extras)
        scale_a = given.get("scale_a", 1.0)
        result = result * (scale_a[:, None] if by_row else scale_a) * given["scale_b"]
    for step in operands.epilogue:
        result = applied(step, result, given)
    return result


def inputs_and_reference(problem: GemmProblem) -> tuple[Inputs, torch.Tensor]:
    """Random inputs of a problem on the GPU, and their `reference`."""
    inputs = random_inputs(problem)
    return inputs, reference(problem, inputs)


def launch_tensors(problem: GemmProblem, device: str = "cuda") -> tuple:
    """Random inputs of a problem with an unwritten out between A, B and the extras."""
    a, b, *extras = random_inputs(problem, device)
    return a, b, empty_out(problem, device), *extras


def applied(step: str, result: torch.Tensor, given: dict) -> torch.Tensor:
    """What one step of an epilogue makes of a result, in its own type, as torch does it."""
    fusion = EPILOGUES[step]
    if fusion.torch:
        extras = (given[extra.name] for extra in fusion.extras)
        of, factor = result, None
        if fusion.half is not None:
            halves = result.chunk(2, -1)
            of, factor = halves[fusion.half], halves[1 - fusion.half]
        value = resolve_name(fusion.torch)(of, *extras, **dict(fusion.options))
        return value if factor is None else value * factor
    match step:
        case "alpha":
            return result * given["alpha"]
        case "bias":
            return result + given["bias"]
        case "c":
            return result + given["c"]
        case "beta-c":
            # Not c times beta: that would be rounded to the type of c before it is added.
            return torch.add(result, given["c"], alpha=given["beta"])
    raise NotImplementedError(step)


def _extra(problem: GemmProblem, extra: Extra, device: str) -> torch.Tensor | float:
    out = problem.operands.out
    if extra.kind == NUMBER:
        return FACTOR
    if extra.kind == MATRIX:
        return _random(_batches(problem)[2], problem.m, problem.n, out, device)
    if extra.kind == GROUP_ENDS:
        return group_ends(problem.dealt, problem.batch).to(device)
    stored = DTYPES[extra.dtype] if extra.dtype else out.dtype
    if extra.kind in (ROW_BLOCKS, COLUMN_BLOCKS):
        rows = problem.m if extra.kind == ROW_BLOCKS else problem.n
        exponents = torch.randint(-1, 2, (rows, math.ceil(problem.k / BLOCK)), device=device)
        return in_tiles(exponents.float().exp2_().to(getattr(torch, stored.torch)))
    extent = {ONE: 1, ROW: problem.n, COLUMN: problem.m}[extra.kind]
    values = torch.empty(extent, dtype=getattr(torch, stored.torch), device=device)
    return values.uniform_(0.5, 1.5) if extra.name.startswith("scale") else values.normal_()


def in_tiles(scales: torch.Tensor) -> torch.Tensor:
    """Scales of blocks (rows, blocks) of 8 bits as `ROW_BLOCKS` has them; the rest is 0."""
    rows, blocks = scales.shape
    filled = torch.nn.functional.pad(scales.view(torch.uint8), (0, -blocks % 4, 0, -rows % 128))
    tiles = filled.view(-(-rows // 128), 4, 32, -(-blocks // 4), 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(-1).view(scales.dtype)


def of_rows(scales: torch.Tensor, rows: int, k: int) -> torch.Tensor:
    """The scales (rows, blocks) that `in_tiles` stored."""
    along = math.ceil(k / (4 * BLOCK))
    tiles = scales.view(torch.uint8).view(-1, along, 32, 4, 4).permute(0, 3, 2, 1, 4)
    found = tiles.reshape(-1, 4 * along)[:rows, : math.ceil(k / BLOCK)]
    return found.contiguous().view(scales.dtype)


def _each(scales: torch.Tensor, rows: int, k: int) -> torch.Tensor:
    """The scale of each element of (rows, k), in float32."""
    return of_rows(scales, rows, k).float().repeat_interleave(BLOCK, 1)[:, :k]


def group_ends(rows: int, groups: int, generator: torch.Generator | None = None) -> torch.Tensor:
    """Random ends of groups of rows, or along k, with the last row in the last of them.

    Each row goes to a group by itself, by shares that are drawn from the flat Dirichlet
    distribution: of 64 groups the largest has some five times its share, and the least nothing.
    """
    shares = torch.empty(groups).exponential_(generator=generator)
    group_of = torch.multinomial(shares, rows, replacement=True, generator=generator)
    return group_of.bincount(minlength=groups).cumsum(0).int()


def _by_rows(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The product of each group of rows with its own matrix; NaN behind the last."""
    result = torch.full((len(a), b.shape[-1]), math.nan, device=a.device)
    start = 0
    for group, end in enumerate(ends.tolist()):
        result[start:end] = a[start:end] @ b[group]
        start = end
    return result


def _along_k(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The product of each group along k; 0 of one that is empty."""
    ends = ends.cpu().long()
    parts = zip(a.tensor_split(ends, 1)[:-1], b.tensor_split(ends)[:-1], strict=True)
    return torch.stack([one @ other for one, other in parts])


_BY_GROUPS = {ROW_GROUPS: _by_rows, K_GROUPS: _along_k}


def _batches(problem: GemmProblem) -> list[tuple[int, ...]]:
    """What stands in front of the extents of A, B and out."""
    many = (problem.batch,) if problem.batched or problem.operands.groups else ()
    return [many if stacked else () for stacked in problem.operands.stacked]


def _random(
    batch: tuple[int, ...], rows: int, columns: int, stored: TensorSpec, device: str
) -> torch.Tensor:
    tensor = _empty(batch, rows, columns, stored, device)
    if stored.dtype.bits >= 16:
        return tensor.normal_()
    # PyTorch draws no 8-bit numbers; those of int8 are spread over its range.
    wide = torch.empty_like(tensor, dtype=torch.float32).normal_()
    if not tensor.dtype.is_floating_point:
        wide = wide.mul_(INT8_SPREAD).round_().clamp_(-128, 127)
    return tensor.copy_(wide)


def _empty(
    batch: tuple[int, ...], rows: int, columns: int, stored: TensorSpec, device: str
) -> torch.Tensor:
    row_major = stored.major == "row"
    shape = (rows, columns) if row_major else (columns, rows)
    dtype = getattr(torch, stored.dtype.torch)
    tensor = torch.empty(*batch, *shape, dtype=dtype, device=device)
    return tensor if row_major else tensor.mT
