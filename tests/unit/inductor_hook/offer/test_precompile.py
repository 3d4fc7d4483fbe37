"""Looking ahead: what starts to compile for a whole graph is what its products ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hook_graph import (
    applied_to,
    batched,
    biased_linear,
    int_linear,
    linear,
    lowered,
    lowering,
    node,
    scale,
    scaled_linear,
    traced,
)
from torch._inductor import config
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.lowering import lowerings
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tilecast.inductor_hook import install
from tilecast.inductor_hook.describe.product import Product
from tilecast.kernels.spec import KernelSpec

aten = torch.ops.aten
M, N, K = 200, 1024, 512
Function = Callable[..., Any]
BF16, FP32, FP8, INT8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int8


def _scaled(a: torch.Tensor, weight: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
    scale_a, scale_b, *bias = more
    options = {"out_dtype": BF16, "use_fast_accum": True}
    return aten._scaled_mm(a, weight.t(), scale_a, scale_b, *bias, **options)


def _lower_scaled(*more: Any, **kind: Any) -> None:
    nodes = scaled_linear(M, N, K, *more, **kind).nodes()
    lowered(aten._scaled_mm.default, *nodes, use_fast_accum=True, out_dtype=BF16)


def _lower(op: Any, inputs: Callable[[], MMKernelInputs]) -> Callable[[], None]:
    return lambda: (lowered(op, *inputs().nodes()), None)[1]


CASES: dict[str, tuple[Function, list[tuple[tuple[int, ...], torch.dtype]], Callable[[], None]]] = {
    "linear": (
        F.linear,
        [((M, K), BF16), ((N, K), BF16)],
        _lower(aten.mm, lambda: linear(M, N, K)),
    ),
    "product": (
        torch.mm,
        [((M, K), BF16), ((K, N), BF16)],
        _lower(aten.mm, lambda: MMKernelInputs([node("a", [M, K]), node("b", [K, N])])),
    ),
    "gradient": (
        lambda g, x: g.t() @ x,
        [((M, K), BF16), ((M, N), BF16)],
        _lower(aten.mm, lambda: MMKernelInputs([node("a", [K, M], [1, K]), node("b", [M, N])])),
    ),
    "rows of any length": (
        F.linear,
        [((M, K), BF16), ((1001, K), BF16)],
        _lower(aten.mm, lambda: linear(M, 1001, K)),
    ),
    "bias": (
        F.linear,
        [((M, K), BF16), ((N, K), BF16), ((N,), BF16)],
        lambda: _lower_addmm(biased_linear(M, N, K)),
    ),
    "batch": (
        lambda a, b: a @ b.mT,
        [((4, M, K), BF16), ((4, 128, K), BF16)],
        _lower(aten.bmm, lambda: batched(M, 128, K)),
    ),
    "int8": (
        lambda a, weight: aten._int_mm(a, weight.t()),
        [((M, K), INT8), ((N, K), INT8)],
        _lower(aten._int_mm, lambda: int_linear(M, N, K)),
    ),
    "fp8 by rows": (
        _scaled,
        [((M, K), FP8), ((N, K), FP8), ((M, 1), FP32), ((1, N), FP32), ((N,), BF16)],
        lambda: _lower_scaled(node("bias", [N])),
    ),
    "fp8 by a number": (
        _scaled,
        [((M, K), FP8), ((N, K), FP8), ((), FP32), ((), FP32)],
        lambda: _lower_scaled(scales=[scale("scale_a"), scale("scale_b")]),
    ),
}
"""Products, their operands, and the lowering of each."""


def _lower_addmm(inputs: MMKernelInputs) -> None:
    bias, a, b = inputs.nodes()
    lowered(lambda *operands: lowerings[aten.addmm](*operands), bias, a, b)


def _seen(graph: Graph, hook: list[KernelSpec]) -> list[KernelSpec]:
    """The kernels that begin to compile when our pass sees a graph."""
    hook.clear()
    with config.patch(max_autotune=True):
        assert applied_to(graph) == []
    seen = hook.copy()
    hook.clear()
    return seen


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_what_starts_is_what_lowering_asks_for(hook: list[KernelSpec], case: str, k: int) -> None:
    function, operands, lower = CASES[case]
    install(k=k)
    seen = _seen(traced(function, operands), hook)
    with lowering(), config.patch(max_autotune_gemm_backends="TRITON,TILECAST"):
        lower()
    assert len(seen) == k
    assert seen == hook


def test_where_rows_are_to_keep_their_bits_the_kernels_for_that_start(
    hook: list[KernelSpec],
) -> None:
    m, n, k = 16, 512, 16384
    install(k=3, invariant=True)
    seen = _seen(traced(F.linear, [((m, k), BF16), ((n, k), BF16)]), hook)
    with lowering(), config.patch(max_autotune_gemm_backends="TILECAST"):
        lowered(aten.mm, *linear(m, n, k).nodes())
    assert {spec.operands.text for spec in seen} == {"bf16:rcr@4xfp32"}
    assert seen == hook


def test_all_products_of_a_graph_start_in_their_order(hook: list[KernelSpec]) -> None:
    def function(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return F.linear(torch.relu(F.linear(x, first)), second)

    shapes = [(M, K), (N, K), (K, N)]
    install(k=2, fuse=False)
    both = _seen(traced(function, [(shape, BF16) for shape in shapes]), hook)
    layers = [((M, K), (N, K)), ((M, N), (K, N))]
    alone = [_seen(traced(F.linear, [(shape, BF16) for shape in one]), hook) for one in layers]
    assert both == [*alone[0], *alone[1]]
    assert alone[0] != alone[1]


def _symbolic(
    function: Function, make: Callable[[torch.SymInt], tuple[torch.Tensor, ...]]
) -> Callable[[], Graph]:
    """Gives the graph of a function of what is made of a number that nothing is known of."""

    def graph() -> Graph:
        symbols = ShapeEnv()
        with FakeTensorMode(shape_env=symbols), torch.device("cuda"):
            operands = make(symbols.create_unbacked_symint())
        return make_fx(function)(*operands).graph

    return graph


def _half(*shape: int | torch.SymInt) -> torch.Tensor:
    return torch.empty(shape, dtype=BF16)


OTHERS: dict[str, Callable[[], Graph]] = {
    "on the CPU": lambda: traced(F.linear, CASES["linear"][1], "cpu"),
    "in float32": lambda: traced(F.linear, [((M, K), FP32), ((N, K), FP32)]),
    "with a symbolic extent": _symbolic(F.linear, lambda m: (_half(m, K), _half(N, K))),
    "with a row that starts somewhere": _symbolic(
        lambda rows, a, b: torch.addmm(rows, a, b),
        lambda start: (_half(2 * N).as_strided((N,), (1,), start), _half(M, K), _half(K, N)),
    ),
    "with a symbolic factor": _symbolic(
        lambda bias, a, b, rows: torch.addmm(bias, a, b, alpha=rows.shape[0]),
        lambda m: (_half(M, N), _half(M, K), _half(K, N), _half(m, 1)),
    ),
    "no product": lambda: traced(torch.relu, [((M, K), BF16)]),
    "rows that TMA does not read": lambda: traced(F.linear, [((M, 513), BF16), ((N, 513), BF16)]),
}
"""Graphs in which nothing is foreseen."""


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_not_foreseen_waits_for_its_lowering(
    hook: list[KernelSpec], case: str, caplog: pytest.LogCaptureFixture
) -> None:
    install()
    assert _seen(OTHERS[case](), hook) == []
    assert [one for one in caplog.records if one.levelname == "WARNING"] == []


@pytest.mark.parametrize("deterministic", [False, True])
def test_what_falls_back_to_aten_without_a_benchmark_is_not_compiled(
    hook: list[KernelSpec], model_of: Callable[..., Path], deterministic: bool
) -> None:
    install(k=1, model=model_of("bf16:rcr", leaves=True))
    with config.patch(deterministic=deterministic):
        seen = _seen(traced(F.linear, CASES["linear"][1]), hook)
    assert len(seen) == (not deterministic)


def test_a_look_that_fails_is_one_warning(
    hook: list[KernelSpec], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install()
    monkeypatch.setattr(Product, "problem", lambda *_: 1 / 0)
    for _ in range(2):
        graph = traced(F.linear, CASES["linear"][1])
        before = str(graph)
        assert _seen(graph, hook) == []
        assert str(graph) == before
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "starting to compile kernels failed" in caplog.text
