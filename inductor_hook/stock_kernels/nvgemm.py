"""Stock NVGEMM kernels in a model's order.

Inductor asks one object which GEMMs of ``cutlass.operators`` to compile, and that one asks
nvMatmulHeuristics. `rank_with_model` has it ask a model first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.dtypes import dtype_of_cutlass
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import GemmOperands, TensorSpec
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.patch import patching
from tilecast.inductor_hook.stock_kernels.stock_order import (
    HOPPER,
    Choose,
    in_order,
    ranked_or_stock,
)
from tilecast.kernels.candidates import families_on

STOCK_OPERATOR = "Sm90StaticPersistentGemmOperator"
"""The class of ``cutlass.operators`` that `KernelFamily.stock` stands for."""


def kernel_operands(metadata: Any) -> GemmOperands:
    """Dtypes and majors of a kernel, from the ``OperatorMetadata`` of a `STOCK_OPERATOR`.

    Raises:
        TilecastError: a dtype that no config is for, such as fp4.
    """
    a, b, out = metadata.operands.A, metadata.operands.B, metadata.operands.out
    # A stride is 1 for the contiguous extent and 0 for the others.
    a, b, out = (
        TensorSpec(dtype_of_cutlass(x.dtype), "row" if x.stride[-1] == 1 else "col")
        for x in (a, b, out)
    )
    return GemmOperands(a, b, out, dtype_of_cutlass(metadata.operands.accumulator_type))


def kernel_config(metadata: Any, swap_ab: bool = False) -> KernelConfig | None:
    """The config that stands for a kernel, by the ``OperatorMetadata`` of any operator.

    None if the kernel is of another class, for another architecture, or of a newer library's tile.

    Raises:
        TilecastError: as `kernel_operands`.
    """
    if metadata.operator_class.__name__ != STOCK_OPERATOR:
        return None
    operands, design = kernel_operands(metadata), metadata.design
    shape = (*design.tile_shape, *design.cluster_shape)
    for family in families_on(HOPPER):
        stock = family.stock(operands, HOPPER)
        if not stock:
            continue
        c = family.geometry(stock)
        knobs = (c.tile_m, c.tile_n, c.tile_k, c.cluster_m, c.cluster_n, np.ones(len(c)))
        (rows,) = np.nonzero((np.transpose(knobs) == shape).all(axis=1))
        for config in family.configs(replace(c, swap_ab=np.full(len(c), swap_ab)).at(rows)):
            return config
    return None


def rank_kernels(
    kernels: Sequence[Any],
    extents: tuple[int, int, int, int],
    count: int,
    choose: Choose,
    *,
    swap_ab: bool = False,
) -> list[Any]:
    """The best ``count`` kernels as a model orders them; those that it does not know come last.

    Args:
        kernels: operators for one problem, so all with the same operands.
        extents: m, n, k and batch of what the kernels multiply.
        count: how many are wanted.
        choose: asks the model.
        swap_ab: whether these extents are those of out^T = B^T A^T.

    Raises:
        TilecastError: no model knows the problem, or none of these kernels.
    """
    found = [(kernel_config(kernel.metadata, swap_ab), kernel) for kernel in kernels]
    known = [kernel for config, kernel in found if config]
    if not known:
        classes = sorted({kernel.metadata.operator_class.__name__ for kernel in kernels})
        raise TilecastError(
            f"kernels of {', '.join(classes)} have no model; allowed: {STOCK_OPERATOR} with a "
            "stage of 128 bytes; leave them to PyTorch"
        )
    m, n, k, batch = extents
    operands = kernel_operands(known[0].metadata)
    if swap_ab:
        # The model knows an exchanged kernel by the problem that was asked for.
        m, n, operands = n, m, _exchanged(operands)
    return in_order(found, GemmProblem(m, n, k, batch, operands), count, choose)


def _exchanged(operands: GemmOperands) -> GemmOperands:
    """Operands of out = A B, from those of out^T = B^T A^T."""

    def turned(spec: TensorSpec) -> TensorSpec:
        return replace(spec, major="col" if spec.major == "row" else "row")

    a, b, out = operands.b, operands.a, operands.out
    return replace(operands, a=turned(a), b=turned(b), out=turned(out))


def rank_with_model(home: Any, choose: Callable[[int], Choose]) -> None:
    """Have the model choose among the stock kernels; a second call replaces the first.

    ``home`` is the module of Inductor that keeps the object which ranks them. ``choose`` takes the
    device of the operands.
    """
    stock = home.get_nvgemm_heuristics()
    stock_filter = patching.stock(stock, "filter_kernels")

    def filter_kernels(
        kernels: list[Any], inputs: Any, count: int, *rest: Any, **options: Any
    ) -> list[Any]:
        """The best kernels, best first; of the options ``swap_ab`` matters here."""

        def ranked() -> list[Any]:
            # A symbolic extent counts as its hint, as it does to PyTorch.
            extents = (*inputs.mnk_hinted(), inputs.batch_hinted())
            swap_ab = options.get("swap_ab", False)
            asked = choose(inputs.device().index or 0)
            return rank_kernels(kernels, extents, count, asked, swap_ab=swap_ab)

        def theirs() -> list[Any]:
            return stock_filter(kernels, inputs, count, *rest, **options)

        # None where Hopper has none, as with a fused epilogue.
        return [*ranked_or_stock("NVGEMM", ranked, theirs)] if kernels else theirs()

    patching.replace(stock, "filter_kernels", filter_kernels)


def restore(home: Any) -> None:
    """Undo `rank_with_model`; nothing to do where Inductor ranks by itself."""
    patching.restore(home.get_nvgemm_heuristics(), "filter_kernels")
