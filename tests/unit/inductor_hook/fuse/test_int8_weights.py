"""Products by an int8 weight: what is recognised, what is rewritten, what is timed, who decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from hook_graph import Clock, applied_to, lowering, node, our_choice, run, source_of, traced
from torch._dynamo.source import ConstantSource
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.debug import DebugContext
from torch._inductor.fx_passes import post_grad
from torch._inductor.fx_utils import count_flops_fx
from torch._inductor.ir import InputBuffer, StorageBox, TensorBox
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.select_algorithm import ExternKernelCaller
from torch._inductor.virtualized import V
from torch.fx import Graph, GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tilecast.data_collection.dataset.autotuned import read_autotuned
from tilecast.heuristics.hardware import hardware
from tilecast.inductor_hook import install, installed
from tilecast.inductor_hook.fuse import activation as recognition
from tilecast.inductor_hook.fuse import int8 as quantized
from tilecast.inductor_hook.fuse import int8_fusion, unfused_baseline
from tilecast.inductor_hook.fuse.activation import PRODUCTS, activations
from tilecast.inductor_hook.fuse.int8 import (
    CONVERTED,
    PACKED,
    TURNED,
    Quantized,
    quantized_products,
)
from tilecast.inductor_hook.fuse.int8_fusion import WEIGHT
from tilecast.inductor_hook.fuse.scales import Behind
from tilecast.inductor_hook.offer.template import TilecastCaller
from tilecast.inductor_hook.timing.lowering_state import trying
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


def _found(function: Function, **kind: Any) -> list[Quantized]:
    return list(quantized_products(traced(function, _specs(**kind))))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rank", [2, 3])
def test_every_form_is_recognised(form: str, rank: int) -> None:
    function, scales, dtype, scaled, biased = FORMS[form]
    (found,) = _found(function, scales=scales, scales_dtype=dtype, rank=rank)
    _, weight, *rows = found.operands
    assert weight.meta["val"].dtype == INT8
    assert [row.name for row in rows] == ["s_1"] * scaled + ["b_1"] * biased
    assert bool(found.behind.row) == scaled
    assert bool(found.behind.bias) == biased


@pytest.mark.parametrize("form", PARTS)
def test_what_is_no_row_of_scales_stays_behind_the_product(form: str) -> None:
    (found,) = _found(PARTS[form])
    assert found.behind == Behind()


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
    assert found.form == PACKED
    assert bool(found.behind.bias) == biased
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


def test_an_activation_behind_it_is_left_to_inductor() -> None:
    def function(x: Tensor, w: Tensor, s: Tensor, b: Tensor) -> Tensor:
        return F.gelu(F.linear(x, w.to(x.dtype), b))

    graph = traced(function, _specs())
    (found,) = quantized_products(graph)
    found.replace(lambda *operands: None)
    assert list(activations(graph)) == []


@pytest.mark.parametrize("fuse", [True, False])
def test_one_setting_switches_it(asked: None, fuse: bool) -> None:
    graph = traced(_torchao, _specs((N, 1)))
    before = str(graph)
    with installed(fuse=fuse):
        added = applied_to(graph)
    assert bool(added) == fuse
    assert (str(graph) == before) == (not fuse)
    if fuse:
        target: Any = added[0].target
        assert target._inductor_lowering_function
        result = target._inductor_lowering_output_metadata_fn
        x, w, s = torch.empty(M, K), torch.empty(K, N), torch.empty(N, 1)
        assert result(x, w, s).shape == (M, N)


def test_a_weight_that_is_transposed_after_it_is_converted_has_n_rows(asked: None) -> None:
    install(fuse=True)
    added, *_ = applied_to(traced(lambda x, w, s, b: F.linear(x, w.to(x.dtype)), _specs()))
    result: Any = added.target._inductor_lowering_output_metadata_fn
    assert result(torch.empty(M, K), torch.empty(N, K)).shape == (M, N)


def test_a_pass_that_fails_leaves_the_graph_and_one_warning(
    asked: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Activations are looked for all the same."""
    install(fuse=True)
    monkeypatch.setattr(quantized, "behind", lambda *_: 1 / 0)
    for _ in range(2):
        graph = traced(lambda x, w, s, b: F.gelu(_torchao(x, w, s, b)), _specs((N, 1)))
        before = str(graph)
        assert applied_to(graph) == []
        assert str(graph) == before
    assert len(applied_to(traced(lambda x, w, s, b: F.gelu(x @ x.t()), _specs()))) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "looking for products of int8 failed" in caplog.text


