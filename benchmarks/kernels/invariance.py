"""Does a row of a product have the same bits in every batch, and from every kernel?

``python benchmarks/kernels/invariance.py`` on one GPU. For each kind of operands some kernels are
drawn from the whole space. Each multiplies rows of a pool, drawn with repeats, so that a row stands
at any place beside any others, in a product of any length that may begin inside a buffer; some rows
are zeros, the largest numbers, or hold a NaN. Bits are compared row by row, never rounded: of
kernels that break none of their family's `INVARIANT` rules with those of the first of them, of
others with their own of the whole pool. The same is asked of what PyTorch calls for such operands.

Launches follow one another without waiting, so that a kernel begins while the one before it ends.
"""

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tilecast.data_collection.timing.tensors import poisoned_out, random_inputs
from tilecast.data_collection.timing.torch_reference import torch_launch
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import COLUMN, MATRIX, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.run.static import loaded_kernel
from tilecast.kernels.build.builder import object_builder
from tilecast.kernels.candidates import space
from tilecast.kernels.launch import Launch
from tilecast.kernels.quack_sm90.family import QUACK_SM90 as FAMILY
from tilecast.kernels.spec import KernelSpec

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from runner import Measure, Row, Sweep

KERNELS, OTHERS = 12, 4  # of each kind: without and with a broken rule
DRAWS, STOCK_DRAWS = 10_000, 500
POOL = 512  # rows
MOST_ROWS = 1024
LEAST_STOCK_ROWS = 17  # fewer torch._int_mm refuses
FAMILIES = ((512, 4096), (272, 1104), (1536, 2048))  # n, k; of the second no tile is a divisor
BATCH = 3
NAN = 4  # the row that holds one
GPU = hardware("H200")  # the space is the same on all Hopper GPUs
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


class Kind(NamedTuple):
    """Operands, and what else kernels are compiled for."""

    operands: GemmOperands
    batched: bool = False
    any_rows: bool = False

    @property
    def step(self) -> int:
        """What m and the place of the first row are multiples of."""
        along_m = "col" in (self.operands.a.major, self.operands.out.major)
        return 16 if along_m else 1


_TEXTS = (
    *("bf16:rcr", "bf16:rrr", "bf16:crr", "bf16:ccr", "bf16:rcc", "bf16:rcr>fp32", "fp16:rcr"),
    *(f"bf16:rcr:{steps}" for steps in ("bias", "relu", "c", "alpha+beta-c", "bias+c")),
    *(f"bf16:rcr:bias+{name}" for name in ("gelu", "gelu-tanh", "silu")),
    "fp16:rcr:bias+gelu",
)
_STRETCHED = ("bf16:rcr@4xfp32", "bf16:rrr@4xfp32:bias+c", "e4m3:rcr>bf16@4xfp22:row-scales")
_EIGHT_BITS = (
    *(f"e4m3:rcr>bf16:{scales}" for scales in ("tensor-scales", "row-scales+bias")),
    *(f"e4m3:rcr>bf16@fp32:{scales}" for scales in ("tensor-scales", "row-scales+bias")),
    "e5m2xe4m3:rcr>bf16:tensor-scales",
    *("int8:rcr>int32", "int8:rcr>bf16:row-scales", "int8:rcr>bf16:out-row-scales+bias"),
    *("bf16xint8:rcr:column-scales", "bf16xint8:rcr:fp32-column-scales+bias"),
)
KINDS: dict[str, Kind] = {}
for _text in (*_STRETCHED, *_EIGHT_BITS):
    KINDS[_text] = Kind(GemmOperands.parse(_text))
for _text in ("bf16:rcr", "bf16:rcr:bias"):
    KINDS[f"{_text}, batched"] = Kind(GemmOperands.parse(_text), batched=True)
    KINDS[f"{_text}, rows of any length"] = Kind(GemmOperands.parse(_text), any_rows=True)
for _text in _TEXTS:
    KINDS[_text] = Kind(GemmOperands.parse(_text))


@cache
def drawn(kind: Kind, agreeing: int = KERNELS, others: int = OTHERS) -> dict[KernelSpec, bool]:
    """Some kernels, of many values of each knob, and whether each breaks no rule."""
    table = space(kind.operands, GPU, [FAMILY.name])
    broken = np.zeros(len(table.configs), bool)
    for rule in FAMILY.invariant_rules:
        broken |= rule.broken(table.columns, kind.operands, GPU)
    order = random.Random(kind.operands.text).sample(range(len(broken)), len(broken))
    found: dict[KernelSpec, bool] = {}
    for wanted, agrees in ((agreeing, True), (others, False)):
        rows = [row for row in order if broken[row] != agrees]
        shown: set[tuple[str, object]] = set()
        first, rest = [], []
        for row in rows:
            values = {(name, v) for name, v in vars(table.configs[row]).items() if name != "stages"}
            (rest if values <= shown else first).append(row)
            shown |= values
        for row in [*first, *rest][:wanted]:
            spec = KernelSpec(table.configs[row], kind.operands, kind.batched, kind.any_rows)
            found[spec] = agrees
    return found


