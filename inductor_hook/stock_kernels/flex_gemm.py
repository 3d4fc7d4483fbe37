"""FlexGEMM's configs in a model's order.

FlexGEMM asks QuACK which configs are legal for a call, and takes the first twelve of them, or the
first one where it does not tune: on Hopper it has no order of its own. `rank_with_model` puts a
model's order in that place, for both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Any

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import KINDS_REMEMBERED, GemmOperands, TensorSpec
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.describe.from_ir import stored
from tilecast.inductor_hook.patch import patching
from tilecast.inductor_hook.patch.torch_versions import FLEX_GEMM
from tilecast.inductor_hook.stock_kernels.stock_order import (
    HOPPER,
    Choose,
    in_order,
    ranked_or_stock,
)
from tilecast.kernels.candidates import space
from tilecast.kernels.stages import tile_ks

Legal = Sequence[tuple[tuple[str, Any], ...]]
"""Configs as FlexGEMM has them: the fields of QuACK's ``GemmConfig`` and their values."""

SHAPE = ("tile_m", "tile_n", "cluster_m", "cluster_n", "pingpong", "swap_ab")
"""What configs differ in on Hopper."""
PLAIN: Mapping[str, Any] = {
    "tile_k": None,
    "num_warps": None,
    "is_dynamic_persistent": False,
    "cluster_k": 1,
    "split_k": 1,
    "max_swizzle_size": 8,
    "device_capacity": 9,
    "use_tma_gather": False,
}
"""What they have in common, as the kernels that were measured have it."""


def quack_config(fields: Mapping[str, Any], operands: GemmOperands) -> KernelConfig | None:
    """The config that stands for one of FlexGEMM's; None where a knob was never measured so."""
    common = {name: value for name, value in fields.items() if name not in SHAPE}
    if not (fields.keys() >= set(SHAPE) and common.items() <= PLAIN.items()):
        return None
    return _plain_configs(operands).get(tuple(fields[name] for name in SHAPE))


@lru_cache(KINDS_REMEMBERED)
def _plain_configs(operands: GemmOperands) -> dict[tuple[float, ...], KernelConfig]:
    """The configs that differ in `SHAPE` alone, by that."""
    candidates = space(operands, HOPPER)
    c = candidates.columns
    shapes = zip(
        *(c.tile_m, c.tile_n, c.cluster_m, c.cluster_n, c.ping_pong, c.swap_ab), strict=True
    )
    plain = (
        (c.tile_k == tile_ks(operands)[0])
        & (c.split_k == 1)
        & (c.ctas_per_sm == 1)
        & (c.raster_m == 1)
        & (c.swizzle == PLAIN["max_swizzle_size"])
    )
    rows = zip(shapes, candidates.configs, plain, strict=True)
    return {shape: config for shape, config, is_plain in rows if is_plain}


def read(call: Any, inputs: Sequence[Any]) -> GemmProblem:
    """The product of a FlexGEMM call, without its epilogue; a symbolic extent counts as its hint.

    The result, of which nothing is known at that point, counts as row-major and of A's dtype.

    Args:
        call: FlexGEMM's ``FlexGemmEpilogueConfig``.
        inputs: the operands, as Inductor holds them.

    Raises:
        TilecastError: it is a grouped product, or no config is for such operands.
    """
    from torch._inductor.virtualized import V

    if call.cu_seqlens_index is not None:
        raise TilecastError("grouped products have no model; allowed: mm, addmm, bmm, baddbmm")
    sizes = V.graph.sizevars
    a, b = inputs[call.gemm_op.mat1_index], inputs[call.gemm_op.mat2_index]
    a_spec, b_spec = (
        stored(node.get_layout()).spec(name, sizes) for name, node in (("A", a), ("B", b))
    )
    operands = GemmOperands.product(a_spec, b_spec, TensorSpec(a_spec.dtype, "row"))
    *batch, m, k = (sizes.optimization_hint(extent) for extent in a.get_size())
    n = sizes.optimization_hint(b.get_size()[-1])
    return GemmProblem(m, n, k, batch[0] if batch else 1, operands)


def rank_configs(legal: Legal, problem: GemmProblem, choose: Choose) -> Legal:
    """Order FlexGEMM's configs as a model does; those that it does not know come last.

    Raises:
        TilecastError: no model knows the problem, or none of these configs.
    """
    found = [(quack_config(dict(fields), problem.operands), fields) for fields in legal]
    if not any(config for config, _ in found):
        raise TilecastError(
            f"configs such as {dict(legal[0])} have no model; allowed: Hopper's, with "
            f"{', '.join(f'{name}={value}' for name, value in PLAIN.items())}"
        )
    return tuple(in_order(found, problem, len(legal), choose))


def rank_with_model(home: Any, choose: Callable[[int], Choose]) -> None:
    """Have the model order FlexGEMM's configs; a second call replaces the first.

    ``home`` is the module of Inductor that lowers FlexGEMM. ``choose`` takes the device of the
    operands.
    """
    stock = patching.stock(home, FLEX_GEMM.name)

    @wraps(stock)
    def quack_configs(call: Any, inputs: Sequence[Any], *rest: Any, **options: Any) -> Legal:
        legal = stock(call, inputs, *rest, **options)

        def ranked() -> Legal:
            device = inputs[call.gemm_op.mat1_index].get_device()
            return rank_configs(legal, read(call, inputs), choose(device.index or 0))

        return tuple(ranked_or_stock("FlexGEMM", ranked, lambda: legal))

    patching.replace(home, FLEX_GEMM.name, quack_configs)


def restore(home: Any) -> None:
    """Undo `rank_with_model`; nothing to do where FlexGEMM asks QuACK by itself."""
    patching.restore(home, FLEX_GEMM.name)
