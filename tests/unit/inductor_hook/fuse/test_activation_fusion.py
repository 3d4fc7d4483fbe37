"""Activations behind products: what is recognised, what is rewritten, and who decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hook_graph import (
    applied_to,
    linear,
    lowering,
    node,
    our_choice,
    run,
    source_of,
    traced,
)
from torch._dynamo.utils import counters
from torch._inductor import config, utils
from torch._inductor.fx_passes import post_grad
from torch._inductor.fx_utils import count_flops_fx
from torch._inductor.ir import InputBuffer, StorageBox, TensorBox
from torch._inductor.lowering import lowerings
from torch._inductor.select_algorithm import AlgorithmSelectorCache, ExternKernelCaller
from torch.fx import Graph, Node

from tilecast.data_collection.dataset.autotuned import read_autotuned
from tilecast.data_collection.timing.tensors import applied
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import ACTIVATIONS
from tilecast.inductor_hook import install, installed, uninstall
from tilecast.inductor_hook.fuse import activation as recognition
from tilecast.inductor_hook.fuse import node as fusion
from tilecast.inductor_hook.fuse.activation import PRODUCTS, Activated, activations
from tilecast.inductor_hook.fuse.fx_pass import PASS
from tilecast.inductor_hook.fuse.node import NOTHING, in_turn
from tilecast.inductor_hook.offer.cpp_wrapper import OperatorCall
from tilecast.inductor_hook.offer.template import TilecastCaller
from tilecast.inductor_hook.patch.torch_versions import chosen_at_once
from tilecast.inductor_hook.timing import lowering_state
from tilecast.inductor_hook.timing.choice_benchmark import Contest
from tilecast.inductor_hook.timing.decide import MARGIN, replaced_ms
from tilecast.inductor_hook.timing.power_limit import NEAR
from tilecast.kernels.spec import KernelSpec

M, N, K = 48, 64, 32
Function = Callable[..., torch.Tensor]


def _newer_gelu(x: torch.Tensor) -> torch.Tensor:
    """As GPT-2 of Hugging Face writes it."""
    cube = x + 0.044715 * torch.pow(x, 3.0)
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * cube))


FORMS: dict[str, tuple[Function, str]] = {
    "relu": (F.relu, "relu"),
    "gelu": (F.gelu, "gelu"),
    "gelu-tanh": (lambda x: F.gelu(x, approximate="tanh"), "gelu-tanh"),
    "silu": (F.silu, "silu"),
    "clamped": (lambda x: x.clamp_min(0), "relu"),
    "written with erf": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), "gelu"),
    "written with tanh": (_newer_gelu, "gelu-tanh"),
    "written with sigmoid": (lambda x: x * torch.sigmoid(x), "silu"),
    "in float32": (lambda x: F.gelu(x.float()).to(x.dtype), "gelu"),
}
"""Ways to write an activation, and its name."""


def _leaky(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return mask * x + (1 - mask) * 0.01 * x


OTHERS: dict[str, Callable[..., Any]] = {
    "leaky": lambda x: F.leaky_relu(x, 1e-4),
    "relu6": F.relu6,
    "clamped": lambda x: F.relu(x).clamp(max=65504),
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "elu": F.elu,
    "softplus": F.softplus,
    "sigmoid": torch.sigmoid,
    "scaled": lambda x: F.gelu(x) * 2,
    "into float32": lambda x: F.gelu(x.float()),
    "read twice": lambda x: F.gelu(x).t() @ x,
    "read inside": lambda x: (F.relu(x), x.t()),
    "of something else": lambda x: x * torch.sigmoid(x.flip(0)),
    "by rows": lambda x: F.softmax(x, -1),
    "of no product": lambda x: F.gelu(x.cos()),
    "through int8": lambda x: F.relu(x.to(torch.int8)).to(x.dtype),
    "through fp8": lambda x: F.relu(x.to(torch.float8_e4m3fn).to(x.dtype)),
    "through bool": lambda x: F.relu(x.float()).bool().to(x.dtype),
    "through fp16": lambda x: F.relu(x.half()).to(x.dtype),
    "shifted": lambda x: F.relu(x + 1),
    "steps that add up": lambda x: x * ((x > 0).to(x.dtype) + (x > 1).to(x.dtype)),
    "leaky by a mask": lambda x: _leaky(x, (x > 0).to(x.dtype)),
    "in two parts": lambda x: torch.frexp(x.float())[0].to(x.dtype),
}
"""What is no activation of ours, or does not end in one."""


def _linear(activation: Function) -> Function:
    """A linear layer with an activation, and another layer behind it, of what `_operands` gives."""

    def function(x: torch.Tensor, weight: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        *bias, second = rest
        return F.linear(activation(F.linear(x, weight, *bias)), second)

    return function


def _shapes(biased: bool = True, rank: int = 2) -> list[tuple[int, ...]]:
    rows = (M,) if rank == 2 else (2, M // 2)
    return [(*rows, K), (N, K), *([(N,)] if biased else []), (K, N)]


def _traced(
    function: Function,
    shapes: Sequence[tuple[int, ...]],
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
) -> Graph:
    """The graph of a function as Inductor decomposes it, of tensors without values."""
    return traced(function, [(shape, dtype) for shape in shapes], device)


def _found(function: Function, *args: Any, **kwargs: Any) -> list[Activated]:
    return list(activations(_traced(function, *args, **kwargs)))


@pytest.mark.parametrize("biased", [True, False], ids=["bias", "bare"])
def test_inductor_counts_what_a_product_computes_when_it_stands_alone(biased: bool) -> None:
    (found,) = _found(_linear(F.gelu), _shapes(biased))
    (alone,) = (node for node in found.alone().nodes if node.target in PRODUCTS)
    assert count_flops_fx(alone) == 2 * M * N * K


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "bare"])
@pytest.mark.parametrize("rank", [2, 3])
def test_every_form_is_recognised(form: str, biased: bool, rank: int) -> None:
    activation, name = FORMS[form]
    (found,) = _found(_linear(activation), _shapes(biased, rank))
    assert found.name == name
    assert found.product.target is PRODUCTS[biased]
    assert len(found.reshapes) == rank - 2


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_fp16_is_recognised(name: str) -> None:
    (found,) = _found(_linear(lambda x: applied(name, x, {})), _shapes(), dtype=torch.float16)
    assert found.name == name


@pytest.mark.parametrize("form", OTHERS)
def test_what_is_no_activation_is_not_recognised(form: str) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return OTHERS[form](F.linear(x, weight, bias))

    assert _found(function, _shapes()[:3]) == []


@pytest.mark.parametrize(
    "options", [{"dtype": torch.float32}, {"device": "cpu"}], ids=["float32", "on the CPU"]
)
def test_products_that_no_kernel_of_ours_does(options: dict[str, Any]) -> None:
    assert _found(_linear(F.relu), _shapes(), **options) == []


def test_an_addmm_with_factors_is_none_of_them() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.relu(torch.addmm(bias, x, weight.t(), alpha=2))

    assert _found(function, _shapes()[:3]) == []


def test_what_inductor_computes_along_saves_no_kernel() -> None:
    """The gate of a gated layer is multiplied with the other half in any case."""

    def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(x @ gate.t()) * (x @ up.t())

    def normalized(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.gelu(x @ weight.t()), (N,))

    assert _found(gated, [(M, K), (N, K), (N, K)]) == []
    assert _found(normalized, [(M, K), (N, K)]) == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rank", [2, 3])
def test_one_node_takes_the_place_of_both(form: str, rank: int) -> None:
    """Which does what they did when it runs them as they were taken out, bit by bit."""
    graph = _traced(_linear(FORMS[form][0]), _shapes(rank=rank))
    torch.manual_seed(0)
    operands = [torch.randn(shape).bfloat16() for shape in _shapes(rank=rank)]
    expected = run(graph, *operands)
    (found,) = activations(graph)
    alone = found.alone()
    inputs = found.product.args

    def fused(*operands: torch.Tensor) -> torch.Tensor:
        return run(alone, *operands)

    found.replace(fused)
    graph.lint()
    (replacement,) = graph.find_nodes(op="call_function", target=fused)
    assert replacement.args == inputs
    assert replacement.meta["val"].shape == (M, N)
    products = [node for node in graph.nodes if node.target in PRODUCTS]
    assert len(products) == 1, "the layer behind"
    assert torch.equal(run(graph, *operands), expected)


def test_the_pass_rewrites_every_product_with_an_activation(asked: None) -> None:
    install(fuse=True)
    graph = _traced(_linear(F.gelu), _shapes())
    (added,) = applied_to(graph)
    target: Any = added.target
    assert target._inductor_lowering_function
    result = target._inductor_lowering_output_metadata_fn
    assert result(torch.empty(N), torch.empty(M, K), torch.empty(K, N)).shape == (M, N)
    graph.lint()


@pytest.mark.parametrize(
    "settings",
    [
        {"max_autotune_gemm": False},
        {"max_autotune_gemm_backends": "ATEN,TRITON"},
        {"_micro_pipeline_tp": True},
    ],
    ids=str,
)
def test_graphs_stay_as_they_are_unasked(asked: None, settings: dict[str, Any]) -> None:
    install(fuse=True)
    graph = _traced(_linear(F.gelu), _shapes())
    before = str(graph)
    with config.patch(settings):
        assert applied_to(graph) == []
    assert str(graph) == before


def test_one_setting_switches_it_off(asked: None) -> None:
    stock = list(post_grad.pass_patterns)
    for fuse in (False, True, False):
        with installed(fuse=fuse):
            assert PASS in post_grad.pass_patterns
            graph = _traced(_linear(F.gelu), _shapes())
            before = str(graph)
            assert bool(applied_to(graph)) == fuse
            assert (str(graph) == before) == (not fuse)
    install(fuse=True)
    install(fuse=True)
    assert post_grad.pass_patterns == [*stock, PASS]
    uninstall()
    assert post_grad.pass_patterns == stock


def test_a_pass_that_fails_leaves_the_graph_and_one_warning(
    asked: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(fuse=True)
    monkeypatch.setattr(recognition, "_evaluated", lambda *_: 1 / 0)
    for _ in range(2):
        graph = _traced(_linear(F.gelu), _shapes())
        before = str(graph)
        assert applied_to(graph) == []
        assert str(graph) == before
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "looking for activations failed" in caplog.text


@pytest.fixture
def on_the_cpu(asked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the CPU pass for a GPU where graphs are rewritten; no kernel of ours is for it."""
    monkeypatch.setattr(recognition, "DEVICE", "cpu")


