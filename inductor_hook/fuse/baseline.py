"""What a fused kernel would replace: compiled without fusing, or multiplied by ATen.

The parts cannot be timed one by one: a Triton template may come to do an activation, or to convert
a weight, along the way. So the whole is compiled as a graph of its own. Where nothing is fused
then, Inductor asks for that very product, and finds choices compiled and timed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from tilecast.data_collection.timing.torch_reference import torch_launch
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import GemmOperands
from tilecast.inductor_hook.fuse.form import Replaced
from tilecast.inductor_hook.names import without
from tilecast.inductor_hook.offer.offer import ON_TRIAL
from tilecast.inductor_hook.run.static import StaticMatmul
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.select.selection import shortlist
from tilecast.inductor_hook.settings import active, cache_key
from tilecast.inductor_hook.timing.stand_in import StandIn
from tilecast.kernels.build.builder import object_builder
from tilecast.kernels.spec import KernelSpec

Tensor = torch.Tensor
INT8_ALONE = GemmOperands.parse("int8:rcr>int32")
"""Operands of a product of int8 by int8 that nothing scales, with a weight as a layer stores it."""
SCALING_MS = 3e-4
"""Milliseconds that a separate kernel for the scales costs, beside the bytes that it reads: at 64
rows a model is faster with kernels that take so much more than the product alone
(kernels/EXPERIMENTS.md)."""
SPARED_BYTES = 2
"""Of each element: a separate kernel reads 32 bits instead of 16."""


def whole(replaced: Replaced) -> list[StandIn]:
    """All that is replaced, as Inductor compiles it, and by PyTorch's operators one by one.

    Without Triton's templates, which take longest to compile: of 18 layers none that was fused is
    more than 1.4% slower than with them (benchmarks/results/fused_activations.json).
    """
    operands, graph = replaced.problem.operands, Graph()
    graph.output(graph.graph_copy(replaced.alone, {}) or [*graph.nodes][-1])
    function, launch = GraphModule({}, graph), torch_launch(operands)

    def in_turn(a: Tensor, b: Tensor, *extras: Tensor, out: Tensor) -> None:
        launch(a, b, out, *extras)

    backends = ",".join(without(config.max_autotune_gemm_backends.upper(), "TRITON"))
    return [
        _compiled_alone(replaced, _text(graph), function, backends=backends),
        StandIn(f"ATen {operands}", in_turn, replaced.nodes, replaced.layout, library=True),
    ]


def unscaled(turned: bool, replaced: Replaced) -> list[StandIn]:
    """A product by an int8 weight, as Inductor compiles it without scales and bias.

    Inductor may compute these in a kernel that runs anyway. If ``turned``, the graph transposes the
    converted weight.
    """

    def product(a: Tensor, b: Tensor) -> Tensor:
        return torch.mm(a, b.t().to(a.dtype).t() if turned else b.to(a.dtype))

    return [_compiled_alone(replaced, f"product by int8 {turned}", product, inputs=2)]


def packed(replaced: Replaced) -> list[StandIn]:
    """A product by an int8 weight with its scales, as ATen has it in one operator."""

    def run(a: Tensor, b: Tensor, scales: Tensor, *bias: Tensor, out: Tensor) -> None:
        torch.ops.aten._weight_int8pack_mm(a, b.t(), scales)

    return [StandIn("packed", run, replaced.nodes, replaced.layout)]


def int8_alone(replaced: Replaced) -> list[StandIn]:
    """A product of int8 by int8 that nothing scales: by ATen and by the model's first kernel.

    Triton's is slower than these at every shape that was measured and takes longest to compile
    (benchmarks/results/llama_shapes.json). Nothing where neither multiplies.
    """
    device = replaced.nodes[0].get_device()
    problem = replace(replaced.problem, operands=INT8_ALONE)
    gpu = selection.hardware_of(device.index or 0, replaced.settings)
    byte_ms = 1e3 * problem.m * problem.n / gpu.dram_bytes_per_second
    kernels: dict[str, Callable[..., object]] = {}
    if replaced.problem.in_library:
        kernels["ATen"] = lambda a, b, out: torch.ops.aten._int_mm.out(a, b, out=out)
    # A model of one's own may know none of the results.
    with suppress(TilecastError):
        best = shortlist(replaced.settings, problem, gpu)[0].config
        object_builder().start(KernelSpec(best, INT8_ALONE, batched=False))
        kernels[best.name] = StaticMatmul.named(best.name, INT8_ALONE.text, False)

    def stand_in(name: str, multiply: Callable[..., object]) -> StandIn:
        def run(a: Tensor, b: Tensor, *others: Tensor, out: Tensor) -> None:
            multiply(a, b, out.new_empty(out.shape, dtype=torch.int32))

        spared = SCALING_MS + SPARED_BYTES * byte_ms
        what = f"int8 product by {name}"
        return StandIn(what, run, replaced.nodes, replaced.layout, spared_ms=spared)

    return [stand_in(*kernel) for kernel in kernels.items()]


def _compiled_alone(
    replaced: Replaced,
    what: str,
    function: Callable[..., Tensor],
    *,
    inputs: int | None = None,
    backends: str | None = None,
) -> StandIn:
    """A function of a kernel's first operands, or of all, as Inductor compiles it.

    Its product goes to some backends, to all that are named when left out.
    """
    competing = backends or config.max_autotune_gemm_backends
    # In the key that Inductor keeps its time under: what competes for the product.
    settings = hashlib.sha256(repr(cache_key(active())).encode()).hexdigest()[:16]
    key = f"{what} {competing} {settings}"

    def run(*operands: Tensor, out: Tensor) -> None:
        tensors = operands[:inputs]
        stored = tuple((x.shape, x.stride(), x.dtype, x.device) for x in tensors)
        call = _calls.get((key, stored))
        if call is None:
            with config.patch(max_autotune_gemm_backends=competing):
                call = _calls[key, stored] = _compiled(function, stored)
        # A list of its own, which the generated code empties.
        call([*tensors])

    return StandIn(key, run, replaced.nodes, replaced.layout)


_calls: dict[tuple[str, tuple], Callable[[list[Tensor]], Any]] = {}
"""Generated code by what it computes, of which operands: layers of one shape share it."""


def _compiled(
    function: Callable[..., Tensor], stored: Sequence[tuple]
) -> Callable[[list[Tensor]], Any]:
    fake = FakeTensorMode()
    with fake:
        operands = [
            torch.empty_strided(shape, strides, dtype=dtype, device=device)
            for shape, strides, dtype, device in stored
        ]
    traced = make_fx(function, decomposition_table=select_decomp_table())(*operands)
    graph = GraphLowering(traced, operands, is_inference=V.graph.is_inference, name=ON_TRIAL)
    with V.set_graph_handler(graph), V.set_fake_mode(fake):
        graph.run(*operands)
        return graph.compile_to_module().call


def _text(graph: Graph) -> str:
    """A graph without the names that its nodes happen to have."""
    names = {node: f"%{place}" for place, node in enumerate(graph.nodes)}
    lines = [
        f"{node.op} {node.target if node.op == 'call_function' else ''} "
        f"{map_arg((node.args, node.kwargs), names.__getitem__)}"
        for node in graph.nodes
    ]
    return "; ".join(lines)
