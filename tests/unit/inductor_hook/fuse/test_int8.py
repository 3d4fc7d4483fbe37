"""Products that read int8: what is recognised, what is rewritten, and who decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import torch.nn.functional as F
from hook_graph import Clock, fused_choice, node, replaced, source_of, symbolic, traced
from torch._dynamo.utils import counters
from torch._inductor.fx_passes import post_grad
from torch._inductor.ir import ComputedBuffer, CuteDSLTemplateBuffer, StorageBox, TensorBox
from torch._inductor.lowering import lowerings
from torch.fx import Graph, GraphModule

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import install
from tilecast.inductor_hook.fuse import baseline
from tilecast.inductor_hook.fuse.form import Match
from tilecast.inductor_hook.fuse.fx import INT8_PRODUCT, PRODUCTS, aten
from tilecast.inductor_hook.fuse.int8 import quantized_products
from tilecast.inductor_hook.offer.template import TilecastCaller
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.settings import Settings
from tilecast.inductor_hook.timing.stand_in import StandIn
from tilecast.kernels.families import parse_config
from tilecast.kernels.spec import KernelSpec

M, N, K = 48, 64, 32
LONG_N, LONG_K = 4096, 1024
BF16, FP16, FP32, INT8 = torch.bfloat16, torch.float16, torch.float32, torch.int8
Function = Callable[..., Any]
Tensor = torch.Tensor
COMPETING = "ATEN,TILECAST"
"""For the fixture `graph`: the backends of the graph that is being lowered."""


def _weight_only(x: Tensor, w: Tensor, s: Tensor, b: Tensor) -> Tensor:
    """As torchao's int8 weight-only quantization writes it."""
    product = torch.mm(x.reshape(-1, x.shape[-1]), w.t().to(x.dtype))
    scaled = product * s.to(product.dtype).flatten()
    return scaled.reshape(*x.shape[:-1], w.shape[0]) + b


