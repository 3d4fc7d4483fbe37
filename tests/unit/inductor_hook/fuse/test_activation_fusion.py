"""Activations behind products: what is recognised, and the kernel that one becomes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hook_graph import Clock, fused_choice, grouped, linear, node, replaced, source_of, traced
from torch._dynamo.utils import counters
from torch._inductor.fx_utils import count_flops_fx
from torch._inductor.ir import InputBuffer
from torch.fx import Graph

from tilecast.data_collection.timing.tensors import applied
from tilecast.heuristics import operands
from tilecast.inductor_hook import install
from tilecast.inductor_hook.fuse.activation import activations
from tilecast.inductor_hook.fuse.form import Match
from tilecast.inductor_hook.fuse.fx import PRODUCTS
from tilecast.inductor_hook.offer.template import TilecastCaller
from tilecast.kernels.spec import KernelSpec

ACTIVATIONS, gates = operands.activations(), operands.gates

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
"""What is no activation of the table, or does not end in one."""


def _linear(activation: Function) -> Function:
    """A linear layer with an activation, and another layer behind it, of what `_operands` gives."""

    def function(x: torch.Tensor, weight: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        *bias, second = rest
        return F.linear(activation(F.linear(x, weight, *bias)), second)

    return function


def _shapes(biased: bool = True, rank: int = 2) -> list[tuple[int, ...]]:
    rows = (M,) if rank == 2 else (2, M // 2)
    return [(*rows, K), (N, K), *([(N,)] if biased else []), (K, N)]


def _values(shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape).bfloat16() for shape in shapes]


def _traced(
    function: Function,
    shapes: Sequence[tuple[int, ...]],
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
) -> Graph:
    """The graph of a function as Inductor decomposes it, of tensors without values."""
    return traced(function, [(shape, dtype) for shape in shapes], device)


def _found(function: Function, *args: Any, **kwargs: Any) -> list[Match]:
    return list(activations(_traced(function, *args, **kwargs)))


@pytest.mark.parametrize("biased", [True, False], ids=["bias", "bare"])
def test_inductor_counts_what_a_product_computes_when_it_stands_alone(biased: bool) -> None:
    (found,) = _found(_linear(F.gelu), _shapes(biased))
    (alone,) = (node for node in found.alone().nodes if node.target in PRODUCTS)
    assert count_flops_fx(alone) == 2 * M * N * K


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_fp16_is_recognised(name: str) -> None:
    (found,) = _found(_linear(lambda x: applied(name, x, {})), _shapes(), dtype=torch.float16)
    assert found.fused.name == name


@pytest.mark.parametrize("form", OTHERS)
def test_what_is_no_activation_is_not_recognised(form: str) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return OTHERS[form](F.linear(x, weight, bias))

    assert _found(function, _shapes()[:3]) == []


@pytest.mark.parametrize(
    "options", [{"dtype": torch.float32}, {"device": "cpu"}], ids=["float32", "on the CPU"]
)
def test_products_that_no_kernel_does(options: dict[str, Any]) -> None:
    assert _found(_linear(F.relu), _shapes(), **options) == []


@pytest.mark.parametrize(
    ("shape", "alpha"), [((M, N), 1), ((M, 1), 1), ((N,), 2)], ids=["matrix", "column", "factor"]
)
def test_only_a_row_may_be_added_before_it(shape: tuple[int, ...], alpha: float) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        return F.relu(torch.addmm(added, x, weight.t(), alpha=alpha))

    assert _found(function, [*_shapes()[:2], shape]) == []


def test_an_operator_that_cannot_be_evaluated_stops_no_other() -> None:
    """A custom one may want a GPU; some of PyTorch's take no double precision."""

    @torch.library.custom_op(
        "tilecast_test::on_a_gpu", mutates_args=(), tags=(torch.Tag.pointwise,)
    )
    def on_a_gpu(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("there is no GPU")

    on_a_gpu.register_fake(torch.empty_like)

    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        product = F.linear(x, weight, bias)
        whole = torch.bitwise_xor((x @ weight.t()).float() > 0, (x @ weight.t()) > 1)
        return on_a_gpu(product), whole, F.gelu(F.linear(x, weight))

    (found,) = _found(function, _shapes()[:3])
    assert found.fused.name == "gelu"


def test_what_inductor_computes_along_saves_no_kernel() -> None:
    """The gate of a gated layer is multiplied with the other half in any case."""

    def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(x @ gate.t()) * (x @ up.t())

    def normalized(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.gelu(x @ weight.t()), (N,))

    assert _found(gated, [(M, K), (N, K), (N, K)]) == []
    assert _found(normalized, [(M, K), (N, K)]) == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "bare"])