def test_what_is_not_fused_is_lowered_as_without_us(
    asked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit, all forms in one graph; a second layer reads what the first one gives."""
    monkeypatch.setattr(recognition, "DEVICE", "cpu")
    forms = sorted(FORMS.keys() - {"a row"})  # PyTorch's own kernel fails on a row
    operands = []
    for place, form in enumerate(forms):
        _, scales, dtype, *_ = FORMS[form]
        operands.append(_tensors(_specs(scales, dtype, rank=2 + place % 2)))

    def layers(operands: list[list[Tensor]]) -> list[Tensor]:
        return [
            F.silu(FORMS[form][0](x, *others))[..., :K] @ x.reshape(-1, K).t()
            for form, (x, *others) in zip(forms, operands, strict=True)
        ]

    def compiled() -> list[Tensor]:
        torch._dynamo.reset()
        with torch.no_grad(), config.patch(force_disable_caches=True):
            return torch.compile(layers, fullgraph=True)(operands)

    with installed(3, fuse=True):
        found = compiled()
    assert counters["tilecast"][f"not fused: {WEIGHT}"] == len(forms)
    with installed(3, fuse=False):
        expected = compiled()
    for form, ours, stock in zip(forms, found, expected, strict=True):
        assert torch.equal(ours, stock), form


@pytest.mark.parametrize(
    "function",
    [
        _torchao,
        lambda x, w, s, b: F.linear(x, w.to(x.dtype)) + x.shape[1],
        lambda x, w, s, b: F.linear(x, w.to(x.dtype)).reshape(-1, x.shape[1]) * s[:1],
    ],
    ids=["torchao", "added to", "reshaped by it"],
)
def test_a_symbolic_m_gets_no_guard(
    asked: None, monkeypatch: pytest.MonkeyPatch, function: Function
) -> None:
    monkeypatch.setattr(recognition, "DEVICE", "cpu")
    x, *others = _tensors(_specs((N, 1), rank=3))
    torch._dynamo.mark_dynamic(x, 1)
    install(fuse=True)
    torch._dynamo.reset()
    with torch.no_grad(), config.patch(force_disable_caches=True):
        layer = torch.compile(function, fullgraph=True)
        for rows in (x, x[:, :5].clone()):
            expected = function(rows.float(), *(other.float() for other in others))
            error = (layer(rows, *others).float() - expected).norm() / expected.norm()
            assert error < 1e-2
    assert counters["tilecast"][f"not fused: {WEIGHT}"] == 1


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


def _lowered(operands: Sequence[InputBuffer], form: str = TURNED) -> TilecastCaller | None:
    """The choice of ours that does all, if any does; the first product that asks for any."""
    scaled = any(operand.get_name() == "scales" for operand in operands)
    boxes = tuple(TensorBox(StorageBox(operand)) for operand in operands)
    result: Any = int8_fusion._fused(form, scaled, boxes)
    return None if result is None else our_choice(result)


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
    assert counters["tilecast"] == {}, "counted when it is lowered"
    assert not trying.get()


def test_k_1_leaves_to_the_library_what_it_wins(
    graph: Any, hook: list[KernelSpec], leaving_model: Path
) -> None:
    install(k=1, model=leaving_model, fuse=True)
    assert _lowered(_operands()) is None
    assert hook == []


def test_it_is_recorded(graph: Any, tmp_path: Path) -> None:
    install(k=1, fuse=True, record=tmp_path / "own.csv")
    assert _lowered(_operands(bias=True))
    _, *lines = (tmp_path / "own.csv").read_text().splitlines()
    assert lines == [f"{M},{LONG_N},{LONG_K},1,bf16xint8:rcr:column-scales+bias"]


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
    assert not {"problems", "not covered: mixed_mm"} & counters["tilecast"].keys()


def test_a_kernel_for_every_m(hook: list[KernelSpec]) -> None:
    symbols = ShapeEnv()
    with lowering(symbols):
        install(k=1, fuse=True)
        caller = _lowered(_operands(m=symbols.create_symbol(17, ConstantSource("m"))))
    assert caller
    assert caller.name == "tilecast_dynamic"
    assert "DynamicMatmul" in source_of(caller)


def test_a_lowering_that_fails_is_one_warning(
    graph: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(k=1, fuse=True)
    monkeypatch.setattr(TilecastCaller, "output_node", lambda caller: 1 / 0)
    assert [_lowered(_operands()) for _ in range(2)] == [None, None]
    assert "fusing a product of int8 failed" in caplog.text
    assert len(caplog.records) == 1
    assert not trying.get()


# What is measured


@pytest.fixture
def clocked(graph: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Clock]:
    return partial(Clock.started, monkeypatch)


@pytest.mark.parametrize(
    ("ours", "without", "fused"),
    [
        (0.5, 1.0, True),
        (0.97, 1.0, True),
        (0.99, 1.0, False),
        (1.5, 1.0, False),
        (1e9, 1.0, False),
        (0.5, math.inf, False),
    ],
)
@pytest.mark.parametrize("backends", ["ATEN,TILECAST", "TILECAST", "ATEN,TRITON,TILECAST"])
def test_only_what_is_measured_to_be_faster_is_fused(
    clocked: Callable[..., Clock], ours: float, without: float, fused: bool, backends: str
) -> None:
    clock = clocked(ours, without)
    install(k=2, fuse=True)
    with config.patch(max_autotune_gemm_backends=backends):
        caller = _lowered(_operands(bias=True))
        bound, *fused_by = clock.choices
    assert [type(one) for one in clock.choices] == [ExternKernelCaller] + [TilecastCaller] * 2
    assert bound.kwargs == {"form": TURNED, "backends": backends, "ours": unfused_baseline.ours()}
    assert caller is (fused_by[0] if fused else None)
    assert counters["tilecast"] == {}


@pytest.mark.parametrize("form", [PACKED, TURNED])
def test_what_is_timed_multiplies_as_the_graph_does(
    clocked: Callable[..., Clock], form: str
) -> None:
    clock = clocked(0.5, 1.0)
    install(k=2, fuse=True)
    assert _lowered(_operands(), form)
    assert clock.choices[0].kwargs["form"] == form


def test_ours_are_written_down_without_a_library_that_did_less(
    clocked: Callable[..., Clock], tmp_path: Path
) -> None:
    clocked(0.5, 1.0)
    path = tmp_path / "own.jsonl"
    install(k=2, fuse=True, learn=path)
    assert _lowered(_operands())
    (one,) = read_autotuned([path], hardware("H200")).found
    assert one.problem.operands.text == "bf16xint8:rcr:column-scales"
    assert list(one.milliseconds.values()) == [0.5, 0.5]
    assert one.library is None


def test_without_a_benchmark_nothing_is_fused_that_would_want_one(graph: Any) -> None:
    install(k=2, fuse=True)
    with config.patch(deterministic=True):
        assert _lowered(_operands()) is None


@pytest.mark.parametrize("form", [CONVERTED, TURNED])
def test_what_is_timed_is_what_inductor_compiles(
    asked: None, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """On the CPU, while another graph is being lowered; the scales and the bias cost nothing."""
    install(k=2, fuse=True)
    unfused_baseline._compiled.cache_clear()
    x, w, s, b = _tensors(_specs())
    results: list[Tensor] = []
    compiled = unfused_baseline._compiled

    def see(*key: Any) -> Callable[[list[Tensor]], Any]:
        call = compiled(*key)

        def called(tensors: list[Tensor]) -> None:
            results.extend(cast(list[Tensor], call(tensors)))

        return called

    monkeypatch.setattr(unfused_baseline, "_compiled", see)
    token = trying.set(True)
    with lowering() as graph, V.set_debug_handler(DebugContext()):
        rows = [
            node("x", [M, K], device="cpu"),
            node("w", [K, N], [1, K], dtype=INT8, device="cpu"),
        ]
        rows += [node(name, [N], device="cpu") for name in ("s", "b")]
        layout = MMKernelInputs(rows, mat1_idx=0, mat2_idx=1).output_layout(flexible=False)
        caller = unfused_baseline.stand_in(rows, layout, form)
        milliseconds = caller.benchmark(x, w.t(), s, b, out=torch.empty(M, N, dtype=BF16))
        assert V.graph is graph
    assert 0 < milliseconds < 1000
    trying.reset(token)
    assert compiled.cache_info().misses == 1
    expected = x.float() @ w.t().float()
    for result in results:
        torch.testing.assert_close(
            result.float(), expected, rtol=0.01, atol=0.01 * expected.std().item()
        )
    assert results
    assert counters["tilecast"] == {}