@dataclass(frozen=True)
class Pool:
    """The rows that products are made of, for one (n, k)."""

    kind: Kind
    problem: GemmProblem
    device: str

    @cached_property
    def inputs(self) -> tuple:
        """A, B and extras of all rows."""
        a, b, *extras = random_inputs(self.problem, self.device)
        for row, value in enumerate(_edges(a.dtype)):
            _fill(a[..., row, :], value)
        _fill(a[..., NAN, 3:4], 127 if a.dtype == torch.int8 else float("nan"))
        if b.dtype == torch.int8:
            _fill(b[..., 0], 127)  # beside rows of 127: sums that float32 does not hold
        return a, b, *extras

    def product(
        self, launch: Launch, rows: torch.Tensor, batch: torch.Tensor, first: int
    ) -> torch.Tensor:
        """The bits of some rows' results, (..., rows - first, n) as integers.

        Args:
            launch: of a kernel, or of PyTorch's.
            rows: of the pool.
            batch: of the pool; ignored without one.
            first: the first of the rows that is multiplied; those before stand in the buffer.
        """
        a, b, *extras = self.inputs
        if self.kind.batched:
            a, b = (_taken(x, batch, 0) for x in (a, b))
        a = _taken(a, rows, -2)[..., first:, :]
        given = [
            _taken(value, rows[first:], {COLUMN: -1, MATRIX: -2}[extra.kind])
            if extra.kind in (COLUMN, MATRIX)
            else value
            for extra, value in zip(self.kind.operands.extras, extras, strict=True)
        ]
        out = self._out(a, b.shape[-1])
        if self.kind.any_rows:
            b = b[..., : out.shape[-1]]
            given = [x[: out.shape[-1]] if torch.is_tensor(x) and x.ndim == 1 else x for x in given]
        launch(a, b, out, *given)
        return out.view(_INTEGERS[out.itemsize])

    def whole(self, launch: Launch) -> torch.Tensor:
        """The bits of all rows at once."""
        rows, batch = (torch.arange(count, device=self.device) for count in (POOL, BATCH))
        return self.product(launch, rows, batch, 0)

    def _out(self, a: torch.Tensor, n: int) -> torch.Tensor:
        if not self.kind.any_rows:
            batch = len(a) if self.kind.batched else 1
            m, operands = a.shape[-2], self.kind.operands
            out = poisoned_out(GemmProblem(m, n, self.problem.k, batch, operands), self.device)
            return out[None] if self.kind.batched and batch == 1 else out
        dtype = getattr(torch, self.kind.operands.out.dtype.torch)
        n -= 2 if self.kind.operands.extras else 3  # a row that is added has a multiple of 4 bytes
        return torch.full((*a.shape[:-1], n), float("nan"), dtype=dtype, device=self.device)


def _edges(dtype: torch.dtype) -> Sequence[float]:
    """Values that whole rows have: none, the largest, the least."""
    if dtype == torch.int8:
        return 0, 127, -128
    limits = torch.finfo(dtype)
    return 0.0, limits.max, -limits.max, limits.tiny


def _fill(target: torch.Tensor, value: float) -> None:
    # What is stored in 8 bits is filled through another type.
    target.copy_(torch.full(target.shape, value, dtype=torch.float32, device=target.device))


def _taken(tensor: torch.Tensor, index: torch.Tensor, dim: int) -> torch.Tensor:
    """Some slices, stored as the whole is; PyTorch takes none of what has 8 bits."""
    if tensor.ndim > 1 and tensor.stride(-1) != 1:
        return _taken(tensor.mT, index, {-2: -1, -1: -2}.get(dim, dim)).mT
    return tensor.view(_INTEGERS[tensor.itemsize]).index_select(dim, index).view(tensor.dtype)


@contextmanager
def measuring() -> Iterator[Measure]:
    """Have all kernels compiled, as many at a time as there are cores."""
    for kind in KINDS.values():
        for spec in drawn(kind):
            object_builder().start(spec)
    yield measure


def measure(kind: Kind) -> list[Row]:
    """Compare the bits of rows from the kernels of a kind, and from PyTorch."""
    return [compared(kind, drawn(kind), DRAWS)]


