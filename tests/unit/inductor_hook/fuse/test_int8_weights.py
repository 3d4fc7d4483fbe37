"""Products by an int8 weight: what is recognised, what is rewritten, and the kernel it becomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hook_graph import fused_choice, lowering, node, run, source_of, traced
from torch._dynamo.source import ConstantSource
from torch._dynamo.utils import counters
from torch._inductor.fx_passes import post_grad
from torch._inductor.fx_utils import count_flops_fx
from torch._inductor.ir import InputBuffer
from torch.fx import Graph, GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tilecast.inductor_hook import install
from tilecast.inductor_hook.fuse.baseline import packed
from tilecast.inductor_hook.fuse.form import Match
from tilecast.inductor_hook.fuse.fx import PRODUCTS
from tilecast.inductor_hook.fuse.int8 import quantized_products
from tilecast.inductor_hook.offer.template import TilecastCaller
from tilecast.kernels.spec import KernelSpec

M, N, K = 48, 64, 32
BF16, FP16, FP32, INT8 = torch.bfloat16, torch.float16, torch.float32, torch.int8
Function = Callable[..., Any]
Tensor = torch.Tensor


def _torchao(x: Tensor, w: Tensor, s: Tensor, b: Tensor) -> Tensor:
    """As its int8 weight-only quantization writes it."""
    product = torch.mm(x.reshape(-1, x.shape[-1]), w.t().to(x.dtype))
    scaled = product * s.to(product.dtype).flatten()
    return scaled.reshape(*x.shape[:-1], w.shape[0]) + b


FORMS: dict[str, tuple[Function, tuple[int, ...], torch.dtype, bool, bool]] = {
    "torchao": (_torchao, (N, 1), BF16, True, True),
    "torchao, scales in fp32": (_torchao, (N, 1), FP32, True, True),
    "without bias": (lambda x, w, s, b: F.linear(x, w.to(x.dtype)) * s, (N,), BF16, True, False),
    "with bias": (lambda x, w, s, b: b + s * F.linear(x, w.to(x.dtype)), (N,), BF16, True, True),
    "a row": (lambda x, w, s, b: F.linear(x, w.to(x.dtype)) * s, (1, N), BF16, True, False),
    "into fp32 and back": (
        lambda x, w, s, b: (F.linear(x, w.to(x.dtype)) * s).to(x.dtype) + b,
        *((N,), FP32, True, True),
    ),
    "bias in fp32": (
        lambda x, w, s, b: (F.linear(x, w.to(x.dtype)) * s + b).to(x.dtype),
        *((N,), FP32, True, True),
    ),
    "no scales": (lambda x, w, s, b: F.linear(x, w.to(x.dtype)), (N,), BF16, False, False),
    "bias alone": (lambda x, w, s, b: F.linear(x, w.to(x.dtype), b), (N,), BF16, False, True),
    "matmul": (lambda x, w, s, b: x @ w.t().to(x.dtype), (N,), BF16, False, False),
}
"""Ways to multiply by an int8 weight: scales' shape and type, whether they and a bias are taken."""
PARTS: dict[str, Function] = {
    "scaled by a number": lambda x, w, s, b: F.linear(x, w.to(x.dtype)) * 2,
    "scaled by an extent": lambda x, w, s, b: F.linear(x, w.to(x.dtype)) * x.shape[0],
    "scaled by itself": lambda x, w, s, b: (lambda y: y * y)(F.linear(x, w.to(x.dtype))),
    "scaled by rows": lambda x, w, s, b: F.linear(x, w.to(x.dtype)) * x.sum(-1, keepdim=True),
    "read twice": lambda x, w, s, b: (lambda y: (y * s, y))(F.linear(x, w.to(x.dtype))),
    "computed scales": lambda x, w, s, b: F.linear(x, w.to(x.dtype)) * (s + 1),
    "scales through fp16": lambda x, w, s, b: F.linear(x, w.to(x.dtype)) * s.half().to(x.dtype),
    "into fp32": lambda x, w, s, b: F.linear(x, w.to(x.dtype)) * s.float(),
    "reversed scales": lambda x, w, s, b: F.linear(x, w.to(x.dtype)) * s.flip(0),
}
"""What ends in other than a row of scales: the product alone is ours."""
OTHERS: dict[str, Function] = {
    "the weight is scaled": lambda x, w, s, b: F.linear(x, w.to(x.dtype) * s.reshape(N, 1)),
    "computed weight": lambda x, w, s, b: F.linear(x, (w + 1).to(x.dtype)),
    "converted for two": lambda x, w, s, b: (lambda v: (x @ v.t(), v * 2))(w.to(x.dtype)),
    "through fp32": lambda x, w, s, b: F.linear(x, w.float().to(x.dtype)),
    "A is int8": lambda x, w, s, b: w.to(x.dtype) @ x.t(),
    "a matrix is added": lambda x, w, s, b: torch.addmm(
        torch.stack((b,) * M), x.reshape(-1, K), w.t().to(x.dtype)
    ),
    "alpha": lambda x, w, s, b: torch.addmm(b, x.reshape(-1, K), w.t().to(x.dtype), alpha=2),
}
"""What is no product that a kernel of ours does, or would save no conversion."""


