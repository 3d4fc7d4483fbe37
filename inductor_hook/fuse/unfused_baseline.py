"""What a kernel that does more than a product would replace, as choices to be timed beside it.

With an int8 weight the parts cannot be timed one by one: a Triton template may come to convert the
weight along the way. So the whole is compiled as it would be without us, with whatever backends are
named. A product of int8 by int8 is timed alone, by ATen and by the kernel of ours that the model
prefers: Triton's is behind ours at every shape that was measured
(benchmarks/results/llama_shapes.json), and to compile it takes longer than all else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.select_algorithm import ExternKernelCaller, ExternKernelChoice
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tilecast.heuristics.operands import GemmOperands
from tilecast.inductor_hook.fuse.int8 import PACKED, TURNED
from tilecast.inductor_hook.run.static import StaticMatmul
from tilecast.inductor_hook.settings import active, cache_key

ALONE = GemmOperands.parse("int8:rcr>int32")
"""Operands of a product of int8 by int8 that nothing scales, with a weight as a layer stores it."""
ATEN = "ATen"
"""Who multiplies where it is no kernel of ours."""
WITHOUT_US = "tilecast_product_without_us"
"""Name of the choice that is what Inductor makes of a product, and of the graph that this is."""


@cache
def without_us() -> ExternKernelChoice:
    """What Inductor makes of a product; it is benchmarked and never taken."""
    return ExternKernelChoice(_run, name=WITHOUT_US)


@cache
def alone() -> ExternKernelChoice:
    """A product of int8 by int8 that nothing scales; it is benchmarked and never taken."""
    return ExternKernelChoice(_run_alone, name="tilecast_product_alone")


def is_stand_in(choice: Any) -> bool:
    """Whether a choice is only there to be timed."""
    return isinstance(choice, ExternKernelCaller) and choice.choice in (without_us(), alone())


def stand_in(nodes: list[Any], layout: Any, form: str) -> ExternKernelCaller:
    """The choice for a product by an int8 weight.

    By an int8 weight a bias costs nothing, nor do scales but of a packed one: Inductor may see to
    them in a kernel that there is in any case.

    Args:
        nodes: A (m, k), B (k, n) as it is stored, and what scales and is added, in the order of
            `tilecast.inductor_hook.describe.matmul.INPUTS`.
        layout: of the result.
        form: how the graph multiplies, `tilecast.inductor_hook.fuse.int8.Quantized.form`.
    """
    # Keywords are part of the key that Inductor keeps the time under.
    backends = config.max_autotune_gemm_backends
    return without_us().bind(nodes, layout, form=form, backends=backends, ours=ours())


def ours() -> str:
    """What tells the choices of ours that compete for a product from those of other settings."""
    return hashlib.sha256(repr(cache_key(active())).encode()).hexdigest()[:16]


def stand_in_alone(nodes: list[Any], layout: Any, kernel: str) -> ExternKernelCaller:
    """The choice for a product of int8 by int8 that nothing scales.

    Args:
        nodes: A (m, k), B (k, n) and what scales and is added.
        layout: of the scaled result.
        kernel: the name of a config of ours, or `ATEN`.
    """
    return alone().bind(nodes, layout, kernel=kernel)


def _run_alone(
    a: torch.Tensor, b: torch.Tensor, *others: torch.Tensor, out: torch.Tensor, kernel: str
) -> None:
    product = out.new_empty(out.shape, dtype=torch.int32)
    if kernel == ATEN:
        torch.ops.aten._int_mm.out(a, b, out=product)
    else:
        _named(kernel)(a, b, product)


@cache
def _named(kernel: str) -> StaticMatmul:
    return StaticMatmul.named(kernel, ALONE.text, False)


def _run(
    a: torch.Tensor,
    b: torch.Tensor,
    *others: torch.Tensor,
    out: torch.Tensor,
    form: str,
    backends: str,
    ours: str,
) -> None:
    if form == PACKED:
        torch.ops.aten._weight_int8pack_mm(a, b.t(), others[0])
        return
    stored = (a.shape, a.stride(), b.shape, b.stride(), a.dtype, b.dtype, a.device)
    # A list of its own, which the generated code empties.
    _compiled(*stored, form, backends, ours)([a, b])


@cache
def _compiled(
    a_shape: torch.Size,
    a_strides: tuple[int, ...],
    b_shape: torch.Size,
    b_strides: tuple[int, ...],
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    device: torch.device,
    form: str,
    backends: str,
    ours: str,
) -> Callable[[list[torch.Tensor]], object]:
    """Generated code for a product, as a graph of its own."""

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.mm(a, b.t().to(a.dtype).t() if form == TURNED else b.to(a.dtype))

    fake = FakeTensorMode()
    with fake:
        a = torch.empty_strided(a_shape, a_strides, dtype=a_dtype, device=device)
        b = torch.empty_strided(b_shape, b_strides, dtype=b_dtype, device=device)
    operands = [a, b]
    traced = make_fx(product, decomposition_table=select_decomp_table())(*operands)
    graph = GraphLowering(traced, operands, is_inference=V.graph.is_inference, name=WITHOUT_US)
    with V.set_graph_handler(graph), V.set_fake_mode(fake):
        graph.run(*operands)
        return graph.compile_to_module().call