def _quantized(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The rows of x as int8, and their scales."""
    scales = (x.abs().amax(-1, keepdim=True).to(dtype) / 127).clamp(min=1e-5)
    whole = torch.clamp(torch.round(x / scales), -128, 127).to(INT8)
    return whole.reshape(-1, x.shape[-1]), scales.reshape(-1, 1)


def _dynamic(x: Tensor, w: Tensor, s: Tensor, b: Tensor) -> Tensor:
    """As torchao's int8 dynamic quantization writes it."""
    a, column = _quantized(x, s.dtype)
    product = aten._int_mm(a, w.t()) * column.expand(a.shape[0], w.shape[0])
    result = (product.to(s.dtype) * s.flatten()).reshape(*x.shape[:-1], w.shape[0])
    return result.to(x.dtype) + b


def _columns_first(x: Tensor, w: Tensor, s: Tensor, b: Tensor) -> Tensor:
    a, column = _quantized(x, s.dtype)
    product = aten._int_mm(a, w.t()).to(s.dtype)
    return (column * (s.flatten() * product)).to(x.dtype).reshape(*x.shape[:-1], w.shape[0])


def _plain(function: Function) -> Function:
    """Of the product, A's and B's scales, and b, of a matrix x."""

    def whole(x: Tensor, w: Tensor, s: Tensor, b: Tensor) -> Any:
        a, column = _quantized(x, s.dtype)
        return function(aten._int_mm(a, w.t()), column, s.flatten(), b)

    return whole


FORMS: dict[str, tuple[Function, tuple[int, ...], torch.dtype, list[str]]] = {
    "weight only": (_weight_only, (N, 1), BF16, ["s_1", "b_1"]),
    "weight only, scales in fp32": (_weight_only, (N, 1), FP32, ["s_1", "b_1"]),
    "without bias": (lambda x, w, s, b: F.linear(x, w.to(x.dtype)) * s, (N,), BF16, ["s_1"]),
    "with bias": (
        lambda x, w, s, b: b + s * F.linear(x, w.to(x.dtype)),
        *((N,), BF16, ["s_1", "b_1"]),
    ),
    "a row": (lambda x, w, s, b: F.linear(x, w.to(x.dtype)) * s, (1, N), BF16, ["s_1"]),
    "into fp32 and back": (
        lambda x, w, s, b: (F.linear(x, w.to(x.dtype)) * s).to(x.dtype) + b,
        *((N,), FP32, ["s_1", "b_1"]),
    ),
    "bias in fp32": (
        lambda x, w, s, b: (F.linear(x, w.to(x.dtype)) * s + b).to(x.dtype),
        *((N,), FP32, ["s_1", "b_1"]),
    ),
    "no scales": (lambda x, w, s, b: F.linear(x, w.to(x.dtype)), (N,), BF16, []),
    "bias alone": (lambda x, w, s, b: F.linear(x, w.to(x.dtype), b), (N,), BF16, ["b_1"]),
    "matmul": (lambda x, w, s, b: x @ w.t().to(x.dtype), (N,), BF16, []),
    "dynamic": (_dynamic, (N, 1), BF16, ["s_1", "b_1"]),
    "dynamic, scales in fp32": (_dynamic, (N, 1), FP32, ["s_1", "b_1"]),
    "columns first": (_columns_first, (N, 1), FP32, ["s_1"]),
}
"""Ways to multiply: scales' shape and type, and which of them and of a bias a kernel reads."""
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
"""What ends in other than a row of scales: the product alone is done by a kernel."""
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
    "rows alone": _plain(lambda c, column, s, b: c * column + b),
    "columns alone": _plain(lambda c, column, s, b: c * s),
    "one number for all rows": _plain(lambda c, column, s, b: c * column.amax() * s),
    "one for all rows, as a matrix": _plain(lambda c, column, s, b: c * column.amax(0, True) * s),
    "a bias between": _plain(lambda c, column, s, b: (c * column + b) * s),
    "through fp16": _plain(lambda c, column, s, b: (c * column).half() * s),
    "scales in fp16": _plain(lambda c, column, s, b: c * column.half() * s),
    "computed columns": _plain(lambda c, column, s, b: c * column * (s + 1)),
    "stays in fp32": _plain(lambda c, column, s, b: c * column * s.float()),
    "read twice": _plain(lambda c, column, s, b: (c * column * s, c)),
}
"""What no kernel does at once, or what would save no conversion."""


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


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_scales_of_rows_that_are_stored_are_read_as_they_are(dtype: torch.dtype) -> None:
    """In bf16 they would have to be converted first, by a kernel of its own."""
    found = _found(
        lambda x, w, s, b: (aten._int_mm(w, w.t()) * s * s.t()).to(BF16),
        scales=(N, 1),
        scales_dtype=dtype,
    )
    assert [one.operands[2].name for one in found] == (["s_1"] if dtype == FP32 else [])


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
        ("weight only", 2, True),
        ("weight only", 3, True),
        ("without bias", 3, False),
    ],
)
def test_what_inductor_has_packed_is_recognised(form: str, rank: int, biased: bool) -> None:
    function, scales, dtype, *_ = FORMS[form]
    graph = _with_stock_patterns(traced(function, _specs(scales, dtype, rank)))
    (found,) = quantized_products(graph)
    assert found.fused.baseline is baseline.packed
    _, weight, row, *_ = found.operands
    assert (weight.name, row.name) == ("w_1", "s_1")
    found.replace(lambda *operands: None)
    graph.lint()
    alone = found.alone()
    *_, last = alone.nodes
    assert last.meta["val"].dtype == BF16
    assert [node.op for node in alone.nodes].count("placeholder") == 3 + biased


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rank", [2, 3])
def test_one_node_takes_the_place_of_all(form: str, rank: int) -> None:
    """Which does what they did when it runs them as they were taken out, bit by bit."""
    function, scales, dtype, rows = FORMS[form]
    specs = _specs(scales, dtype, rank)
    graph = traced(function, specs)
    (found,) = quantized_products(graph)
    _, weight, *others = found.operands
    assert weight.meta["val"].dtype == INT8
    assert [one.name for one in others if one.op == "placeholder"] == rows
    columns = [one.meta["val"] for one in others if one.op != "placeholder"]
    assert [(one.shape, one.dtype) for one in columns] in ([], [((M, 1), dtype)])
    result = replaced(graph, found, *_tensors(specs)).meta["val"]
    assert (result.shape, result.dtype) == ((M, N), BF16)
    assert not [node for node in graph.nodes if node.target in (*PRODUCTS, INT8_PRODUCT)]


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


def _weight(
    m: Any = M,
    n: int = LONG_N,
    k: int = LONG_K,
    scales: torch.dtype | None = BF16,
    bias: bool = False,
    **kind: Any,
) -> list[Any]:
    """X, the weight as `torch.nn.Linear` stores it, and rows."""
    rows = [node("scales", [n, 1], dtype=scales, **kind)] if scales else []
    rows += [node("bias", [n], **kind)] if bias else []
    return [node("x", [m, k], **kind), node("weight", [n, k], dtype=INT8, **kind), *rows]


