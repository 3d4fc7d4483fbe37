"""What generated code calls: the right kernel for each call, the bias, and torch where all fails.

On tensors of the CPU, with functions in place of compiled kernels.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hook_graph import warnings_told
from torch._dynamo.utils import counters
from torch._inductor.compile_worker import utils

from tilecast.data_collection.timing.tensors import poisoned_out, random_inputs, reference
from tilecast.heuristics.dtypes import dtype_of_torch
from tilecast.heuristics.errors import NotNow, TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands, TensorSpec, activations
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.describe.arguments import row
from tilecast.inductor_hook.run import cpp_operator, static
from tilecast.inductor_hook.run.dynamic import DynamicMatmul
from tilecast.inductor_hook.run.static import StaticMatmul, errors_raised, loaded_kernel
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.settings import model_digest
from tilecast.kernels.candidates import candidates
from tilecast.kernels.launch import Launch
from tilecast.kernels.spec import KernelSpec
from tilecast.models.runtime.learned import load_heuristic

H200 = hardware("H200")
N, K = 64, 128


def _ranking(m: int, n: int = N, k: int = K, batch: int = 1) -> list[str]:
    """The model's ranking of all candidates."""
    problem = GemmProblem(m, n, k, batch)
    ranked = load_heuristic(H200, LINEAR_BF16).rank(problem, candidates(problem, H200))
    return [config.name for config in ranked]


def _firsts(*extents: int) -> list[str]:
    """The model's choices for several m."""
    return [_ranking(m)[0] for m in extents]


NAME = _firsts(16)[0]
OPERANDS = "bf16:rcr"

Function = Callable[..., object]


@pytest.fixture
def loads(hook: list[KernelSpec], monkeypatch: pytest.MonkeyPatch) -> Callable[[Function], list]:
    """Has every kernel load as a function of its spec; gives the specs that are loaded."""
    loaded: list[KernelSpec] = []

    def loads_as(function: Function) -> list[KernelSpec]:
        def load(spec: KernelSpec, objects: object, device: int) -> Launch:
            loaded.append(spec)
            return function

        monkeypatch.setattr(static, "load_kernel", load)
        return loaded

    monkeypatch.setattr(static, "_loaded", {})
    monkeypatch.setattr(selection, "hardware_of", lambda device, settings: H200)
    return loads_as


def _product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(a @ b)


def _refuses(*arguments: object) -> None:
    raise ValueError("Mismatched Tensor on argument #1,\nexpected stride 8")


