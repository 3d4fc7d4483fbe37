"""The engine of fusion: nodes in a graph, what is timed beside a fused kernel, and who decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from hook_graph import Clock, applied_to, fused_choice, linear, lowering, node, run, traced
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.debug import DebugContext
from torch._inductor.fx_passes import post_grad
from torch._inductor.ir import InputBuffer
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.virtualized import V
from torch.fx import Graph, Node

from tilecast.data_collection.dataset.autotuned import read_autotuned
from tilecast.data_collection.timing.tensors import random_inputs, reference
from tilecast.data_collection.timing.torch_reference import torch_launch
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import EPILOGUES, MATRIX, Extra, Fusion, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import install, installed, uninstall
from tilecast.inductor_hook.fuse import activation, baseline, engine
from tilecast.inductor_hook.fuse.baseline import unscaled, whole
from tilecast.inductor_hook.fuse.form import Fused, Match, Replaced
from tilecast.inductor_hook.fuse.fx import PRODUCTS, aten
from tilecast.inductor_hook.offer.template import TilecastCaller
from tilecast.inductor_hook.settings import asked as settings_asked
from tilecast.inductor_hook.timing.stand_in import MARGIN, StandIn

M, N, K = 48, 64, 32
BF16, INT8 = torch.bfloat16, torch.int8
Function = Callable[..., Any]
Tensor = torch.Tensor
COMPETING = "ATEN,TILECAST"
"""For the fixture `graph`: the backends of the graph that is being lowered."""
SPECS = [((M, K), BF16), ((N, K), BF16), ((N,), BF16)]


def _layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.linear(x, weight, bias))


def _gelu() -> Match:
    (found,) = activation.activations(traced(_layer, SPECS))
    return found


def _operands(m: int = M, n: int = 4096, k: int = 1024) -> list[InputBuffer]:
    return [*linear(m, n, k).nodes(), node("bias", [n])]


# The pass


def test_the_pass_puts_one_node_in_place(asked: None) -> None:
    install(fuse=True)
    graph = traced(_layer, SPECS)
    (added,) = applied_to(graph)
    target: Any = added.target
    assert target._inductor_lowering_function
    result = target._inductor_lowering_output_metadata_fn
    assert result(torch.empty(M, K), torch.empty(K, N), torch.empty(N)).shape == (M, N)
    graph.lint()
    # Ranks compare what graphs are printed as.
    assert "0x" not in str(graph) + repr(target)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_autotune_gemm": False},
        {"max_autotune_gemm_backends": "ATEN,TRITON"},
        {"_micro_pipeline_tp": True},
        {"reorder_for_compute_comm_overlap": True},
        {"aten_distributed_optimizations.enable_overlap_scheduling": True},
        {"emulate_precision_casts": True},
    ],
    ids=str,
)
def test_graphs_stay_as_they_are_unasked(asked: None, settings: dict[str, Any]) -> None:
    install(fuse=True)
    graph = traced(_layer, SPECS)
    before = str(graph)
    with config.patch(settings):
        assert applied_to(graph) == []
    assert str(graph) == before


def test_one_setting_switches_it_off(asked: None) -> None:
    stock = list(post_grad.pass_patterns)
    for fuse in (False, True, False):
        with installed(fuse=fuse):
            assert engine.PASS in post_grad.pass_patterns
            assert bool(applied_to(traced(_layer, SPECS))) == fuse
    install(fuse=True)
    install(fuse=True)
    assert post_grad.pass_patterns == [*stock, engine.PASS]
    uninstall()
    assert post_grad.pass_patterns == stock


def test_a_form_that_fails_leaves_the_others_and_one_warning(
    asked: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(fuse=True)
    broken = {"what fails": lambda graph: 1 / 0}
    monkeypatch.setattr(engine, "FORMS", broken | engine.FORMS)
    for _ in range(2):
        assert len(applied_to(traced(_layer, SPECS))) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "looking for what fails failed" in caplog.text


def test_an_activation_behind_a_product_of_int8_is_left_to_inductor(asked: None) -> None:
    install(fuse=True)
    specs = [SPECS[0], ((N, K), INT8), SPECS[2]]
    graph = traced(lambda x, w, b: F.gelu(F.linear(x, w.to(x.dtype), b)), specs)
    (added,) = applied_to(graph)
    assert cast(Any, added.target).fused.name == "int8 weight"


def _scaled(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    return F.linear(x, weight.to(x.dtype)) * scales


@pytest.mark.parametrize(
    ("function", "weight"), [(_layer, BF16), (_scaled, INT8)], ids=["activation", "scales"]
)
@pytest.mark.parametrize("writes", [True, False])
def test_no_product_moves_past_what_writes_memory(
    asked: None, function: Function, weight: torch.dtype, writes: bool
) -> None:
    install(fuse=True)
    graph = traced(function, [SPECS[0], ((N, K), weight), SPECS[2]])
    x, *_ = graph.find_nodes(op="placeholder")
    (product,) = (one for one in graph.nodes if one.target in PRODUCTS)
    with graph.inserting_after(product):
        graph.call_function(aten.neg_.default if writes else aten.neg.default, (x,))
    assert len(applied_to(graph)) == (not writes)


# How a node is lowered


def test_a_lowering_that_fails_is_one_warning(
    graph: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(k=1, fuse=True)
    monkeypatch.setattr(TilecastCaller, "output_node", lambda caller: 1 / 0)
    assert [fused_choice(_gelu(), _operands()) for _ in range(2)] == [None, None]
    assert "fusing gelu failed" in caplog.text
    assert len(caplog.records) == 1


def test_a_kernel_that_does_not_compile_gets_into_no_graph(
    graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(k=1, fuse=True)
    assert fused_choice(_gelu(), _operands())
    monkeypatch.setattr(TilecastCaller, "await_kernels", lambda caller: False)
    assert fused_choice(_gelu(), _operands()) is None


# What is measured


@pytest.fixture
def clocked(graph: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Clock]:
    return partial(Clock.started, monkeypatch)


@pytest.mark.parametrize(
    ("fused", "without", "taken"),
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
def test_only_what_is_measured_to_be_surely_faster_is_fused(
    clocked: Callable[..., Clock], fused: float, without: float, taken: bool, backends: str
) -> None:
    clock = clocked(fused, without)
    install(k=2, fuse=True)
    with config.patch(max_autotune_gemm_backends=backends):
        caller = fused_choice(_gelu(), _operands())
    assert [type(one) for one in clock.choices] == [StandIn] * 2 + [TilecastCaller] * 2
    assert backends.replace(",TRITON", "") in clock.choices[0].kwargs["what"]
    assert caller is (clock.choices[2] if taken else None)
    assert counters["tilecast"] == {}
    assert 0.01 <= MARGIN <= 0.05


def test_the_worst_of_the_rivals_decides_nothing_and_the_best_all(
    clocked: Callable[..., Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor may compile it faster than ATen's operators in turn do it, or slower."""
    clocked(0.9, 1.0)
    install(k=2, fuse=True)
    limit = StandIn.limit
    for scale, taken in ((0.8, False), (1.2, True)):
        monkeypatch.setattr(
            StandIn,
            "limit",
            lambda one, taken, scale=scale: limit(one, taken * (scale if one.library else 1)),
        )
        assert bool(fused_choice(_gelu(), _operands())) == taken