@pytest.mark.parametrize("rank", [2, 3])
def test_one_node_takes_the_place_of_both(form: str, biased: bool, rank: int) -> None:
    """Which does what they did when it runs them as they were taken out, bit by bit."""
    activation, name = FORMS[form]
    shapes = _shapes(biased, rank)
    graph = _traced(_linear(activation), shapes)
    (found,) = activations(graph)
    assert found.fused.name == name
    assert found.product.target is PRODUCTS[biased]
    assert replaced(graph, found, *_values(shapes)).meta["val"].shape == (M, N)
    products = [node for node in graph.nodes if node.target in PRODUCTS]
    assert len(products) == 1, "the layer behind"


# Gates: the halves of a product's columns, one of them by way of an activation


def _slice(x: torch.Tensor, first: int, last: int, step: int = 1) -> torch.Tensor:
    """What ``x[..., first:last:step]`` becomes, which asks for a real device on the way."""
    return torch.ops.aten.slice.Tensor(x, x.ndim - 1, first, last, step)


def _sliced(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return _slice(x, 0, N // 2), _slice(x, N // 2, 2**63 - 1)


HALVES: dict[str, Callable[..., Any]] = {
    "chunk": lambda x: x.chunk(2, -1),
    "split": lambda x: x.split(x.shape[-1] // 2, dim=-1),
    "split by sizes": lambda x: x.split([x.shape[-1] // 2] * 2, dim=x.ndim - 1),
    "a chunk each": lambda x: (x.chunk(2, -1)[0], x.chunk(2, -1)[1]),
    "slices": _sliced,
}
"""Ways to write the two halves of a merged weight's product: Phi-3 and GLM take a chunk."""


def _gate(halves: Callable[..., Any], name: str) -> Function:
    """act(first) * second, or first * act(second), as the name says."""
    first = name.endswith("-mul")
    activation = name.removesuffix("-mul").removeprefix("mul-")

    def gate(x: torch.Tensor) -> torch.Tensor:
        one, other = halves(x) if first else reversed(halves(x))
        return other * applied(activation, one, {})

    return gate


@pytest.mark.parametrize("halves", HALVES)
@pytest.mark.parametrize("name", ["silu-mul", "mul-gelu"])
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "bare"])
@pytest.mark.parametrize("rank", [2, 3])
def test_one_node_takes_the_place_of_a_gate(
    halves: str, name: str, biased: bool, rank: int
) -> None:
    shapes = [*_shapes(biased, rank)[:-1], (K, N // 2)]
    graph = _traced(_linear(_gate(HALVES[halves], name)), shapes)
    (found,) = activations(graph)
    assert (found.fused.name, found.fused.epilogue) == (name, (name,))
    assert list(found.steps) == sorted(found.steps)
    alone = found.alone()
    (product,) = (node for node in alone.nodes if node.target in PRODUCTS)
    assert product.meta["val"].shape == (M, N)
    assert [*alone.nodes][-1].meta["val"].shape == (M, N // 2)
    replacement = replaced(graph, found, *_values(shapes))
    assert replacement.meta["val"].shape == (M, N // 2)
    behind = [user.meta["val"].shape for user in replacement.users]
    assert behind == [(2, M // 2, N // 2) if rank == 3 else (M, K)]


@pytest.mark.parametrize("name", gates())
def test_every_gate_is_recognised(name: str) -> None:
    shapes = [*_shapes()[:-1], (K, N // 2)]
    (found,) = _found(_linear(_gate(HALVES["chunk"], name)), shapes, dtype=torch.float16)
    assert found.fused.name == name


def _experts(gate: Function) -> Function:
    """The gate and up, and the down, of a layer of experts."""

    def function(
        x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, ends: torch.Tensor
    ) -> torch.Tensor:
        return F.grouped_mm(gate(F.grouped_mm(x, up.mT, offs=ends)), down.mT, offs=ends)

    return function


@pytest.mark.parametrize(("name", "width"), [("silu-mul", N // 2), ("gelu", N)])
def test_one_node_takes_the_place_of_a_layer_of_experts(name: str, width: int) -> None:
    gate = _gate(HALVES["chunk"], name) if width < N else lambda x: applied(name, x, {})
    shapes = [
        ((M, K), torch.bfloat16),
        ((3, N, K), torch.bfloat16),
        ((3, K, width), torch.bfloat16),
    ]
    graph = traced(_experts(gate), [*shapes, ((3,), torch.int32)])
    (found,) = activations(graph)
    assert (found.fused.name, found.fused.epilogue) == (name, (name,))
    assert [extra.name for extra in found.fused.extras] == ["offsets"]
    ends = torch.tensor([5, 5, M], dtype=torch.int32)
    values = _values([shape for shape, _ in shapes])
    assert replaced(graph, found, *values, ends).meta["val"].shape == (M, width)


@pytest.mark.parametrize("experts", [False, True], ids=["dense", "experts"])
def test_a_product_that_training_keeps_for_its_gradient_has_no_gate(experts: bool) -> None:
    """Inductor's graphs say of their outputs what values they have."""
    gate = _gate(HALVES["chunk"], "silu-mul")

    def kept(x: torch.Tensor, w: torch.Tensor, *ends: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = F.grouped_mm(x, w.mT, offs=ends[0]) if experts else x @ w.T
        return gate(product), product

    shapes: list[Any] = [((M, K), torch.bfloat16), ((N, K), torch.bfloat16)]
    if experts:
        shapes = [shapes[0], ((3, N, K), torch.bfloat16), ((3,), torch.int32)]
    graph = traced(kept, shapes)
    (output,) = graph.find_nodes(op="output")
    output.meta["val"] = tuple(node.meta["val"] for node in output.all_input_nodes)
    assert [*activations(graph)] == []


def test_groups_along_k_have_no_kernel() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return F.relu(F.grouped_mm(x.mT, y, offs=ends))

    shapes = [((M, K), torch.bfloat16), ((M, N), torch.bfloat16), ((3,), torch.int32)]
    assert list(activations(traced(function, shapes))) == []


def _clamped(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up.clamp(-7, 7)


NO_GATES: dict[str, Callable[..., Any]] = {
    "quarters": lambda x: F.silu(x.chunk(4, -1)[0]) * x.chunk(4, -1)[1],
    "of the same half": lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[0],
    "of rows": lambda x: F.silu(x.chunk(2, 0)[0]) * x.chunk(2, 0)[1],
    "interleaved": lambda x: F.silu(_slice(x, 0, N, 2)) * _slice(x, 1, N, 2),
    "overlapping": lambda x: F.silu(_slice(x, 0, N // 2)) * _slice(x, N // 4, 3 * N // 4),
    "of half a head": lambda x: F.silu((y := x.view(M, 2, -1).chunk(2, -1))[0]) * y[1],
    "reshaped in between": lambda x: _gate(HALVES["chunk"], "silu-mul")(
        x.view(M // 2, 4, -1).view(M, N)
    ),
    "clamped": _clamped,
    "a sigmoid": lambda x: F.glu(x),
    "a sum": lambda x: F.silu((y := x.chunk(2, -1))[0]) + y[1],
    "shifted": lambda x: F.silu((y := x.chunk(2, -1))[0]) * (y[1] + 1),
    "of both": lambda x: F.silu((y := x.chunk(2, -1))[0]) * F.silu(y[1]),
    "read beside": lambda x: (F.silu((y := x.chunk(2, -1))[0]) * y[1], y[1].t()),
    "read whole": lambda x: (F.silu((y := x.chunk(2, -1))[0]) * y[1], x.t()),
}
"""What reads parts of a product and is no gate, or not all that is read of it."""


@pytest.mark.parametrize("form", NO_GATES)
def test_what_is_no_gate_is_not_recognised(form: str) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return NO_GATES[form](F.linear(x, weight))

    assert _found(function, _shapes()[:2]) == []


# How the node in place of both is lowered


def _operands(
    *, m: Any = M, n: int = 4096, k: int = 1024, bias: Sequence[Any] | None = (4096,)
) -> list[InputBuffer]:
    row = [] if bias is None else [node("bias", bias)]
    return [*linear(m, n, k).nodes(), *row]


def _lowered(name: str, operands: Sequence[InputBuffer]) -> TilecastCaller | None:
    """The choice that does both, if any does."""

    def function(x: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        return applied(name, F.linear(x, weight, *bias), {})

    (found,) = _found(function, _shapes(len(operands) > 2)[: len(operands)])
    return fused_choice(found, operands)


@pytest.mark.parametrize("name", ACTIVATIONS)
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
    assert [spec.operands.epilogue[-1] for spec in hook] == [name] * 2
    assert counters["tilecast"] == {}, "counted when it is lowered"


@pytest.mark.parametrize("ours", [1.0, 3.0], ids=["faster", "slower"])
def test_a_gate_of_groups_runs_where_it_is_faster_for_rows_that_are_spread(
    graph: Any, monkeypatch: pytest.MonkeyPatch, ours: float
) -> None:
    clock = Clock.started(monkeypatch, ours=ours, without=2.0)
    install(k=3)
    shapes = [((M, K), torch.bfloat16), ((3, N, K), torch.bfloat16), ((3,), torch.int32)]
    gate = _gate(HALVES["chunk"], "silu-mul")
    (found,) = activations(
        traced(lambda x, w, ends: gate(F.grouped_mm(x, w.mT, offs=ends)), shapes)
    )
    # As the pass has it, the graph transposes the weight before.
    caller = fused_choice(found, grouped(m=96, n=2048, k=1024, groups=8))
    if ours < 2.0:
        assert caller
        problem = caller.choice.matmul.hint
        assert problem.operands.text == "bf16:rcr:row-groups+silu-mul"
        assert str(problem) == "8x96x2048x1024"
        assert [*caller.layout.size] == [96, 1024]
        assert ", offsets)" in source_of(caller)
    else:
        assert caller is None
    ends = clock.makers[2](node("here", [8], dtype=torch.int32, device="cpu"))
    assert ends.shape == (8,) and ends[-1] == 96
