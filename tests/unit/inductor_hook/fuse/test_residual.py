"""Matrices that are added to products: what is recognised and rewritten, who decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hook_graph import (
    Clock,
    applied_to,
    linear,
    lowering,
    node,
    run,
    source_of,
    traced,
    warnings_told,
)
from torch._dynamo.source import ConstantSource
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.debug import DebugContext
from torch._inductor.ir import CuteDSLTemplateBuffer, StorageBox, TensorBox
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.lowering import lowerings
from torch._inductor.select_algorithm import ExternKernelCaller
from torch._inductor.virtualized import V
from torch.fx import Graph
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tilecast.inductor_hook import install, installed
from tilecast.inductor_hook.fuse import activation as recognition
from tilecast.inductor_hook.fuse import fused_choice, residual_fusion, unfused_baseline
from tilecast.inductor_hook.fuse.activation import PRODUCTS, aten
from tilecast.inductor_hook.fuse.residual_fusion import RESIDUAL
from tilecast.inductor_hook.fuse.residuals import Residual, residuals
from tilecast.inductor_hook.fuse.unfused_baseline import PRODUCT
from tilecast.inductor_hook.offer import offer
from tilecast.inductor_hook.offer.template import TilecastCaller
from tilecast.inductor_hook.timing.choice_benchmark import Contest
from tilecast.kernels.spec import KernelSpec

M, N, K = 48, 64, 64
BF16 = torch.bfloat16
Function = Callable[..., Any]
Tensor = torch.Tensor


def _norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype)


def _block(x: Tensor, w: Tensor, bias: Tensor, u: Tensor) -> Tensor:
    """Two layers of a transformer: a sum is read by a norm and by the next one."""
    x = x + F.linear(_norm(x), w, bias)
    return F.linear(F.linear(_norm(x), u).tanh(), w) + x


FORMS: dict[str, Function] = {
    "with a row": lambda x, w, b, u: x + F.linear(x.sin(), w, b),
    "the other way": lambda x, w, b, u: F.linear(x.sin(), w, b) + x,
    "bare": lambda x, w, b, u: x + F.linear(x.sin(), w),
    "read by a product": lambda x, w, b, u: F.linear(x + F.linear(x.sin(), w), u).cos(),
    "computed": lambda x, w, b, u: x.cos() + F.linear(x.sin(), w),
    "two products": lambda x, w, b, u: F.linear(x.sin(), w) + F.linear(x.cos(), u),
}
"""Ways to add a matrix to one product."""
OTHERS: dict[str, Function] = {
    "a row": lambda x, w, b, u: F.linear(x, w) + b,
    "of float32": lambda x, w, b, u: F.linear(x, w) + x.float(),
    "into float32": lambda x, w, b, u: F.linear(x, w).float() + x,
    "a factor": lambda x, w, b, u: torch.add(F.linear(x, w), x, alpha=2),
    "added to itself": lambda x, w, b, u: (y := F.linear(x, w)) + y,
    "read twice": lambda x, w, b, u: (x + (y := F.linear(x, w)), y),
    "another step between": lambda x, w, b, u: x + F.linear(x, w).relu(),
    "other columns": lambda x, w, b, u: F.linear(x, w).view(*x.shape[:-1], 2, -1) + 1,
    "read along the way": lambda x, w, b, u: _norm(x + F.linear(x, w)),
    "a computed row": lambda x, w, b, u: x + F.linear(x, w, b.cos()),
    "a matrix beside it": lambda x, w, b, u: (
        x + torch.addmm(x.view(-1, N), x.view(-1, N), w).view_as(x)
    ),
}
"""What is no such sum, or need not be written."""


def _operands(rank: int = 3, dtype: torch.dtype = BF16) -> list[Tensor]:
    torch.manual_seed(0)
    rows = (M,) if rank == 2 else (2, M // 2)
    shapes = ((*rows, K), (N, K), (N,), (K, N))
    return [torch.randn(shape).to(dtype) / 4 for shape in shapes]


def _traced(function: Function, rank: int = 3, dtype: torch.dtype = BF16, **where: Any) -> Graph:
    return traced(function, [(one.shape, dtype) for one in _operands(rank)], **where)


def _found(function: Function, **kind: Any) -> list[Residual]:
    return list(residuals(_traced(function, **kind)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("dtype", [BF16, torch.float16], ids=str)
def test_one_node_takes_the_place_of_all(form: str, rank: int, dtype: torch.dtype) -> None:
    """Which does what they did when it runs them as they were taken out, bit by bit."""
    graph, operands = _traced(FORMS[form], rank, dtype), _operands(rank, dtype)
    expected = run(graph, *operands)
    (found,) = residuals(graph)
    assert len(found.operands) == 3 + (form in ("with a row", "the other way"))
    assert len(found.reshapes) == rank - 2
    alone = found.alone()

    def fused(*operands: Tensor) -> Tensor:
        return run(alone, *operands)

    found.replace(fused)
    graph.lint()
    (replacement,) = graph.find_nodes(op="call_function", target=fused)
    assert (replacement.meta["val"].shape, replacement.meta["val"].dtype) == (
        operands[0].shape,
        dtype,
    )
    assert torch.equal(run(graph, *operands), expected)


def test_sums_of_sums_are_replaced_one_after_the_other() -> None:
    graph, operands = _traced(_block), _operands()
    expected = run(graph, *operands)
    replaced = 0
    for found in residuals(graph):
        alone = found.alone()
        found.replace(lambda *operands, alone=alone: run(alone, *operands))
        graph.lint()
        replaced += 1
    assert replaced == 2
    assert torch.equal(run(graph, *operands), expected)


@pytest.mark.parametrize("form", OTHERS)
def test_what_no_kernel_does_or_saves_nothing_is_not_recognised(form: str) -> None:
    assert _found(OTHERS[form]) == []


@pytest.mark.parametrize("kind", [{"dtype": torch.float32}, {"device": "cpu"}], ids=str)
def test_products_that_no_kernel_of_ours_does(kind: dict[str, Any]) -> None:
    assert _found(FORMS["bare"], **kind) == []


@pytest.fixture
def asked_for(hook: list[KernelSpec]) -> Iterator[None]:
    with config.patch(max_autotune_gemm=True):
        yield


def test_nothing_is_rewritten_for_a_model_that_has_seen_no_matrix(
    asked_for: None, knowing_no_matrix: None, caplog: pytest.LogCaptureFixture
) -> None:
    install(fuse=True)
    graph = _traced(_block)
    assert applied_to(graph) == []
    assert counters["tilecast"] == {}
    assert warnings_told(caplog) == []


@pytest.mark.parametrize("count", [1, 3])
def test_each_is_rewritten_for_one_that_has(asked_for: None, count: int) -> None:
    install(count, fuse=True)
    graph = _traced(_block)
    assert len(applied_to(graph)) == 2
    assert len(graph.find_nodes(op="call_function", target=PRODUCTS[0])) == 1


def test_what_a_node_of_ours_reads_is_written(asked_for: None) -> None:
    """A product with its activation, say, which is looked for before."""
    install(fuse=True)
    graph = _traced(lambda x, w, b, u: F.linear(x + F.linear(x.sin(), w), u).relu())
    assert len(applied_to(graph)) == 2
    assert graph.find_nodes(op="call_function", target=PRODUCTS[0]) == []


@pytest.fixture
def compiled(asked_for: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Compiles a function for the CPU as if that were a GPU, and calls it."""
    monkeypatch.setattr(recognition, "DEVICE", "cpu")

    def call(function: Function, *operands: Tensor, fuse: bool = True) -> Any:
        torch._dynamo.reset()
        settings = config.patch(force_disable_caches=True)
        with installed(3, fuse=fuse), torch.no_grad(), settings:
            return torch.compile(function, fullgraph=True)(*operands)

    return call