def test_deterministic_inductor_benchmarks_nothing(graph: Any) -> None:
    install(k=1)
    expected = fused_choice(_gelu(), _operands())
    install(k=2)
    with config.patch(deterministic=True):
        found = fused_choice(_gelu(), _operands())
    assert found and expected
    assert found.choice.configs == expected.choice.configs


def test_times_are_written_down_beside_the_library_that_did_all(
    clocked: Callable[..., Clock], tmp_path: Path
) -> None:
    clocked(0.5, 1.0)
    path = tmp_path / "own.jsonl"
    install(k=2, fuse=True, learn=path)
    assert fused_choice(_gelu(), _operands())
    (one,) = read_autotuned([path], hardware("H200")).found
    assert one.problem.operands.text == "bf16:rcr:bias+gelu"
    assert (list(one.milliseconds.values()), one.library) == ([0.5, 0.5], 1.0)


def _replaced(match: Match, tensors: Sequence[Tensor], operands: str) -> Replaced:
    """As for a kernel of some tensors on the CPU, while a graph is being lowered."""
    nodes = [
        node(f"input_{place}", list(x.shape), list(x.stride()), dtype=x.dtype, device="cpu")
        for place, x in enumerate(tensors)
    ]
    layout = MMKernelInputs(nodes, mat1_idx=0, mat2_idx=1).output_layout(flexible=False)
    settings = settings_asked()
    assert settings
    problem = GemmProblem(M, N, K, operands=GemmOperands.parse(operands))
    return Replaced(settings, match.alone(), nodes, layout, problem)