def _compiled(function: Function, *operands: torch.Tensor) -> torch.Tensor:
    torch._dynamo.reset()
    with config.patch(force_disable_caches=True):
        return torch.compile(function, fullgraph=True)(*operands)


@pytest.mark.parametrize(("name", "count"), [("gelu", 3), ("relu", 1)])
def test_what_is_not_fused_is_lowered_as_without_us(
    on_the_cpu: None, name: str, count: int
) -> None:
    """Bit by bit; the layers are chained, so that what replaces one feeds the next."""
    torch.manual_seed(0)
    activation = FORMS[name][0]
    layer = _linear(activation)
    operands = [torch.randn(shape).bfloat16() for shape in _shapes(rank=3)]

    def function(*operands: torch.Tensor) -> torch.Tensor:
        return activation(layer(*operands))

    seen: list[list[Node]] = []

    def see(graph: Graph) -> None:
        seen.append(list(graph.nodes))

    with torch.no_grad(), config.patch(post_grad_custom_post_pass=see):
        with installed(count, fuse=True):
            found = _compiled(function, *operands)
            assert counters["tilecast"][f"not fused: {name}"] == 2
        with installed(count, fuse=False):
            expected = _compiled(function, *operands)
    assert torch.equal(found, expected)
    ours, stock = ([node.target for node in nodes] for nodes in seen)
    assert not set(PRODUCTS) & set(ours), "a user's own pass sees what was put in place"
    assert set(PRODUCTS) <= set(stock)