def _product(
    m: Any = M,
    row: torch.dtype = BF16,
    bias: bool = False,
    computed: bool = True,
    step: int = 1,
    weight: list[int] | None = None,
) -> list[TensorBox]:
    """A, B, A's scales and rows; A's are computed in bf16, or stored in fp32."""

    def box(*what: Any, **kind: Any) -> Any:
        return TensorBox(StorageBox(node(*what, **kind)))

    b = lowerings[aten.permute](box("weight", [LONG_N, LONG_K], weight, dtype=INT8), [1, 0])
    column = box("column", [m, 1], [step, 1], dtype=BF16 if computed else FP32)
    if computed:
        column = lowerings[aten.mul](column, 2)
    rows = [box("row", [LONG_N, 1], dtype=row)] + [box("bias", [LONG_N])] * bias
    return [box("a", [m, LONG_K], dtype=INT8), b, column, *rows]


def _lowered(operands: Sequence[Any]) -> TilecastCaller | None:
    """The tilecast choice that does all, if any does; of operands of `_weight` or `_product`."""
    if isinstance(operands[0], TensorBox):
        scales = FP32 if operands[3].get_dtype() == FP32 else BF16
        function = _dynamic if len(operands) > 4 else _columns_first
        (found,) = _found(function, scales=(N, 1), scales_dtype=scales)
        return fused_choice(found, operands)
    names = [operand.get_name() for operand in operands]

    def by_weight(x: Tensor, w: Tensor, s: Tensor, b: Tensor) -> Tensor:
        product = F.linear(x, w.to(x.dtype))
        scaled = (product * s).to(x.dtype) if "scales" in names else product
        return scaled + b if "bias" in names else scaled

    (found,) = _found(by_weight)
    return fused_choice(found, operands)


@pytest.mark.parametrize(
    ("operands", "text"),
    [
        (lambda: _weight(), "bf16xint8:rcr:column-scales"),
        (lambda: _weight(bias=True), "bf16xint8:rcr:column-scales+bias"),
        (lambda: _weight(scales=FP32), "bf16xint8:rcr:fp32-column-scales"),
        (lambda: _weight(scales=FP32, bias=True), "bf16xint8:rcr:fp32-column-scales+bias"),
        (lambda: _weight(scales=None), "bf16xint8:rcr"),
        (lambda: _weight(scales=None, bias=True), "bf16xint8:rcr:bias"),
        (lambda: _product(bias=True), "int8:rcr>bf16:out-row-scales+bias"),
        (lambda: _product(), "int8:rcr>bf16:out-row-scales"),
        (lambda: _product(row=FP32, bias=True), "int8:rcr>bf16:row-scales+bias"),
    ],
)
def test_k_1_takes_the_first_without_a_benchmark(
    graph: Any, hook: list[KernelSpec], operands: Any, text: str
) -> None:
    install(k=1, fuse=True)
    caller = _lowered(operands())
    assert caller
    assert caller.choice.matmul.hint.operands.text == text
    assert (caller.choice.matmul.hint.m, caller.choice.matmul.hint.n) == (M, LONG_N)
    source = source_of(caller)
    assert repr(text) in source
    assert ("row(scale_b)" in source) == ("scales" in text)
    assert ("row(bias)" in source) == ("bias" in text)
    assert [spec.operands.text for spec in hook] == [text]
    if "row-scales" in text:  # a kernel that Inductor may fuse writes those of rows
        column = caller.input_nodes[2]
        assert "scale_a.view(-1), row(scale_b)" in source
        assert (column.get_dtype(), type(column.data)) == (FP32, ComputedBuffer)
        assert column.get_size() == [M, 1]


def test_scales_that_are_there_are_not_copied(graph: Any) -> None:
    install(k=1, fuse=True)
    caller = _lowered(_product(computed=False))
    assert caller
    assert caller.input_nodes[2].get_name() == "column"
    assert [type(one) for one in graph.operations] == [CuteDSLTemplateBuffer]


@pytest.mark.parametrize("operands", [lambda: _weight(), lambda: _product()])
def test_k_1_fuses_nothing_that_it_is_not_sure_of(
    graph: Any, hook: list[KernelSpec], leaving_model: Path, operands: Any
) -> None:
    install(k=1, model=leaving_model, fuse=True)
    assert _lowered(operands()) is None
    assert hook == []


