"""Products of int8 by int8 with scales: what is recognised and rewritten, who decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from hook_graph import Clock, fused_choice, lowering, node, run, source_of, traced
from torch._dynamo.source import ConstantSource
from torch._inductor.ir import ComputedBuffer, CuteDSLTemplateBuffer, StorageBox, TensorBox
from torch._inductor.lowering import lowerings
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import install
from tilecast.inductor_hook.fuse import baseline
from tilecast.inductor_hook.fuse.form import Match
from tilecast.inductor_hook.fuse.fx import INT8_PRODUCT, aten
from tilecast.inductor_hook.fuse.int8 import quantized_products
from tilecast.inductor_hook.offer.template import TilecastCaller
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.settings import Settings
from tilecast.inductor_hook.timing.stand_in import StandIn
from tilecast.kernels.families import parse_config
from tilecast.kernels.spec import KernelSpec

M, N, K = 48, 64, 32
BF16, FP16, FP32, INT8 = torch.bfloat16, torch.float16, torch.float32, torch.int8
Function = Callable[..., Any]
Tensor = torch.Tensor


def _quantized(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A row of x as int8, and what that is scaled by."""
    scales = (x.abs().amax(-1, keepdim=True).to(dtype) / 127).clamp(min=1e-5)
    whole = torch.clamp(torch.round(x / scales), -128, 127).to(INT8)
    return whole.reshape(-1, x.shape[-1]), scales.reshape(-1, 1)


def _torchao(x: Tensor, w: Tensor, s: Tensor, b: Tensor) -> Tensor:
    """As its int8 dynamic quantization writes it."""
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


