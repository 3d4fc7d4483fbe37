"""nvMatmulHeuristics over the stock kernels: the selection that PyTorch 2.15 makes, as a baseline.

The optional package ``nvidia-matmul-heuristics`` is touched in `_proposals` only. It models tile
and cluster, not stages, raster or swizzle, and PyTorch lets it choose among the 24 kernels of
``cutlass.operators``.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tilecast.heuristics.config import Candidates, KernelConfig
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import stock_candidates

TileKey = tuple[int, int, int, int]
"""tile_m, tile_n, cluster_m, cluster_n: what PyTorch matches a proposal and a kernel by."""

GPUS = {"H200": "H200_SXM", "H100": "H100_SXM"}
"""Our names of GPUs to the library's."""

_LETTERS = {"bf16": "T", "fp16": "H", "fp32": "S"}
_OVERFETCH = 8
"""Proposals asked for per stock kernel: many differ only in what a stock kernel cannot vary."""


def precision(operands: GemmOperands) -> str | None:
    """The library's letters for A and B, accumulator and out: ``TST`` for bf16.

    None where it models no such product: it has no letter for one, or A and B differ.
    """
    names = [dtype.name for dtype in (operands.a.dtype, operands.acc, operands.out.dtype)]
    if operands.a.dtype != operands.b.dtype or not set(names) <= _LETTERS.keys():
        return None
    return "".join(map(_LETTERS.__getitem__, names))


def layout(operands: GemmOperands) -> str:
    """The library's name of the majors, such as ``TN_ROW_MAJOR`` for ``rcr``.

    ``T`` is a row-major operand and ``N`` a column-major one.
    """
    letters = {"row": "T", "col": "N"}
    a, b, out = operands.a.major, operands.b.major, operands.out.major
    return f"{letters[a]}{letters[b]}_{out.upper()}_MAJOR"


@dataclass(frozen=True)
class NvMatmulHeuristic:
    """Ranks the stock kernels among the candidates and proposes no others."""

    name = "nvMatmulHeuristics"

    hardware: Hardware
    """The GPU that the library shall model, one of `GPUS`."""

    def rank(
        self, problem: GemmProblem, candidates: Candidates, *, limit: int | None = None
    ) -> Candidates:
        """Order the stock kernels among the candidates by the library's estimate.

        Of a product that the library does not model, none; see `precision`.
        """
        stock = stock_candidates(problem.operands, self.hardware, candidates)
        columns = candidates.select(stock).columns
        knobs = (columns.tile_m, columns.tile_n, columns.cluster_m, columns.cluster_n)
        keys = zip(*(column.astype(int).tolist() for column in knobs), strict=True)
        kernels: dict[TileKey, KernelConfig] = dict(zip(keys, stock, strict=True))
        proposals = _proposals(self.hardware, problem, kernels)
        return candidates.select(kernels[key] for key in proposals if key in kernels)[:limit]


def _proposals(
    hardware: Hardware, problem: GemmProblem, allowed: Collection[TileKey]
) -> list[TileKey]:
    """What the library proposes of the allowed, by its estimated run time, with repeats."""
    letters = precision(problem.operands)
    if letters is None:
        return []
    library: Any = importlib.import_module("nvMatmulHeuristics")
    target = library.NvMatmulHeuristicsTarget.CUTLASS3
    interface = library.NvMatmulHeuristicsInterfaceEx(
        backend=target,
        flags=library.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        load_discovery_implicitly=True,
        gpu=library.NvMatmulHeuristicsNvidiaGpu[GPUS[hardware.name]],
    )

    def exists(kernel, _problem) -> int:
        return _key(kernel.contents.cta, kernel.contents.cluster) in allowed

    kinds = library.NvMatmulHeuristicsBackendPropertyCallbackKind
    majors = library.NvMatmulHeuristicsMatmulLayout[layout(problem.operands)]
    query = interface.makeNvMatmulHeuristicsProblem(
        problem.rows, problem.n, problem.depth, majors, problem.batch
    )
    # The library annotates the structure and takes a pointer to it.
    backend: Any = interface.createBackend(target)
    try:
        interface.setBackendCallbackProperty(
            backend, kinds.KERNEL_ADDITIONAL_VALIDITY_CHECK, exists
        )
        count = _OVERFETCH * max(1, len(allowed))
        found = interface.getEx(query, count, backend, precision=letters)
    finally:
        interface.destroyBackend(backend)
    found.sort(key=lambda proposal: proposal["runtime"])
    raw = (proposal["nvmmhKernelConfiguration"] for proposal in found)
    return [_key(kernel.cta, kernel.cluster) for kernel in raw]


def _key(tile: Sequence[int], cluster: Sequence[int]) -> TileKey:
    return tile[0], tile[1], cluster[0], cluster[1]