def _specs(
    scales: tuple[int, ...] = (N,),
    scales_dtype: torch.dtype = BF16,
    rank: int = 2,
    dtype: torch.dtype = BF16,
    weight: torch.dtype = INT8,
) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shape and type of x, weight, scales and bias."""
    rows = (M,) if rank == 2 else (2, M // 2)
    return [((*rows, K), dtype), ((N, K), weight), (scales, scales_dtype), ((N,), dtype)]


def _tensors(specs: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> list[Tensor]:
    torch.manual_seed(0)
    return [
        torch.randint(-128, 128, shape, dtype=dtype)
        if dtype == INT8
        else torch.randn(shape).to(dtype)
        for shape, dtype in specs
    ]


def _found(function: Function, **kind: Any) -> list[Match]:
    return list(quantized_products(traced(function, _specs(**kind))))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rank", [2, 3])
def test_every_form_is_recognised(form: str, rank: int) -> None:
    function, scales, dtype, scaled, biased = FORMS[form]
    (found,) = _found(function, scales=scales, scales_dtype=dtype, rank=rank)
    _, weight, *rows = found.operands
    assert weight.meta["val"].dtype == INT8
    assert [row.name for row in rows] == ["s_1"] * scaled + ["b_1"] * biased


@pytest.mark.parametrize("form", PARTS)
def test_what_is_no_row_of_scales_stays_behind_the_product(form: str) -> None:
    (found,) = _found(PARTS[form])
    assert found.steps == found.fused.extras == ()


@pytest.mark.parametrize("form", OTHERS)
def test_what_no_kernel_does_is_not_recognised(form: str) -> None:
    assert _found(OTHERS[form]) == []


@pytest.mark.parametrize(
    "kind",
    [{"dtype": FP16}, {"dtype": FP32}, {"weight": torch.uint8}, {"weight": FP32}],
    ids=["fp16", "fp32", "uint8", "no int8"],
)
def test_other_types_are_not_recognised(kind: dict[str, Any]) -> None:
    assert _found(lambda x, w, s, b: F.linear(x, w.to(x.dtype)), **kind) == []


def _with_stock_patterns(graph: Graph) -> Graph:
    """The same behind Inductor's own rewriting."""
    post_grad.lazy_init()
    post_grad.view_to_reshape(GraphModule({}, graph))
    for patterns in post_grad.pass_patterns[:3]:
        patterns.apply(graph)
    return graph


@pytest.mark.parametrize(
    ("form", "rank", "biased"),
    [
        ("torchao", 2, True),
        ("torchao", 3, True),
        ("without bias", 3, False),
    ],
)
def test_what_inductor_has_packed_is_recognised(form: str, rank: int, biased: bool) -> None:
    function, scales, dtype, *_ = FORMS[form]
    graph = _with_stock_patterns(traced(function, _specs(scales, dtype, rank)))
    (found,) = quantized_products(graph)
    assert found.fused.baseline is packed
    _, weight, row, *_ = found.operands
    assert (weight.name, row.name) == ("w_1", "s_1")
    found.replace(lambda *operands: None)
    graph.lint()
    alone = found.alone()
    *_, last = alone.nodes
    assert last.meta["val"].dtype == BF16
    assert [node.op for node in alone.nodes].count("placeholder") == 3 + biased


def test_inductor_counts_what_the_product_computes() -> None:
    (found,) = _found(_torchao, scales=(N, 1))
    (alone,) = (node for node in found.alone().nodes if node.target in PRODUCTS)
    assert count_flops_fx(alone) == 2 * M * N * K


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rank", [2, 3])
def test_one_node_takes_the_place_of_all(form: str, rank: int) -> None:
    """Which does what they did when it runs them as they were taken out, bit by bit."""
    function, scales, dtype, *_ = FORMS[form]
    specs = _specs(scales, dtype, rank)
    graph, operands = traced(function, specs), _tensors(specs)
    expected = run(graph, *operands)
    (found,) = quantized_products(graph)
    alone, inputs = found.alone(), found.operands
    assert alone.find_nodes(op="placeholder")[0].meta["val"].shape == (M, K)

    def fused(*operands: Tensor) -> Tensor:
        return run(alone, *operands)

    found.replace(fused)
    graph.lint()
    (replacement,) = graph.find_nodes(op="call_function", target=fused)
    assert replacement.args == inputs
    assert replacement.meta["val"].shape == (M, N)
    assert not [node for node in graph.nodes if node.target in PRODUCTS]
    assert torch.equal(run(graph, *operands), expected)