@pytest.fixture
def trial(asked: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """A graph that is being lowered; gives what products compiled on trial computed."""
    results: list[Tensor] = []
    compiled = baseline._compiled

    def see(*what: Any) -> Callable[[list[Tensor]], Any]:
        call = compiled(*what)
        return lambda tensors: results.extend(call(tensors))

    monkeypatch.setattr(baseline, "_compiled", see)
    monkeypatch.setattr(baseline, "_calls", {})
    install(k=2, fuse=True)
    with lowering() as graph, V.set_debug_handler(DebugContext()):
        yield results
        assert V.graph is graph


def test_what_is_timed_beside_an_activation_is_what_inductor_makes_of_both(
    trial: list[Tensor],
) -> None:
    """And PyTorch's own operators one after the other; layers of one shape compile once."""
    torch.manual_seed(0)
    a, b, bias = (torch.randn(shape).bfloat16() for shape in ((M, K), (N, K), (N,)))
    out, expected = torch.zeros(M, N, dtype=BF16), _layer(a, b, bias).float()
    replaced = _replaced(_gelu(), (a, b.t(), bias), "bf16:rcr:bias+gelu")
    inductors, atens = whole(replaced)
    for one in (inductors, whole(replaced)[0]):
        assert 0 < one.benchmark(a, b.t(), bias, out=out) < 1000
    assert len(baseline._calls) == 1
    assert not out.any(), "it is only timed"
    assert 0 < atens.benchmark(a, b.t(), bias, out=out) < 1000
    assert [one.library for one in (inductors, atens)] == [False, True]
    for result in (*trial, out):
        torch.testing.assert_close(result.float(), expected, rtol=0.01, atol=0.02)
    assert counters["tilecast"] == {}, "nothing of it is counted"
    assert trial


def test_tritons_templates_do_not_compete_beside_an_activation(
    trial: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    competing: list[str] = []
    compile_alone = baseline._compiled

    def see(*what: Any) -> Any:
        competing.append(config.max_autotune_gemm_backends)
        return compile_alone(*what)

    monkeypatch.setattr(baseline, "_compiled", see)
    a, b, bias = (torch.randn(shape).bfloat16() for shape in ((M, K), (N, K), (N,)))
    with config.patch(max_autotune_gemm_backends="Aten, triton,TILECAST"):
        inductors, _ = whole(_replaced(_gelu(), (a, b.t(), bias), "bf16:rcr:bias+gelu"))
    with config.patch(max_autotune_gemm_backends="ATEN,TRITON"):
        inductors.benchmark(a, b.t(), bias, out=torch.zeros(M, N, dtype=BF16))
    assert competing == ["ATEN,TILECAST"]


@pytest.mark.parametrize("turned", [False, True])
def test_what_is_timed_beside_an_int8_weight_is_the_product_without_scales(
    trial: list[Tensor], turned: bool
) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(M, K).bfloat16(), torch.randint(-128, 128, (N, K), dtype=INT8)
    (one,) = unscaled(turned, _replaced(_gelu(), (x, w.t()), "bf16xint8:rcr"))
    assert 0 < one.benchmark(x, w.t(), out=torch.empty(M, N, dtype=BF16)) < 1000
    expected = x.float() @ w.t().float()
    for result in trial:
        atol = 0.01 * expected.std().item()
        torch.testing.assert_close(result.float(), expected, rtol=0.01, atol=atol)
    assert trial


def test_what_is_timed_beside_an_int8_product_is_that_product_alone(
    trial: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ATen and by a kernel, in whose place torch multiplies on the CPU."""
    products: list[Tensor] = []

    def multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
        products.append(out.copy_(a.int() @ b.int()))

    monkeypatch.setattr(baseline.StaticMatmul, "named", lambda *_: multiply)
    a, w = (torch.randint(-128, 128, (rows, K), dtype=INT8) for rows in (M, N))
    out = torch.zeros(M, N, dtype=BF16)
    replaced = _replaced(_gelu(), (a, w.t()), "int8:rcr>bf16:out-row-scales")
    for one in baseline.int8_alone(replaced):
        assert 0 < one.benchmark(a, w.t(), out=out) < 1000
        assert one.limit(0.01) > 0.01, "it does less than a fused kernel"
    assert products
    assert all(torch.equal(result, a.int() @ w.t().int()) for result in products)
    assert not out.any(), "it is only timed"


# What it takes to add a form


def test_another_activation_is_one_row_of_the_table(
    graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text, PyTorch's function and the kernel's are read off that row everywhere."""
    row = Fusion(
        "x times tanh(softplus(x))",
        torch="torch.nn.functional.mish",
        device="quack.activation.mish",
    )
    monkeypatch.setitem(EPILOGUES, "mish", row)
    activation._expected.cache_clear()
    try:
        specs = SPECS
        graph = traced(lambda x, w, b: F.mish(F.linear(x, w, b)), specs)
        (found,) = activation.activations(graph)
    finally:
        activation._expected.cache_clear()
    assert found.fused.epilogue == ("mish",)
    install(k=1, fuse=True)
    caller = fused_choice(found, _operands())
    assert caller
    assert caller.choice.matmul.hint.operands.text == "bf16:rcr:bias+mish"

    problem = GemmProblem(M, N, K, operands=GemmOperands.parse("bf16:rcr:bias+mish"))
    a, b, bias = random_inputs(problem, "cpu")
    out = torch.empty(M, N, dtype=BF16)
    torch_launch(problem.operands)(a, b, out, bias)
    expected = F.mish(a.float() @ b.float() + bias.float())
    torch.testing.assert_close(out.float(), expected, rtol=0.02, atol=0.05)
    torch.testing.assert_close(reference(problem, (a, b, bias)), expected)


def _gate_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    gate, up = F.linear(x, weight, bias).chunk(2, -1)
    return up * F.silu(gate)


def test_a_gate_has_half_the_columns_when_inductor_asks_anew(asked: None) -> None:
    install(fuse=True)
    (added,) = applied_to(traced(_gate_layer, SPECS))
    target: Any = added.target
    result = target._inductor_lowering_output_metadata_fn
    assert result(torch.empty(M, K), torch.empty(K, N), torch.empty(N)).shape == (M, N // 2)
    assert added.meta["val"].shape == (M, N // 2)


@pytest.mark.parametrize(("ours", "taken"), [(0.97, True), (0.99, False)])
def test_a_gate_is_fused_where_it_is_measured_to_be_surely_faster(
    clocked: Callable[..., Clock], ours: float, taken: bool
) -> None:
    clock = clocked(ours, 1.0)
    install(k=2, fuse=True)
    (found,) = activation.activations(traced(_gate_layer, SPECS))
    caller = fused_choice(found, _operands())
    assert (caller is not None) == taken
    assert [type(one) for one in clock.choices] == [StandIn] * 2 + [TilecastCaller] * 2
    choice = clock.choices[2]
    assert choice.choice.matmul.hint.operands.text == "bf16:rcr:bias+silu-mul"
    assert list(choice.layout.size) == [M, 2048] and list(choice.layout.stride) == [2048, 1]
    assert "row(bias)" in Path(choice.bmreq.module_path).read_text()


def test_no_gate_is_fused_without_a_benchmark(graph: Any) -> None:
    """No model has seen one."""
    install(k=1, fuse=True)
    (found,) = activation.activations(traced(_gate_layer, SPECS))
    assert fused_choice(found, _operands()) is None


@pytest.mark.parametrize("n", [4096 + 8, 4096 + 2])
def test_halves_that_no_kernel_reads_in_turn_are_left_to_inductor(
    clocked: Callable[..., Clock], n: int
) -> None:
    clock = clocked(0.5, 1.0)
    install(k=2, fuse=True)
    (found,) = activation.activations(traced(_gate_layer, SPECS))
    assert fused_choice(found, _operands(n=n)) is None
    assert clock.choices == []


def test_what_a_gate_is_timed_beside_computes_the_same(trial: list[Tensor]) -> None:
    """As Inductor compiles it, on the CPU, and by PyTorch's operators one by one."""
    (found,) = activation.activations(traced(_gate_layer, SPECS))
    x, w, bias = (torch.randn(shape).bfloat16() for shape, _ in SPECS)
    out = torch.full((M, N // 2), torch.nan, dtype=BF16)
    replaced = _replaced(found, (x, w.t(), bias), "bf16:rcr:bias+silu-mul")
    expected = _gate_layer(x.float(), w.float(), bias.float())
    for one in whole(replaced):
        assert 0 < one.benchmark(x, w.t(), bias, out=out) < 1000
    for result in (out, *trial):
        torch.testing.assert_close(result.float(), expected, rtol=0.02, atol=0.1)


def test_another_gate_is_one_row_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of `test_another_activation_is_one_row_of_the_table`."""
    row = Fusion(
        "mish of the second half, times the first",
        torch="torch.nn.functional.mish",
        device="quack.activation.mish",
        half=1,
    )
    monkeypatch.setitem(EPILOGUES, "mul-mish", row)
    activation._expected_of_gates.cache_clear()
    try:
        (found,) = activation.activations(
            traced(lambda x, w, b: torch.mul(*_one_by_mish(F.linear(x, w, b))), SPECS)
        )
    finally:
        activation._expected_of_gates.cache_clear()
    assert found.fused.epilogue == ("mul-mish",)
    problem = GemmProblem(M, N, K, operands=GemmOperands.parse("bf16:rcr:bias+mul-mish"))
    a, b, bias = random_inputs(problem, "cpu")
    expected = torch.mul(*_one_by_mish(a.float() @ b.float() + bias.float()))
    torch.testing.assert_close(reference(problem, (a, b, bias)), expected)


def _one_by_mish(result: Tensor) -> tuple[Tensor, Tensor]:
    first, second = result.chunk(2, -1)
    return first, F.mish(second)


def gated(result: Tensor, up: Tensor) -> Tensor:
    """What PyTorch does for the toy: silu of a product times another one."""
    return F.silu(result) * up


def _gated_products(graph: Graph) -> Iterator[Match]:
    """silu(x Wg) * (x Wu); the second product is an operand of the kernel of the first."""
    for last in graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        gate, up = cast(tuple[Node, Node], last.args)
        if up.target not in PRODUCTS:
            continue
        steps, above = {last}, [gate]
        while (one := above.pop()).target not in PRODUCTS:
            steps.add(one)
            above += one.all_input_nodes
        fused = Fused("gated", (Extra("up", MATRIX),), BF16, whole, epilogue=("gated",))
        ordered = tuple(node for node in graph.nodes if node in steps)
        yield Match(fused, one, ordered, (*cast(tuple[Node, Node], one.args), up))


def test_a_gated_epilogue_is_a_row_a_pattern_and_a_device_function(
    clocked: Callable[..., Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Fusion(
        "silu, times a matrix",
        (Extra("up", MATRIX),),
        torch=f"{__name__}.gated",
        device="quack.activation.swiglu",
    )
    monkeypatch.setitem(EPILOGUES, "gated", row)
    monkeypatch.setattr(engine, "FORMS", {"gates": _gated_products} | engine.FORMS)

    def layer(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
        wide = x @ up.t()
        return F.silu(x @ gate.t()) * wide

    specs = [((M, K), BF16), ((N, K), BF16), ((N, K), BF16)]
    operands = [torch.randn(shape).bfloat16() for shape, _ in specs]
    graph = traced(layer, specs)
    expected = run(graph, *operands)
    (found,) = _gated_products(graph)
    clock = clocked(0.5, 1.0)
    install(k=2, fuse=True)
    inputs = [*linear(M, 4096, 1024).nodes(), node("up", [M, 4096])]
    caller = fused_choice(found, inputs)
    assert caller and caller is clock.choices[2]
    assert caller.choice.matmul.hint.operands.text == "bf16:rcr:gated"
    assert isinstance(clock.choices[0], StandIn)
    x, gate, up = operands
    alone = run(found.alone(), x, gate.t(), x @ up.t())
    torch.testing.assert_close(alone, expected)
    problem = GemmProblem(M, N, K, operands=caller.choice.matmul.hint.operands)
    out = torch.empty(M, N, dtype=BF16)
    torch_launch(problem.operands)(x, gate.t(), out, x @ up.t())
    torch.testing.assert_close(out.float(), expected.float(), rtol=0.02, atol=0.05)