@pytest.mark.parametrize("name", ["gelu", "relu"])
def test_training_graphs_keep_what_backward_reads(on_the_cpu: None, name: str) -> None:
    """The derivative of a gelu wants what lies between; that of a relu its result alone."""
    torch.manual_seed(0)
    layer = _linear(FORMS[name][0])
    operands = [torch.randn(shape).bfloat16().requires_grad_() for shape in _shapes()]
    gradient = torch.randn(M, K).bfloat16()
    expected = torch.autograd.grad(layer(*operands), operands, gradient)
    install(fuse=True)
    found = torch.autograd.grad(_compiled(layer, *operands), operands, gradient)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.02, atol=0.05)
    tried = {event for event in counters["tilecast"] if "fused" in event}
    assert tried == ({"not fused: relu"} if name == "relu" else set())


def test_a_symbolic_m(on_the_cpu: None) -> None:
    torch.manual_seed(0)
    layer = _linear(F.silu)
    x, *others = (torch.randn(shape).bfloat16() for shape in _shapes(rank=3))
    torch._dynamo.mark_dynamic(x, 1)
    install(fuse=True)
    torch._dynamo.reset()
    with torch.no_grad(), config.patch(force_disable_caches=True):
        compiled = torch.compile(layer, fullgraph=True)
        for rows in (x, x[:, :5].clone()):
            expected = layer(*(operand.float() for operand in (rows, *others)))
            error = (compiled(rows, *others).float() - expected).norm() / expected.norm()
            assert error < 1e-2
    assert counters["tilecast"]["not fused: silu"] == 1