FORMS: dict[str, tuple[Function, torch.dtype, int, bool]] = {
    "torchao": (_torchao, BF16, 3, True),
    "torchao, scales in fp32": (_torchao, FP32, 2, True),
    "columns first": (_columns_first, FP32, 3, False),
}
"""Ways to scale such a product: the scales' type, x's dimensions, whether a bias is added."""
OTHERS: dict[str, Function] = {
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
"""What no kernel of ours does at once, or would want another kernel for."""


def _specs(scales: torch.dtype = BF16, rank: int = 2) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shape and type of x, weight, its scales and bias."""
    rows = (M,) if rank == 2 else (2, M // 2)
    return [((*rows, K), BF16), ((N, K), INT8), ((N, 1), scales), ((N,), BF16)]


def _tensors(specs: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> list[Tensor]:
    torch.manual_seed(0)
    x, w, s, b = (torch.randn(shape) for shape, _ in specs)
    whole = (w * 32).round().clamp(-128, 127).to(INT8)
    return [x.to(BF16), whole, (s.abs() / 32).to(specs[2][1]), b.to(BF16)]


def _found(function: Function, **kind: Any) -> list[Match]:
    return list(quantized_products(traced(function, _specs(**kind))))


@pytest.mark.parametrize("form", FORMS)
def test_one_node_takes_the_place_of_all(form: str) -> None:
    """Which does what they did when it runs them as they were taken out, bit by bit."""
    function, dtype, rank, biased = FORMS[form]
    specs = _specs(dtype, rank)
    graph, operands = traced(function, specs), _tensors(specs)
    expected = run(graph, *operands)
    (found,) = quantized_products(graph)
    a, weight, column, *rows = found.operands
    assert [one.meta["val"].dtype for one in (a, weight, column)] == [INT8, INT8, dtype]
    assert column.meta["val"].shape == (M, 1)
    assert [row.name for row in rows] == ["s_1"] + ["b_1"] * biased
    alone = found.alone()

    def fused(*operands: Tensor) -> Tensor:
        return run(alone, *operands)

    found.replace(fused)
    graph.lint()
    (replacement,) = graph.find_nodes(op="call_function", target=fused)
    assert (replacement.meta["val"].shape, replacement.meta["val"].dtype) == ((M, N), BF16)
    assert not graph.find_nodes(op="call_function", target=INT8_PRODUCT)
    assert torch.equal(run(graph, *operands), expected)


@pytest.mark.parametrize("form", OTHERS)
def test_what_no_kernel_does_is_not_recognised(form: str) -> None:
    assert _found(OTHERS[form]) == []


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_scales_of_rows_that_are_stored_are_read_as_they_are(dtype: torch.dtype) -> None:
    """In bf16 they would have to be converted first, by a kernel of its own."""
    found = _found(lambda x, w, s, b: (aten._int_mm(w, w.t()) * s * s.t()).to(BF16), scales=dtype)
    assert [one.operands[2].name for one in found] == (["s_1"] if dtype == FP32 else [])


# How the node in place of all is lowered


COMPETING = "ATEN,TILECAST"
"""For the fixture `graph`: the backends of the graph that is being lowered."""


LONG_N, LONG_K = 4096, 1024


def _operands(
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


def _lowered(operands: Sequence[TensorBox]) -> TilecastCaller | None:
    """The choice of ours that does all, if any does."""
    biased = len(operands) > 4
    function = _torchao if biased else _columns_first
    scales = FP32 if operands[3].get_dtype() == FP32 else BF16
    (found,) = _found(function, scales=scales)
    return fused_choice(found, operands)


@pytest.mark.parametrize(
    ("row", "bias", "extras"),
    [
        (BF16, True, "out-row-scales+bias"),
        (BF16, False, "out-row-scales"),
        (FP32, True, "row-scales+bias"),
    ],
)
def test_k_1_takes_the_first_without_a_benchmark(
    graph: Any, hook: list[KernelSpec], row: torch.dtype, bias: bool, extras: str
) -> None:
    install(k=1, fuse=True)
    caller = _lowered(_operands(row=row, bias=bias))
    assert caller
    text = f"int8:rcr>bf16:{extras}"
    assert caller.choice.matmul.hint.operands.text == text
    assert [spec.operands.text for spec in hook] == [text]
    source = source_of(caller)
    assert repr(text) in source
    assert "scale_a.view(-1), row(scale_b)" in source
    assert ("row(bias)" in source) == bias
    # Written by a kernel that Inductor may fuse with what computes them.
    column = caller.input_nodes[2]
    assert (column.get_dtype(), type(column.data)) == (FP32, ComputedBuffer)
    assert column.get_size() == [M, 1]


def test_scales_that_are_there_are_not_copied(graph: Any) -> None:
    install(k=1, fuse=True)
    caller = _lowered(_operands(computed=False))
    assert caller
    assert caller.input_nodes[2].get_name() == "column"
    assert [type(one) for one in graph.operations] == [CuteDSLTemplateBuffer]


def test_k_1_leaves_to_the_library_what_it_wins(
    graph: Any, hook: list[KernelSpec], leaving_model: Path
) -> None:
    install(k=1, model=leaving_model, fuse=True)
    assert _lowered(_operands()) is None
    assert hook == []


@pytest.mark.parametrize(
    "operands",
    [
        lambda: _operands(weight=[1, LONG_N]),
        lambda: _operands(computed=False, step=2),
        lambda: _operands(row=FP16),
    ],
    ids=["weight along n", "scales apart", "scales in fp16"],
)
def test_what_no_kernel_reads_is_not_fused(graph: Any, operands: Any) -> None:
    install(k=1, fuse=True)
    assert _lowered(operands()) is None


def test_a_kernel_for_every_m(hook: list[KernelSpec]) -> None:
    symbols = ShapeEnv()
    with lowering(symbols):
        install(k=1, fuse=True)
        caller = _lowered(_operands(m=symbols.create_symbol(17, ConstantSource("m"))))
    assert caller
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
    caller = _lowered(_operands(m=m, bias=True))
    aten, own, *ours = clock.choices
    assert [type(one) for one in (aten, own)] == [StandIn] * 2
    assert [type(one) for one in ours] == [TilecastCaller] * 2
    assert aten.kwargs == {"what": "int8 product by ATen"}
    assert _kernel(own)
    assert caller is (ours[0] if fused else None)


@pytest.mark.parametrize("hint", [64, 1024])
def test_a_symbolic_m_is_timed_beside_the_kernel_for_its_hint(
    hook: list[KernelSpec], monkeypatch: pytest.MonkeyPatch, hint: int
) -> None:
    clock = Clock.started(monkeypatch, 1.0, 1.0)
    symbols = ShapeEnv()
    install(k=2, fuse=True)
    with lowering(symbols):
        m = symbols.create_symbol(hint, ConstantSource("m"))
        _lowered(_operands(m=m))
    plain = GemmProblem(hint, LONG_N, LONG_K, operands=baseline.INT8_ALONE)
    (best, _) = selection.shortlist(Settings(k=2), plain, hardware("H200"))
    assert _kernel(clock.choices[1]) == best.config
    assert KernelSpec(best.config, baseline.INT8_ALONE) in hook


def test_what_aten_refuses_is_timed_beside_ours_alone(
    graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock.started(monkeypatch, 1.0, 1.0)
    install(k=2, fuse=True)
    assert _lowered(_operands(m=16))
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
    assert _lowered(_operands(m=16)) is None
    assert clock.choices == []


def test_nothing_is_fused_where_no_product_alone_could_be_timed(
    graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock.started(monkeypatch, 1.0, math.inf)
    install(k=2, fuse=True)
    assert _lowered(_operands()) is None