def test_what_is_not_fused_is_lowered_as_without_us(compiled: Callable) -> None:
    operands = _operands()
    found = compiled(_block, *operands)
    assert counters["tilecast"][f"not fused: {RESIDUAL}"] == 2
    assert torch.equal(found, compiled(_block, *operands, fuse=False))


def test_a_number_of_rows_that_is_added_is_no_matrix(
    compiled: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    """And the others are recognised beside it."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        return x + F.linear(F.linear(x.sin(), w) + x.shape[1], w)

    x, w, *_ = _operands()
    torch._dynamo.mark_dynamic(x, 1)
    compiled(function, x, w)
    assert counters["tilecast"][f"not fused: {RESIDUAL}"] == 1
    assert warnings_told(caplog) == []


def test_a_symbolic_m_gets_no_guard(compiled: Callable) -> None:
    operands = _operands()
    for dimension in (0, 1):
        torch._dynamo.mark_dynamic(operands[0], dimension)
    found = compiled(_block, *operands)
    assert counters["tilecast"][f"not fused: {RESIDUAL}"] == 2
    assert torch.equal(found, compiled(_block, *operands, fuse=False))


# How the node in place of all is lowered


COMPETING = "ATEN,TILECAST"
"""For the fixture `graph`: the backends of the graph that is being lowered."""
LONG_N, LONG_K = 4096, 1024


def _boxes(
    m: Any = M,
    bias: bool = False,
    computed: bool = False,
    step: int = LONG_N,
    turned: bool = False,
) -> tuple[TensorBox, ...]:
    """The residual (2, m / 2, n), a row if any, A and B."""

    def box(one: Any) -> Any:
        return TensorBox(StorageBox(one))

    if turned:
        added: Any = lowerings[aten.permute](box(node("c", [m, LONG_N // 2, 2])), [2, 0, 1])
        return (added, *map(box, linear(2 * m, LONG_N // 2, LONG_K).nodes()))
    added = box(node("c", [m, LONG_N], [step, 1]))
    if computed:
        added = lowerings[aten.mul](added, 2)
    if isinstance(m, int):
        added = lowerings[aten.reshape](added, [2, m // 2, LONG_N])
    row = [box(node("row", [LONG_N]))] if bias else []
    return (added, *row, *map(box, linear(m, LONG_N, LONG_K).nodes()))


def _lowered(operands: Sequence[TensorBox], bias: bool = False) -> TilecastCaller | None:
    """The choice of ours that does all, if any does."""
    result: Any = residual_fusion._fused(bias, tuple(operands))
    if result is None:
        return None
    assert [*result.get_size()] == [*operands[0].get_size()]
    buffer = result.data
    while not isinstance(buffer, CuteDSLTemplateBuffer):
        buffer = buffer.data
    return buffer.make_kernel_render.__self__  # type: ignore[union-attr]


@pytest.mark.parametrize("bias", [False, True])
def test_k_1_takes_the_first_without_a_benchmark(
    graph: Any, hook: list[KernelSpec], bias: bool
) -> None:
    install(k=1, fuse=True)
    caller = _lowered(_boxes(bias=bias), bias)
    assert caller
    text = "bf16:rcr:bias+c" if bias else "bf16:rcr:c"
    assert [spec.operands.text for spec in hook] == [text]
    handed = ", row(bias), c)" if bias else ", c)"
    assert f"matmul(A, B, out_ptr0{handed}" in source_of(caller)
    assert "add_bias" not in source_of(caller)
    assert counters["tilecast"] == {}, "counted when it is lowered"


@pytest.mark.parametrize(
    "kind",
    [{"computed": True}, {"step": LONG_N + 4}, {"turned": True}],
    ids=["not in memory", "no 16 bytes a row", "to be copied"],
)
@pytest.mark.parametrize("count", [1, 2])
def test_what_is_not_stored_as_the_result_is_not_fused(
    graph: Any,
    hook: list[KernelSpec],
    caplog: pytest.LogCaptureFixture,
    kind: dict[str, Any],
    count: int,
) -> None:
    install(count, fuse=True)
    assert _lowered(_boxes(**kind)) is None
    assert (hook, counters["tilecast"], warnings_told(caplog)) == ([], {}, [])


def test_a_model_that_has_seen_no_matrix_is_not_asked(
    graph: Any, hook: list[KernelSpec], knowing_no_matrix: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor is a product of ours put there to which a second kernel adds."""
    install(k=1, fuse=True)
    assert _lowered(_boxes()) is None
    assert (hook, counters["tilecast"], warnings_told(caplog)) == ([], {}, [])


def test_k_1_leaves_to_the_library_what_it_wins(
    graph: Any, hook: list[KernelSpec], model_of: Callable[..., Path]
) -> None:
    install(k=1, model=model_of("bf16:rcr bf16:rcr:c", leaves=True), fuse=True)
    assert _lowered(_boxes()) is None
    assert hook == []


def test_a_kernel_for_every_m(hook: list[KernelSpec]) -> None:
    symbols = ShapeEnv()
    with lowering(symbols):
        install(k=1, fuse=True)
        caller = _lowered(_boxes(m=symbols.create_symbol(17, ConstantSource("m"))))
    assert caller
    assert "DynamicMatmul" in source_of(caller)


@pytest.mark.parametrize(
    ("m", "microseconds", "fused"),
    [(48, 10.03, True), (48, 10.06, False), (4096, 13.0, True), (4096, 15.0, False)],
)
def test_what_is_spared_is_allowed(
    graph: Any,
    monkeypatch: pytest.MonkeyPatch,
    m: int,
    microseconds: float,
    fused: bool,
) -> None:
    """Beside a product alone of 10 us: a byte an element, of which there are 0.2 or 16.8 million,
    at 4.2 TB/s."""
    clock = Clock.started(monkeypatch, microseconds / 1e3, 0.01)
    install(k=2, fuse=True)
    caller = _lowered(_boxes(m=m))
    alone, *ours = clock.choices
    assert isinstance(alone, ExternKernelCaller)
    assert alone.kwargs == {"form": PRODUCT, "backends": COMPETING, "ours": unfused_baseline.ours()}
    assert [type(one) for one in ours] == [TilecastCaller] * 2
    assert caller is (ours[0] if fused else None)


def test_what_is_replaced_is_timed_anew_where_other_choices_of_ours_are_in_it(
    graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock.started(monkeypatch, 0.01, 0.01)
    keys = []
    for changed in ({}, {}, {"power": "burst"}, {"k": 3}):
        install(**{"k": 2, "fuse": True, **changed})
        _lowered(_boxes())
        keys.append(clock.choices[0].hash_key())
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


@pytest.mark.parametrize("biased", [True, False], ids=["bias", "bare"])
def test_what_is_timed_is_the_product_with_its_row(
    monkeypatch: pytest.MonkeyPatch, biased: bool
) -> None:
    """On the CPU; the matrix is not added."""
    x, weight, row, _ = _operands(2)
    w, matrix, out = (
        weight.t(),
        torch.full((M, N), torch.nan).to(BF16),
        torch.empty(M, N, dtype=BF16),
    )
    others = [matrix, row] if biased else [matrix]
    results, compiled = [], unfused_baseline._compiled

    def see(*key: Any) -> Callable[[list[Tensor]], Any]:
        call: Any = compiled(*key)
        return lambda tensors: results.extend(call(tensors))

    monkeypatch.setattr(unfused_baseline, "_compiled", see)
    with lowering(), V.set_debug_handler(DebugContext()):
        nodes = [
            node(str(place), [*one.shape], [*one.stride()], device="cpu")
            for place, one in enumerate((x, w, *others))
        ]
        layout = MMKernelInputs(nodes, mat1_idx=0, mat2_idx=1).output_layout(flexible=False)
        unfused_baseline.stand_in(nodes, layout, PRODUCT).benchmark(x, w, *others, out=out)
    expected = x.float() @ w.float() + (row.float() if biased else 0)
    assert results
    for result in results:
        torch.testing.assert_close(result.float(), expected, rtol=0.01, atol=0.01)


def test_what_does_more_than_its_rival_does_not_race_against_it(
    graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much the power limit would matter."""
    Clock.started(monkeypatch, 13e-3, 0.01)
    races = []

    class Told(Contest):
        def __init__(self, share: float | None):
            races.append(share)
            super().__init__(share)

    monkeypatch.setattr(offer, "Contest", Told)
    install(k=2, fuse=True)
    _lowered(_boxes(m=4096))
    assert races == [None]


def test_nothing_is_fused_where_no_product_alone_could_be_timed(
    graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock.started(monkeypatch, 1.0, math.inf)
    install(k=2, fuse=True)
    assert _lowered(_boxes()) is None


def test_a_lowering_that_fails_is_one_warning(
    graph: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    install(k=1, fuse=True)
    monkeypatch.setattr(TilecastCaller, "output_node", lambda caller: 1 / 0)
    assert [_lowered(_boxes()) for _ in range(2)] == [None, None]
    (told,) = warnings_told(caplog)
    assert "fusing a residual failed" in told
    assert fused_choice.trying.get() is False