# How the node in place of both is lowered


def _operands(
    *, m: Any = M, n: int = 4096, k: int = 1024, bias: Sequence[Any] | None = (4096,)
) -> list[InputBuffer]:
    row = [] if bias is None else [node("bias", bias)]
    return [*row, *linear(m, n, k).nodes()]


def _lowered(name: str, operands: Sequence[InputBuffer]) -> TilecastCaller | None:
    """The choice of ours that does both, if any does."""
    # No GPU is there whose size could be asked.
    with mock.patch.object(utils, "is_big_gpu", lambda device: False):
        found: Any = fusion._fused(name, _boxes(operands))
    return None if found is None else our_choice(found)


def _boxes(operands: Sequence[InputBuffer]) -> tuple[TensorBox, ...]:
    """Operands as lowering has them."""
    return tuple(TensorBox(StorageBox(operand)) for operand in operands)


COMPETING = "ATEN,TILECAST"
"""For the fixture `graph`: the backends of the graph that is being lowered."""


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_k_1_takes_the_first_without_a_benchmark(
    graph: Any, hook: list[KernelSpec], name: str
) -> None:
    install(k=1, fuse=True)
    for bias, text in (((4096,), f"bf16:rcr:bias+{name}"), (None, f"bf16:rcr:{name}")):
        caller = _lowered(name, _operands(bias=bias))
        assert caller
        assert caller.choice.matmul.hint.operands.text == text
        assert caller.name.endswith(f"_{name}")
        source = source_of(caller)
        assert repr(text) in source
        assert ("row(bias)" in source) == (bias is not None)
        assert "add_bias" not in source
    assert [spec.operands.epilogue[-1] for spec in hook] == [name] * 2
    assert counters["tilecast"] == {}, "counted when it is lowered"