def _operands(m: int = 16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(m)
    a, b = (torch.randn(rows, K, generator=generator).bfloat16() for rows in (m, N))
    return a, b.T, torch.full((m, N), torch.nan, dtype=torch.bfloat16)


def _static() -> StaticMatmul:
    return StaticMatmul.named(NAME, OPERANDS, batched=False)


def test_a_kernel_is_loaded_once_for_all_that_run_it(loads: Callable) -> None:
    loaded = loads(_product)
    for matmul in (_static(), _static()):
        for _ in range(3):
            a, b, out = _operands()
            matmul(a, b, out)
            assert torch.equal(out, a @ b)
    assert loaded == [_static().spec]
    assert loaded[0].config.name == NAME
    assert loaded_kernel(loaded[0], -1) is loaded_kernel(loaded[0], -1)


WIDE = (4096, 4096)


def _dynamic(names: Collection[str], any_rows: bool = False) -> DynamicMatmul:
    model = {"model": "", "power": "robust", "digest": model_digest(None)}
    return DynamicMatmul.named(list(names), OPERANDS, False, any_rows, **model)


def _without_values(m: int) -> list[torch.Tensor]:
    """Operands of a `WIDE` product, whose extents alone matter."""
    n, k = WIDE
    return [torch.empty(shape, device="meta") for shape in ((m, k), (k, n), (m, n))]


def test_all_kernels_of_a_graph_that_is_loaded_are_begun_at_once(
    loads: Callable, hook: list[KernelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come from Inductor's cache while the cache of kernels is empty."""
    names = [config.name for config in list(candidates(GemmProblem(16, N, K), H200))[:3]]
    _static()
    DynamicMatmul.named(names, OPERANDS, False, model="", power="robust", digest="")
    assert [spec.config.name for spec in hook] == [NAME, *names]
    # A worker of Inductor would begin compilers of its own; its parent loads the graph, too.
    monkeypatch.setattr(utils, "_IN_TOPLEVEL_PROCESS", False)
    _static()
    assert len(hook) == 4


def test_each_extent_runs_what_ranks_first_of_all_that_is_compiled(loads: Callable) -> None:
    """As where m is fixed, and not as if the compiled ones were all that there is."""
    sweep = sorted({2**e for e in range(14)} | {3 * 2**e // 2 for e in range(1, 13)})
    names = list(dict.fromkeys(_ranking(m, *WIDE)[0] for m in sweep))
    assert len(names) > 10
    loads(lambda *arguments: None)
    matmul = _dynamic(names)
    launched: list[str] = []
    for config, one in matmul.matmuls.items():
        one._kernels[-1] = lambda *_, name=config.name: launched.append(name)
    expected = []
    for m in [m + offset for m in sweep[4:] for offset in (0, 7)]:
        expected.append(next(name for name in _ranking(m, *WIDE) if name in names))
        matmul(*_without_values(m))
    assert launched == expected


@pytest.mark.parametrize("passes", [False, True])
def test_an_extent_for_which_choosing_failed_keeps_its_kernel_unless_that_passes(
    loads: Callable, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    chosen, tries = selection.first, []

    def first(*arguments: Any) -> Any:
        tries.append(arguments)
        if len(tries) == 1:
            raise NotNow("a CUDA graph is captured") if passes else RuntimeError("out of memory")
        return chosen(*arguments)

    monkeypatch.setattr(selection, "first", first)
    loaded = loads(_product)
    ends = [_ranking(16)[-1], _ranking(16)[0]]
    matmul = _dynamic(ends)
    for _ in range(3):
        matmul(*_operands())
    assert [spec.config.name for spec in loaded] == ends[: 1 + passes]
    assert len(tries) == 1 + passes


@pytest.mark.parametrize(("model", "digest"), [("/gone", "0" * 16), ("", "another")])
def test_a_model_that_is_gone_leaves_a_kernel_that_runs(
    loads: Callable, caplog: pytest.LogCaptureFixture, model: str, digest: str
) -> None:
    loaded = loads(_product)
    matmul = DynamicMatmul.named(
        _firsts(16, 4096), OPERANDS, False, model=model, power="robust", digest=digest
    )
    for m in (16, 17, 4096):
        a, b, out = _operands(m)
        matmul(a, b, out)
        assert torch.equal(out, a @ b)
    assert len(loaded) == 1
    (warning,) = warnings_told(caplog)
    assert "choosing a kernel for a dynamic extent failed" in warning


def test_a_launch_that_fails_is_one_warning_and_torch_multiplies(
    loads: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    loads(_refuses)
    matmul = _static()
    for m in (16, 16, 33):
        a, b, out = _operands(m)
        matmul(a, b, out)
        assert torch.equal(out, a @ b)
    (warning,) = warnings_told(caplog)
    assert "Mismatched Tensor on argument #1, expected stride 8" in warning
    assert "\n" not in warning
    assert counters["tilecast"][f"failed: running {NAME}"] == 3


def _from_cpp(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    cpp_operator.launch(a, b, out, [], [NAME], OPERANDS, [], 1.0, 1.0, True)


UNTRIED: dict[str, Callable[[], Function]] = {
    "static": lambda: StaticMatmul.named(NAME, OPERANDS, batched=False, untried=True),
    "C++": lambda: _from_cpp,
}
"""What runs a kernel that nobody has run on such a GPU."""


@pytest.mark.parametrize("runs", UNTRIED)
@pytest.mark.parametrize("factor", [1.0, 1.1, float("nan")])
def test_the_first_result_of_a_kernel_that_has_never_run_is_compared_with_torchs(
    loads: Callable, caplog: pytest.LogCaptureFixture, factor: float, runs: str
) -> None:
    """Each call that is not right is torch's; one that is right is not compared again."""
    calls = []

    def kernel(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        calls.append(a.shape)
        out.copy_(a @ b * factor)

    loads(kernel)
    cpp_operator._named.cache_clear()
    matmul = UNTRIED[runs]()
    for m in (16, 33):
        a, b, out = _operands(m)
        matmul(a, b, out)
        assert torch.equal(out, a @ b)
    if factor == 1:
        assert [shape[0] for shape in calls] == [16, 16, 33]
        assert warnings_told(caplog) == []
    else:
        assert [shape[0] for shape in calls] == [16]
        (warning,) = warnings_told(caplog)
        assert f"{NAME} has never run on such a GPU, and its result is not PyTorch's (" in warning
        with errors_raised(), pytest.raises(TilecastError, match="its result is not PyTorch's"):
            matmul(*_operands())


def test_rows_that_no_group_has_are_not_compared(
    loads: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the kernel nor PyTorch writes them; without a row nothing is decided."""

    def kernel(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, ends: torch.Tensor) -> None:
        starts = [0, *ends.tolist()]
        for group, end in enumerate(starts[1:]):
            out[starts[group] : end] = a[starts[group] : end] @ b[group]
        out[starts[-1] :] = torch.nan

    loads(kernel)
    config, operands = "128x128x64_c1x1x1_s4_coop_o1_rm8", "bf16:rcr:row-groups"
    matmul = StaticMatmul.named(config, operands, batched=False, untried=True)
    a = torch.randn(16, K).bfloat16()
    b = torch.randn(3, N, K).bfloat16().mT
    out = torch.empty(16, N, dtype=torch.bfloat16)
    with errors_raised(), pytest.raises(NotNow, match="without a row in any group"):
        matmul(a, b, out, torch.tensor([0, 0, 0], dtype=torch.int32))
    matmul(a, b, out, torch.tensor([5, 5, 11], dtype=torch.int32))
    assert torch.equal(out[5:11], a[5:11] @ b[2]) and out[11:].isnan().all()
    assert warnings_told(caplog) == []


@pytest.mark.parametrize(
    "error",
    [TilecastError("kernel is not compiled"), RuntimeError("cuModuleLoadData"), ImportError("DSL")],
    ids=lambda error: type(error).__name__,
)
def test_a_load_that_fails_is_tried_once_and_torch_multiplies(
    loads: Callable,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    tries: list[Any] = []

    def fails(*arguments: Any) -> Launch:
        tries.append(arguments)
        raise error

    monkeypatch.setattr(static, "load_kernel", fails)
    matmul = _static()
    for m in (16, 16, 33):
        a, b, out = _operands(m)
        matmul(a, b, out)
        assert torch.equal(out, a @ b)
    assert len(warnings_told(caplog)) == 1
    assert len(tries) == 1, "each call of a graph pays for it"
    with errors_raised(), pytest.raises(TilecastError, match=str(error)):
        matmul(*_operands())


def _fails(*arguments: Any) -> Launch:
    raise RuntimeError("out of memory for a moment")


def test_failures_keep_no_tensor_alive(loads: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    loads(_product)
    monkeypatch.setattr(static, "load_kernel", _fails)
    matmul = _static()

    def multiply(raised: bool) -> list[weakref.ref]:
        operands = _operands()
        if raised:
            with errors_raised(), pytest.raises((RuntimeError, TilecastError)):
                matmul(*operands)
        else:
            matmul(*operands)
        return [weakref.ref(tensor) for tensor in operands]

    alive = [ref for call in range(50) for ref in multiply(raised=call % 2 == 0)]
    gc.collect()
    assert [ref for ref in alive if ref() is not None] == []


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(
    ("dtype", "out_dtype", "error"),
    [
        ("bfloat16", "float32", 1e-6),
        ("float16", "float32", 1e-6),
        ("bfloat16", "float16", 2**-11),
        ("float16", "bfloat16", 2**-8),
        ("bfloat16", "bfloat16", 2**-8),
    ],
)
def test_torch_multiplies_into_any_dtype_and_rounds_once(
    loads: Callable, batched: bool, dtype: str, out_dtype: str, error: float
) -> None:
    loads(_refuses)
    stored = TensorSpec(dtype_of_torch(dtype), "row")
    result = TensorSpec(dtype_of_torch(out_dtype), "row")
    operands = GemmOperands.product(stored, replace(stored, major="col"), result)
    matmul = StaticMatmul.named(NAME, operands.text, batched=batched)
    batch = (3,) if batched else ()
    a = torch.rand(*batch, 16, K).to(getattr(torch, dtype))
    b = torch.rand(*batch, N, K).to(getattr(torch, dtype)).mT
    for autocast in (False, True):
        out = torch.full((*batch, 16, N), torch.nan, dtype=getattr(torch, out_dtype))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            matmul(a, b, out)
        exact = a.double() @ b.double()
        assert ((out.double() - exact).abs() / exact).max() <= 1.01 * error


STEPS = (
    *("c", "alpha+c", "beta-c", "alpha+beta-c", "bias+c", "bias", *activations(), "bias+silu"),
    *("silu-mul", "bias+mul-gelu"),
)
SCALES = ("", ":column-scales", ":fp32-column-scales", ":bias", ":column-scales+bias")
EPILOGUES = (
    *(f"bf16:rcr:{steps}" for steps in STEPS),
    *("fp16:rrr:beta-c", "bf16:rcr>fp32:c", "bf16:rcr>fp32:bias", "bf16:rcr>fp32:silu-mul"),
    *(f"bf16xint8:rcr{scales}" for scales in SCALES),
)


@pytest.mark.parametrize("text", EPILOGUES)
@pytest.mark.parametrize("batch", [1, 3])
def test_torch_does_all_that_a_kernel_fuses(loads: Callable, text: str, batch: int) -> None:
    loads(_refuses)
    torch.manual_seed(0)
    problem = GemmProblem(16, N, K, batch, GemmOperands.parse(text))
    a, b, *extras = random_inputs(problem, "cpu")
    out = poisoned_out(problem, "cpu")
    StaticMatmul.named(NAME, text, batched=batch > 1)(a, b, out, *extras)
    expected = reference(problem, (a, b, *extras))
    assert torch.linalg.norm(out.float() - expected) / torch.linalg.norm(expected) < 5e-3


def test_a_bias_is_handed_to_the_kernel(loads: Callable) -> None:
    def biased(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor) -> None:
        out.copy_(a.float() @ b.float() + bias)

    loaded = loads(biased)
    text, bias = "bf16:rcr:bias", torch.randn(N).bfloat16()
    dynamic = DynamicMatmul.named(
        _firsts(16, 4096), text, False, model="", power="robust", digest=model_digest(None)
    )
    with errors_raised():
        for matmul in (StaticMatmul.named(NAME, text, batched=False), dynamic):
            a, b, out = _operands()
            matmul(a, b, out, bias)
            torch.testing.assert_close(out, torch.addmm(bias, a, b))
        dynamic(*(tensor[:0] for tensor in (a, a)), out[:0], bias)
    assert {spec.operands.text for spec in loaded} == {text}


@pytest.mark.parametrize(
    "kind",
    [
        lambda bias: bias,
        lambda bias: bias[None],
        lambda bias: bias.expand(5, N),
        lambda bias: bias.expand(0, N),
    ],
    ids=["(n,)", "(1, n)", "expanded", "expanded to no rows"],
)
def test_a_row_is_a_view(kind: Callable) -> None:
    whole = torch.arange(2 * N)
    bias = whole[N:]
    found = row(kind(bias))
    assert torch.equal(found, bias)
    assert found.data_ptr() == bias.data_ptr()
    assert found.stride() == (1,)


def test_a_benchmark_sees_what_fails(loads: Callable) -> None:
    """Time that torch took would pass for the kernel's."""
    loads(_refuses)
    a, b, out = _operands()
    with errors_raised(), pytest.raises(ValueError, match="Mismatched Tensor"):
        _static()(a, b, out)
    assert bool(out.isnan().all())
    _static()(a, b, out)
    assert torch.equal(out, a @ b)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("operands", ["bf16:rcr", "bf16:rcr:bias"])
def test_an_extent_that_the_library_wins_is_multiplied_by_torch(
    loads: Callable, leaving_model: Path, operands: str, batched: bool
) -> None:
    loaded = loads(_refuses)
    digest = model_digest(str(leaving_model))
    matmul = DynamicMatmul.named(
        [NAME], operands, batched, model=str(leaving_model), power="robust", digest=digest
    )
    a, b, out = _operands()
    bias = [torch.ones(N, dtype=torch.bfloat16)] if ":bias" in operands else []
    expected = torch.addmm(bias[0], a, b) if bias else a @ b
    if batched and not bias:
        a, b, out, expected = a[None], b[None], out[None], expected[None]
    matmul(a, b, out, *bias)
    assert torch.equal(out, expected)
    assert loaded == []


@pytest.mark.parametrize(
    ("operands", "shape"),
    [("bf16:rcr", (5, 1001)), ("fp16:rcr", (2, 5, 13)), ("bf16:rcr>fp32", (5, 1003))],
)
def test_rows_that_tma_does_not_store_are_stored_by_another_kernel(
    gpu: list[KernelSpec], operands: str, shape: tuple[int, ...]
) -> None:
    *batch, m, n = shape
    problem = GemmProblem(m, 8 * n, K, *batch, operands=GemmOperands.parse(operands))
    a, b, *_ = random_inputs(problem, device="cpu")
    b = b[..., :n]
    whole = poisoned_out(problem, device="cpu")
    out = whole.reshape(-1)[: whole.numel() // 8].view(shape)
    StaticMatmul.named(NAME, operands, bool(batch), any_rows=True)(a, b, out)
    expected = a.double() @ b.double()
    assert torch.allclose(out.double(), expected, rtol=0.01, atol=0.05)
    assert [spec.any_rows for spec in gpu] == [True]


def test_a_symbolic_m_is_ranked_by_the_longer_rows(loads: Callable) -> None:
    names = [_ranking(m, n=1008)[0] for m in (16, 2048)]
    loaded = loads(_product)
    matmul = _dynamic(names, any_rows=True)
    for m, name in zip((16, 2048), names, strict=True):
        a, b = torch.randn(m, K).bfloat16(), torch.randn(1001, K).bfloat16().T
        out = torch.empty(m, 1001, dtype=torch.bfloat16)
        with errors_raised():
            matmul(a, b, out)
        assert torch.equal(out, a @ b)
        assert loaded[-1].config.name == name


def test_torch_writes_rows_of_int32_in_place_of_a_kernel_that_fails(loads: Callable) -> None:
    """Which it refuses where there are gaps between them."""
    loads(lambda *operands: 1 / 0)
    a, b = (torch.randint(-9, 9, shape, dtype=torch.int8) for shape in ((32, 64), (1003, 64)))
    out = torch.empty(32, 1004, dtype=torch.int32)[:, :1003]
    StaticMatmul.named(NAME, "int8:rcr>int32", False)(a, b.T, out)
    assert torch.equal(out, a.int() @ b.int().T)