def compared(
    kind: Kind, kernels: Mapping[KernelSpec, bool], draws: int, device: str = "cuda"
) -> Row:
    """What kernels agree on, of which at least one breaks no rule."""
    pools = [
        Pool(kind, GemmProblem(POOL, n, k, BATCH if kind.batched else 1, kind.operands), device)
        for n, k in FAMILIES
    ]
    launches = {spec: loaded_kernel(spec, 0) for spec in kernels}
    wholes = {spec: [pool.whole(launch) for pool in pools] for spec, launch in launches.items()}
    groups: list[KernelSpec] = []  # one of each set of kernels that agree on all pools
    shown = []
    for spec, agrees in kernels.items():
        alike = (one for one in groups if all(map(torch.equal, wholes[one], wholes[spec])))
        group = next(alike, spec)
        if group is spec:
            groups.append(spec)
        shown.append({"config": spec.config.name, "agrees": agrees, "group": groups.index(group)})
    common = next(spec for spec, agrees in kernels.items() if agrees)
    pairs = [(launches[s], wholes[common if agrees else s]) for s, agrees in kernels.items()]
    for row, counts in zip(shown, _differing(pools, pairs, draws), strict=True):
        row.update(counts)
    return {"draws": draws, "kernels": shown, "stock": _stock(pools, wholes[common])}


def _differing(
    pools: Sequence[Pool],
    launches: Sequence[tuple[Launch, Sequence[torch.Tensor]]],
    draws: int,
    least: int = 1,
) -> list[Row]:
    """Rows that each launch multiplied, and how many have other bits than the pool's beside it."""
    drawing, kind, device = random.Random(0), pools[0].kind, pools[0].device
    differing = torch.zeros(len(launches), dtype=torch.int64, device=device)
    rows = [0] * len(launches)
    for number in range(draws):
        which = number % len(launches)
        place = drawing.randrange(len(pools))
        m = kind.step * max(least, int((MOST_ROWS // kind.step) ** drawing.random()))
        first = kind.step * drawing.choice((0, 0, 1, 3, 7, 64))
        index = torch.randint(POOL, (first + m,), device=device)
        batch = torch.randint(BATCH, (drawing.randint(1, 5),), device=device)
        launch, wholes = launches[which]
        found, whole = pools[place].product(launch, index, batch, first), wholes[place]
        if kind.batched:
            whole = whole.index_select(0, batch)
        other = (found != whole.index_select(-2, index[first:])).any(-1)
        differing[which] += other.sum()
        rows[which] += other.numel()
    counts = zip(rows, differing.tolist(), strict=True)
    return [{"rows": total, "differing": other} for total, other in counts]


def _stock(pools: Sequence[Pool], ours: Sequence[torch.Tensor]) -> Row | None:
    """The same of PyTorch's own kernels, and the share of the pools' rows that tilecast has so.

    None where PyTorch multiplies no such operands.
    """
    kind = pools[0].kind
    if not pools[0].problem.in_library or kind.any_rows:
        return None
    launch = torch_launch(kind.operands)
    try:
        wholes = [pool.whole(launch) for pool in pools]
        (counts,) = _differing(pools, [(launch, wholes)], STOCK_DRAWS, LEAST_STOCK_ROWS)
    except (RuntimeError, ValueError) as error:
        return {"refused": str(error).splitlines()[0][:200]}
    alike = [(a == b).all(-1).float().mean().item() for a, b in zip(wholes, ours, strict=True)]
    return {**counts, "as_tilecast": sum(alike) / len(alike)}


def figures(rows: Sequence[Row]) -> Row:
    """By kind: what was compared, what differs, and how many sets of kernels agree."""
    found: dict[str, Any] = {}
    for row in rows:
        agreeing = [one for one in row["kernels"] if one["agrees"]]
        others = [one for one in row["kernels"] if not one["agrees"]]
        stock = row["stock"] or {}
        found[row["kind"]] = {
            "draws": row["draws"],
            "kernels": len(agreeing),
            "rows": sum(one["rows"] for one in agreeing),
            "differing": sum(one["differing"] for one in agreeing),
            "sets": len({one["group"] for one in agreeing}),
            "other_kernels": len(others),
            "that_differ_from_themselves": sum(one["differing"] > 0 for one in others),
            "that_agree_with_these": sum(one["group"] == 0 for one in others),
            "stock": stock.get("differing", 0) / stock["rows"] if stock.get("rows") else None,
        }
    return found


SETTINGS = {"pool": POOL, "most_rows": MOST_ROWS, "families": FAMILIES, "batch": BATCH}
SWEEP = Sweep("kind", KINDS, measuring, figures, 3.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