def test_k_1_leaves_to_the_library_what_it_wins(
    graph: Any, hook: list[KernelSpec], leaving_model: Path
) -> None:
    install(k=1, model=leaving_model, fuse=True)
    assert _lowered("gelu", _operands()) is None
    assert hook == []


@pytest.mark.parametrize(
    "operands",
    [
        lambda: _operands(bias=(M, 4096)),
        lambda: _operands(k=1001, bias=None),
        lambda: [node("a", [M, 64], device="cpu"), node("b", [64, 64], [1, 64], device="cpu")],
    ],
    ids=["a matrix is added", "not aligned", "on the CPU"],
)
@pytest.mark.parametrize("count", [1, 3])
def test_what_no_kernel_does_is_not_fused(graph: Any, operands: Any, count: int) -> None:
    install(k=count, fuse=True)
    assert _lowered("gelu", operands()) is None
    assert counters["tilecast"] == {}


def test_a_cpp_wrapper_has_it_and_aotinductor_has_not(
    graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utils, "is_big_gpu", lambda device: False)
    install(k=1, fuse=True)
    graph.cpp_wrapper = True
    found: Any = fusion._fused("gelu", _boxes(_operands()))
    assert isinstance(found.data.data, OperatorCall)
    assert found.data.data.caller.choice.matmul.hint.operands.activated
    graph.aot_mode = True
    assert fusion._fused("gelu", _boxes(_operands())) is None


def test_a_kernel_for_every_m(hook: list[KernelSpec]) -> None:
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    symbols = ShapeEnv()
    with lowering(symbols):
        install(k=1, fuse=True)
        m = symbols.create_symbol(17, ConstantSource("m"))
        caller = _lowered("silu", _operands(m=m))
    assert caller
    assert caller.name == "tilecast_dynamic_silu"
    assert "DynamicMatmul" in source_of(caller)