def test_one_layer_may_read_what_another_one_gives() -> None:
    def twice(x: Tensor, w: Tensor, s: Tensor, b: Tensor) -> Tensor:
        return F.linear(F.linear(x, w.to(x.dtype)) * s, w.to(x.dtype)) * s

    specs = [((M, K), BF16), ((K, K), INT8), ((K,), BF16), ((K,), BF16)]
    graph = traced(twice, specs)
    for found in quantized_products(graph):
        found.replace(lambda *operands: None)
    graph.lint()
    assert not [node for node in graph.nodes if node.target in PRODUCTS]


# How the node in place of all is lowered


COMPETING = "ATEN,TILECAST"
"""For the fixture `graph`: the backends of the graph that is being lowered."""


LONG_N, LONG_K = 4096, 1024


def _operands(
    m: Any = M,
    n: int = LONG_N,
    k: int = LONG_K,
    scales: torch.dtype | None = BF16,
    bias: bool = False,
    **kind: Any,
) -> list[InputBuffer]:
    """X, the weight as `torch.nn.Linear` stores it, and rows."""
    rows = [node("scales", [n, 1], dtype=scales, **kind)] if scales else []
    rows += [node("bias", [n], **kind)] if bias else []
    return [node("x", [m, k], **kind), node("weight", [n, k], dtype=INT8, **kind), *rows]


def _lowered(operands: Sequence[InputBuffer]) -> TilecastCaller | None:
    """The choice that does all, if any does."""
    names = [operand.get_name() for operand in operands]

    def function(x: Tensor, w: Tensor, s: Tensor, b: Tensor) -> Tensor:
        product = F.linear(x, w.to(x.dtype))
        scaled = (product * s).to(x.dtype) if "scales" in names else product
        return scaled + b if "bias" in names else scaled

    (found,) = _found(function)
    return fused_choice(found, operands)


@pytest.mark.parametrize(
    ("scales", "bias", "extras"),
    [
        (BF16, False, ":column-scales"),
        (BF16, True, ":column-scales+bias"),
        (FP32, False, ":fp32-column-scales"),
        (FP32, True, ":fp32-column-scales+bias"),
        (None, False, ""),
        (None, True, ":bias"),
    ],
)
def test_k_1_takes_the_first_without_a_benchmark(
    graph: Any, hook: list[KernelSpec], scales: torch.dtype | None, bias: bool, extras: str
) -> None:
    install(k=1, fuse=True)
    caller = _lowered(_operands(scales=scales, bias=bias))
    assert caller
    text = f"bf16xint8:rcr{extras}"
    assert caller.choice.matmul.hint.operands.text == text
    assert (caller.choice.matmul.hint.m, caller.choice.matmul.hint.n) == (M, LONG_N)
    source = source_of(caller)
    assert repr(text) in source
    assert ("row(scale_b)" in source) == (scales is not None)
    assert ("row(bias)" in source) == bias
    assert "add_bias" not in source
    assert [spec.operands.text for spec in hook] == [text]


def test_k_1_defers_what_cublas_is_expected_to_win(
    graph: Any, hook: list[KernelSpec], leaving_model: Path
) -> None:
    install(k=1, model=leaving_model, fuse=True)
    assert _lowered(_operands()) is None
    assert hook == []


@pytest.mark.parametrize(
    "operands",
    [
        lambda: _operands(n=1001),
        lambda: _operands(k=1000),
        lambda: _operands(device="cpu"),
        lambda: _operands(scales=FP16),
        lambda: [*_operands()[:2], node("scales", [LONG_N], offset=1)],
        lambda: [*_operands()[:1], node("weight", [LONG_N, LONG_K], [1, LONG_N], dtype=INT8),
                 node("scales", [LONG_N])],
    ],
    ids=["n", "k of 16 bytes", "on the CPU", "scales in fp16", "scales not aligned", "along n"],
)  # fmt: skip
@pytest.mark.parametrize("count", [1, 3])
def test_what_no_kernel_does_is_not_fused(graph: Any, operands: Any, count: int) -> None:
    install(k=count, fuse=True)
    assert _lowered(operands()) is None
    assert not [event for event in counters["tilecast"] if not event.startswith("said")]


def test_a_kernel_for_every_m(hook: list[KernelSpec]) -> None:
    symbols = ShapeEnv()
    with lowering(symbols):
        install(k=1, fuse=True)
        caller = _lowered(_operands(m=symbols.create_symbol(17, ConstantSource("m"))))
    assert caller
    assert caller.name == "tilecast_dynamic"
    assert "DynamicMatmul" in source_of(caller)