@pytest.mark.parametrize(
    "operands",
    [
        lambda: _weight(n=1001),
        lambda: _weight(k=1000),
        lambda: _weight(device="cpu"),
        lambda: _weight(scales=FP16),
        lambda: [*_weight()[:2], node("scales", [LONG_N], offset=1)],
        lambda: [*_weight()[:1], node("weight", [LONG_N, LONG_K], [1, LONG_N], dtype=INT8),
                 node("scales", [LONG_N])],
        lambda: _product(weight=[1, LONG_N]),
        lambda: _product(computed=False, step=2),
        lambda: _product(row=FP16),
    ],
)  # fmt: skip
@pytest.mark.parametrize("count", [1, 3])
def test_what_no_kernel_does_is_not_fused(graph: Any, operands: Any, count: int) -> None:
    install(k=count, fuse=True)
    assert _lowered(operands()) is None
    assert not [event for event in counters["tilecast"] if not event.startswith("said")]


@pytest.mark.parametrize("operands", [_weight, _product])
def test_a_kernel_for_every_m(graph: Any, operands: Any) -> None:
    install(k=1, fuse=True)
    caller = _lowered(operands(m=symbolic()))
    assert caller
    assert caller.name == "tilecast_dynamic"
    assert "DynamicMatmul" in source_of(caller)


def _kernel(stand_in: StandIn) -> KernelConfig:
    """The config of a stand-in that is a product by a tilecast kernel."""
    return parse_config(stand_in.kwargs["what"].removeprefix("int8 product by "))


@pytest.mark.parametrize(
    ("m", "microseconds", "fused"),
    [(48, 10.3, True), (48, 10.5, False), (4096, 16.0, True), (4096, 20.0, False)],
)
def test_only_what_is_measured_to_be_faster_is_fused(
    graph: Any, monkeypatch: pytest.MonkeyPatch, m: int, microseconds: float, fused: bool
) -> None:
    """Than a product alone of 10 us, which another kernel reads and scales: 0.3 us and 2 bytes an
    element, of which there are 0.2 or 16.8 million, at 4.2 TB/s."""
    clock = Clock.started(monkeypatch, microseconds / 1e3, 0.01)
    install(k=2, fuse=True)
    caller = _lowered(_product(m=m, bias=True))
    aten, own, *ours = clock.choices
    assert [type(one) for one in (aten, own)] == [StandIn] * 2
    assert [type(one) for one in ours] == [TilecastCaller] * 2
    assert aten.kwargs == {"what": "int8 product by ATen"}
    assert _kernel(own)
    assert caller is (ours[0] if fused else None)


@pytest.mark.parametrize("hint", [64, 1024])
def test_a_symbolic_m_is_timed_beside_the_kernel_for_its_hint(
    graph: Any, hook: list[KernelSpec], monkeypatch: pytest.MonkeyPatch, hint: int
) -> None:
    clock = Clock.started(monkeypatch, 1.0, 1.0)
    install(k=2, fuse=True)
    _lowered(_product(m=symbolic(hint=hint)))
    plain = GemmProblem(hint, LONG_N, LONG_K, operands=baseline.INT8_ALONE)
    (best, _) = selection.shortlist(Settings(k=2), plain, hardware("H200"))
    assert _kernel(clock.choices[1]) == best.config
    assert KernelSpec(best.config, baseline.INT8_ALONE) in hook


def test_what_aten_refuses_is_timed_beside_ours_alone(
    graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock.started(monkeypatch, 1.0, 1.0)
    install(k=2, fuse=True)
    assert _lowered(_product(m=16))
    own, *ours = clock.choices
    assert _kernel(own)
    assert [type(one) for one in ours] == [TilecastCaller] * 2


def test_nothing_is_fused_nor_timed_where_nobody_multiplies_alone(
    graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ATen takes 17 rows or more, and a model of one's own may know no result in int32."""

    def unknown(settings: Settings, problem: GemmProblem, gpu: Hardware) -> NoReturn:
        raise TilecastError(f"no model knows {problem.operands}")

    clock = Clock.started(monkeypatch, 1.0, 1.0)
    monkeypatch.setattr(baseline, "shortlist", unknown)
    install(k=2, fuse=True)
    assert _lowered(_product(m=16)) is None
    assert clock.choices == []


def test_nothing_is_fused_where_no_product_alone_could_be_timed(
    graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock.started(monkeypatch, 1.0, math.inf)
    install(k=2, fuse=True)
    assert _lowered(_product()) is None