def test_a_lowering_that_fails_is_one_warning(
    graph: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(k=1, fuse=True)
    monkeypatch.setattr(TilecastCaller, "output_node", lambda caller: 1 / 0)
    assert [_lowered("gelu", _operands()) for _ in range(2)] == [None, None]
    assert "fusing an activation failed" in caplog.text
    assert len(caplog.records) == 1
    assert fusion.fusing.get() == ""


# What is measured


class Clock:
    """Stands in for the GPU: milliseconds of a choice by kind."""

    def __init__(self, **milliseconds: float):
        self.milliseconds = milliseconds
        self.kinds: list[str] = []

    def __call__(self, tuner: Any, name: str, nodes: Any, layout: Any, *rest: Any, **kw: Any):
        choices = next(each for each in rest if isinstance(each, list))
        self.kinds = [self.kind(choice) for choice in choices]
        timings = {choice: self.milliseconds[self.kind(choice)] for choice in choices}
        for function in tuner.feedback_saver_fns:
            function(timings, name, nodes, choices, None, None)
        return timings

    def kind(self, choice: Any) -> str:
        if isinstance(choice, TilecastCaller):
            return "fused" if choice.choice.matmul.hint.operands.activated else "ours"
        if "_then_" in choice.name:
            return "product" if choice.name.endswith("nothing") else "in_turn"
        return "aten"


@pytest.mark.parametrize(
    ("milliseconds", "fused"),
    [
        ({"aten": 1.0, "ours": 1.0, "fused": 1.03, "in_turn": 1.3, "product": 1.0}, True),
        ({"aten": 1.0, "ours": 1.0, "fused": 1.31, "in_turn": 1.3, "product": 1.0}, False),
        ({"aten": 1.0, "ours": 1.0, "fused": 1.29, "in_turn": 1.3, "product": 1.0}, False),
        ({"aten": 1.0, "ours": 0.7, "fused": 0.99, "in_turn": 1.3, "product": 1.0}, False),
        ({"aten": 1.0, "ours": 0.7, "fused": 0.73, "in_turn": 1.3, "product": 1.0}, True),
        ({"aten": 1.3, "ours": 1.0, "fused": 1.03, "in_turn": 1.3, "product": 1.0}, True),
        ({"aten": 1.0, "ours": 1.0, "fused": 1e9, "in_turn": 1.3, "product": 1.0}, False),
        ({"aten": 1.0, "ours": 1.0, "fused": 0.5, "in_turn": math.inf, "product": 1.0}, False),
    ],
)
@pytest.mark.parametrize("backends", ["ATEN,TILECAST", "TILECAST"])
def test_only_what_is_measured_to_be_faster_is_fused(
    graph: Any,
    monkeypatch: pytest.MonkeyPatch,
    milliseconds: dict[str, float],
    fused: bool,
    backends: str,
) -> None:
    clock = Clock(**milliseconds)
    monkeypatch.setattr(
        AlgorithmSelectorCache,
        "do_autotuning",
        lambda tuner, *rest, **kw: clock(tuner, *rest, **kw),
    )
    monkeypatch.setattr(AlgorithmSelectorCache, "make_precompile_fn", lambda *_, **__: None)
    install(k=2, fuse=True)
    with config.patch(max_autotune_gemm_backends=backends):
        caller = _lowered("gelu", _operands())
    assert [clock.kinds.count(kind) for kind in ("ours", "fused", "in_turn", "product")] == [
        *(2, 2, 1, 1)
    ]
    assert bool(caller) == fused
    if caller:
        assert caller.choice.matmul.hint.operands.text == "bf16:rcr:bias+gelu"


@pytest.mark.parametrize("bias", [(4096,), (M, 4096)], ids=["a row", "a matrix"])
def test_the_library_is_timed_with_the_bias_that_it_runs_with(
    graph: Any, monkeypatch: pytest.MonkeyPatch, bias: tuple[int, ...]
) -> None:
    timed: list[torch.Tensor] = []

    def benchmark(choice: ExternKernelCaller, *operands: torch.Tensor, out: torch.Tensor) -> float:
        timed.append(operands[0])
        return 1.0

    def autotune(tuner: Any, name: str, nodes: Any, layout: Any, *rest: Any, **kw: Any):
        choices = next(each for each in rest if isinstance(each, list))
        given = torch.arange(4096.0).expand(M, 4096) if len(bias) == 1 else torch.zeros(M, 4096)
        for choice in choices:
            if isinstance(choice, ExternKernelCaller):
                choice.benchmark(given, out=torch.empty(M, 4096))
        return dict.fromkeys(choices, 1.0)

    monkeypatch.setattr(Contest, "enter", lambda contest, choice: None)  # which takes a GPU
    monkeypatch.setattr(ExternKernelCaller, "benchmark", benchmark)
    monkeypatch.setattr(AlgorithmSelectorCache, "do_autotuning", autotune)
    monkeypatch.setattr(AlgorithmSelectorCache, "make_precompile_fn", lambda *_, **__: None)
    monkeypatch.setattr(utils, "is_big_gpu", lambda device: False)
    install(k=2)
    with chosen_at_once():
        lowerings[torch.ops.aten.addmm](*_boxes(_operands(bias=bias)))
    (found,) = timed
    assert found.shape == bias
    if len(bias) == 1:
        assert found.tolist() == list(range(4096))


@pytest.mark.parametrize("fused", [0.9, 1.4])
def test_what_is_benchmarked_of_either_product_is_written_down(
    graph: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fused: float
) -> None:
    clock = Clock(aten=1.1, ours=1.0, fused=fused, in_turn=1.3, product=1.05)
    monkeypatch.setattr(
        AlgorithmSelectorCache,
        "do_autotuning",
        lambda tuner, *rest, **kw: clock(tuner, *rest, **kw),
    )
    monkeypatch.setattr(AlgorithmSelectorCache, "make_precompile_fn", lambda *_, **__: None)
    path = tmp_path / "own.jsonl"
    install(k=2, fuse=True, learn=path)
    assert bool(_lowered("gelu", _operands())) == (fused < 1)
    found = {
        one.problem.operands.text: one for one in read_autotuned([path], hardware("H200")).found
    }
    assert found.keys() == {"bf16:rcr:bias", "bf16:rcr:bias+gelu"}
    for text, taken, library in (("bias", 1.0, 1.05), ("bias+gelu", fused, 1.3)):
        one = found[f"bf16:rcr:{text}"]
        assert list(one.milliseconds.values()) == [taken, taken]
        assert one.library == library


@pytest.mark.parametrize("fuse", [False, True])
def test_nothing_races_beside_a_fused_kernel(
    graph: Any, monkeypatch: pytest.MonkeyPatch, fuse: bool
) -> None:
    """Some of these do less than others; the product alone is timed anew, under other keys."""
    contests: list[tuple[str, float | None, set[str]]] = []

    def autotune(tuner: Any, name: str, nodes: Any, layout: Any, *rest: Any, **kw: Any) -> dict:
        choices = next(each for each in rest if isinstance(each, list))
        ours = [choice for choice in choices if isinstance(choice, TilecastCaller)]
        keys = {one.hash_key() for one in ours if not one.choice.matmul.hint.operands.activated}
        if ours:
            contests.append(
                (lowering_state.fusing.get(), vars(ours[0])["tilecast_contest"].near, keys)
            )
        return dict.fromkeys(choices, 1.0)

    monkeypatch.setattr(AlgorithmSelectorCache, "do_autotuning", autotune)
    monkeypatch.setattr(AlgorithmSelectorCache, "make_precompile_fn", lambda *_, **__: None)
    monkeypatch.setattr(utils, "is_big_gpu", lambda device: False)
    install(k=2, fuse=fuse)
    operands = _operands(m=4096, k=4096)
    with chosen_at_once():
        if fuse:
            _lowered("gelu", operands)
        lowerings[torch.ops.aten.addmm](*_boxes(operands))
    assert [found[:2] for found in contests] == [("gelu", None)] * fuse + [("", NEAR)]
    assert len(set.union(*(keys for *_, keys in contests))) == 2 * (1 + fuse)


def test_without_a_benchmark_nothing_is_fused_that_would_want_one(graph: Any) -> None:
    install(k=2, fuse=True)
    with config.patch(deterministic=True):
        assert _lowered("gelu", _operands()) is None


def test_what_it_would_take_otherwise() -> None:
    """A kernel of Triton's may do the activation for nothing; the others wait for one."""
    assert replaced_ms(1.3, 1.0, [1.0, 1.1, 0.9], []) == pytest.approx(1.2)
    assert replaced_ms(1.3, 1.0, [1.0], [1.15]) == pytest.approx(1.15)
    assert replaced_ms(1.3, 1.0, [1.4], []) == pytest.approx(1.3), "a slow way to add the bias"
    assert replaced_ms(1.3, 1.0, [], []) == pytest.approx(1.3)
    assert replaced_ms(0.9, 1.0, [1.0], []) == pytest.approx(0.9)
    assert replaced_ms(1.3, math.inf, [1.0], []) == pytest.approx(1.0)
    assert replaced_ms(math.inf, 1.0, [0.5], [0.5]) == 0
    assert 0.01 <= MARGIN <= 0.05


@pytest.mark.parametrize("name", [*sorted(ACTIVATIONS), NOTHING])
@pytest.mark.parametrize("biased", [True, False])
def test_one_after_the_other_is_what_it_says(name: str, biased: bool) -> None:
    torch.manual_seed(0)
    a, b, bias = torch.randn(M, K), torch.randn(K, N), torch.randn(N)
    out = torch.full((M, N), torch.nan)
    rows = [bias.expand(M, N)] if biased else []
    in_turn(name).to_callable()(*rows, a, b, out=out)
    product = torch.addmm(bias, a, b) if biased else a @ b
    expected = product if name == NOTHING else applied(name, product, {})
    torch.testing.assert_close(out, expected)
