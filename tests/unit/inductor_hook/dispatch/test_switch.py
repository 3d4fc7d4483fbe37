"""The switch on the CPU, whose kernels it replaces here: who multiplies, and who gets it back.

With the fixture `gpu` tensors pass for a GPU's, and kernels of ours are functions.
"""

# _int_mm and _scaled_mm are not exported, and are what callers have.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from processes import python
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.library import Library
from torch.nn.functional import ScalingType
from torch.utils._python_dispatch import TorchDispatchMode

from tilecast.heuristics.errors import TilecastError
from tilecast.inductor_hook import eager
from tilecast.inductor_hook.autoload import autoload
from tilecast.inductor_hook.dispatch import switch as routing
from tilecast.inductor_hook.dispatch.plan import Planner
from tilecast.inductor_hook.run import static
from tilecast.kernels.spec import KernelSpec

OPERATORS = ("mm", "bmm", "addmm", "_int_mm", "_scaled_mm", "_scaled_mm_v2", "_grouped_mm")
OPERATORS += ("_scaled_grouped_mm",)
INT8, ROWS, ONES = "int8:rcr>int32", "e4m3:rcr>bf16:row-scales", "e4m3:rcr>bf16:tensor-scales"
M, N, K = 32, 64, 128

ModelOf = Callable[..., Path]


def _kernels(key: str = "CPU") -> list[str]:
    """Who registered the kernels of a dispatch key, by operator."""
    tables = (torch._C._dispatch_dump(f"aten::{name}") for name in OPERATORS)
    return [line for table in tables for line in table.splitlines() if line.startswith(f"{key}:")]


def _bf16(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()


def _texts(launched: list[KernelSpec]) -> list[str]:
    return [spec.operands.text for spec in launched]


def test_kernels_are_replaced_and_given_back(switch: list[KernelSpec]) -> None:
    before = _kernels()
    eager.disable()
    assert _kernels() == before
    eager.enable()
    assert not set(_kernels()) & set(before)
    eager.enable(power="burst")
    eager.disable()
    assert _kernels() == before


def test_out_variants_and_other_keys_stay(switch: list[KernelSpec]) -> None:
    variants = [name for name in OPERATORS if name != "_grouped_mm"]  # which has none
    tables = [torch._C._dispatch_dump(f"aten::{name}.out") for name in variants]
    cuda = _kernels("CUDA")
    eager.enable()
    assert [torch._C._dispatch_dump(f"aten::{name}.out") for name in variants] == tables
    assert _kernels("CUDA") == cuda


def test_nothing_is_warned_of(
    switch: list[KernelSpec], recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tilecast")
    eager.enable()
    for _ in range(3):
        torch.mm(torch.ones(4, 8), torch.ones(8, 2))
    assert [str(warning.message) for warning in recwarn] == []
    (said,) = caplog.records
    assert said.levelno == logging.INFO
    told = "a multiplication goes to torch, as others like it: an operand is torch.float32; allowed"
    assert told in said.getMessage()


def test_why_torch_multiplies_is_told(
    switch: list[KernelSpec], caplog: pytest.LogCaptureFixture, model_of: ModelOf
) -> None:
    caplog.set_level(logging.INFO, "tilecast")
    eager.enable(model_of("bf16:rcr bf16:rcr:bias", leaves=True))
    for m in (M, 2 * M):
        torch.mm(_bf16(m, K), _bf16(N, K).T)
        torch.addmm(_bf16(m, 1), _bf16(m, K), _bf16(N, K).T)
    assert switch == []
    library, bias = (record.getMessage() for record in caplog.records)
    assert "the model expects torch to be faster for some" in library
    assert "torch adds torch.bfloat16 of 2 dimensions to a product in torch.bfloat16" in bias


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model": "/nowhere"}, "model /nowhere is refused"),
        ({"power": "eco"}, "power 'eco' is not known"),
    ],
    ids=str,
)
def test_a_bad_setting_changes_nothing(
    switch: list[KernelSpec], options: dict[str, Any], reason: str
) -> None:
    eager.enable()
    before = _kernels()
    with pytest.raises(TilecastError, match=reason):
        eager.enable(**options)
    assert _kernels() == before


class _Mode(TorchDispatchMode):
    """Leaves all as it is."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        return function(*args, **kwargs or {})


class _Wrapped(torch.Tensor):
    """A tensor that has PyTorch ask in Python, and then not."""

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        with torch._C._DisableTorchDispatch():
            return function(*args, **kwargs or {})


def _below_a_mode(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """As torch runs a kernel for a mode's sake, as when it compiles."""
    python = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)
    with _Mode(), torch._C._ExcludeDispatchKeyGuard(python):
        return torch.bmm(a, b)


def _wrapped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.bmm(a.as_subclass(_Wrapped), b).as_subclass(torch.Tensor)


@pytest.mark.parametrize("told", [False, True], ids=["", "told the keys"])
@pytest.mark.parametrize("multiply", [_below_a_mode, _wrapped])
def test_a_kernel_of_torch_that_is_written_in_python_is_found(
    switch: list[KernelSpec], monkeypatch: pytest.MonkeyPatch, multiply: Callable, told: bool
) -> None:
    # As of PyTorch 2.15 `bmm` has one.
    library, calls = Library("aten", "IMPL"), []
    below = torch.library.get_kernel("aten::bmm", "CPU")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

    def native(*operands: Any) -> torch.Tensor:
        *before, a, b = operands
        assert list(map(type, before)) == [torch._C.DispatchKeySet] * told
        calls.append(type(a))
        return below.call_boxed(keys, a, b)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("bmm", native, "CPU", with_keyset=told)
    monkeypatch.setattr(routing, "_in_python", lambda name, key: name == "bmm")
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    expected = torch.baddbmm(torch.zeros(2, 3, 5), a, b)
    try:
        for turn, switched in enumerate((eager.enable, eager.disable, eager.enable), 1):
            switched()
            torch.testing.assert_close(multiply(a, b), expected)
            assert len(calls) == turn
    finally:
        eager.disable()
        library._destroy()


def test_which_kernels_of_torch_are_in_python_is_seen() -> None:
    # A key that nothing runs on.
    assert not routing._in_python("bmm", "HPU")
    routing._in_python.cache_clear()
    library = Library("aten", "IMPL")
    library.impl("bmm", lambda a, b: a, "HPU")
    try:
        assert routing._in_python("bmm", "HPU")
    finally:
        library._destroy()
        routing._in_python.cache_clear()


@pytest.mark.skipif(torch.version.cuda is not None, reason="takes a build without CUDA")
def test_a_build_without_cuda_is_refused_in_one_line() -> None:
    before = _kernels("CUDA")
    with pytest.raises(TilecastError, match="no CUDA kernel of _int_mm; allowed: ") as refusal:
        eager.enable()
    assert "\n" not in str(refusal.value)
    assert _kernels("CUDA") == before


CALLS: dict[str, tuple[Callable[[], torch.Tensor], list[str]]] = {
    "mm": (lambda: torch.mm(_bf16(M, K), _bf16(N, K).T), ["bf16:rcr"]),
    "bmm": (lambda: torch.bmm(_bf16(3, M, K), _bf16(3, N, K).mT), ["bf16:rcr"]),
    "matmul": (lambda: _bf16(2, M, K) @ _bf16(N, K).T, ["bf16:rcr"]),
    "linear": (lambda: F.linear(_bf16(M, K), _bf16(N, K)), ["bf16:rcr"]),
    "linear of a batch": (
        lambda: F.linear(_bf16(2, M, K), _bf16(N, K), _bf16(N)),
        ["bf16:rcr:bias"],
    ),
    "addmm": (lambda: torch.addmm(_bf16(1, N), _bf16(M, K), _bf16(N, K).T), ["bf16:rcr:bias"]),
    "a matrix added": (
        lambda: torch.addmm(_bf16(M, N), _bf16(M, K), _bf16(N, K).T),
        ["bf16:rcr:c"],
    ),
    "factors": (
        lambda: torch.addmm(_bf16(N), _bf16(M, K), _bf16(N, K).T, alpha=0.5, beta=2),
        [],
    ),
    "float32": (lambda: torch.mm(_bf16(M, K).float(), _bf16(N, K).T.float()), []),
    "misaligned": (lambda: torch.mm(_bf16(M * K + 1)[1:].view(M, K), _bf16(N, K).T), []),
    "every second column": (lambda: torch.mm(_bf16(M, 2 * K)[:, ::2], _bf16(N, K).T), []),
    "no rows": (lambda: torch.mm(_bf16(0, K), _bf16(N, K).T), []),
    "int8": (lambda: torch.mm(_int8(M, K), _int8(N, K).T), []),
    "groups": (
        lambda: F.grouped_mm(_bf16(M, K), _bf16(3, N, K).mT, offs=_ends(2, 2, M)),
        ["bf16:rcr:row-groups"],
    ),
}
"""Multiplications, and the operands of the kernels of ours that do them."""


def _ends(*rows: int) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def _int8(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=generator)


@pytest.mark.parametrize("kind", CALLS)
def test_who_multiplies(switch: list[KernelSpec], kind: str) -> None:
    call, texts = CALLS[kind]
    expected = call()
    eager.enable()
    result = call()
    assert _texts(switch) == texts
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    torch.testing.assert_close(result, expected, rtol=2**-6, atol=2**-6)
    eager.disable()
    assert torch.equal(call(), expected)
    assert _texts(switch) == texts


def test_what_torch_refuses_is_refused_as_torch_does(switch: list[KernelSpec]) -> None:
    calls = (
        lambda: torch.mm(_bf16(M, K), _bf16(M, K)),
        lambda: torch.mm(_bf16(M, K), _bf16(N, K).T.half()),
        lambda: torch.bmm(_bf16(2, M, K), _bf16(3, N, K).mT),
        lambda: torch.addmm(_bf16(N + 1), _bf16(M, K), _bf16(N, K).T),
        lambda: torch.addmm(_bf16(1, N).expand(M + 1, N), _bf16(M, K), _bf16(N, K).T),
        lambda: torch._int_mm(_bf16(M, K), _bf16(N, K).T),
        lambda: _scaled(torch.ones(2), torch.ones(1)),
    )
    for call in calls:
        messages = []
        for change in (eager.disable, eager.enable):
            change()
            with pytest.raises((RuntimeError, ValueError)) as refusal:
                call()
            messages.append(str(refusal.value))
        assert messages[0] == messages[1]
    assert switch == []


GROUPS = "bf16:rcr:row-groups"


def test_grouped_mm_and_its_gradients(switch: list[KernelSpec], model_of: ModelOf) -> None:
    """That of A is grouped as the product is; those of the weights are along k, and torch's."""
    a, weight, gradient = _bf16(M, K), _bf16(3, N, K), _bf16(M, N)
    for tensor in (a, weight):
        tensor.requires_grad_()

    def step() -> list[torch.Tensor]:
        result = F.grouped_mm(a, weight.mT, offs=_ends(5, 5, M))
        return [result, *torch.autograd.grad(result, (a, weight), gradient)]

    expected = step()
    eager.enable(model_of(f"{GROUPS} bf16:rrr:row-groups"))
    for found, right in zip(step(), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=2**-6, atol=2**-6)
    assert _texts(switch) == [GROUPS, "bf16:rrr:row-groups"]


@pytest.mark.parametrize(
    "call",
    [
        lambda a, w: F.grouped_mm(a, w.mT, offs=_ends(5, 5, M).long()),
        lambda a, w: F.grouped_mm(a, w.mT, offs=_ends(5, M)),
        lambda a, w: F.grouped_mm(a.expand(3, M, K), w.mT),
        lambda a, w: F.grouped_mm(a.mT, a, offs=_ends(8, 8, M)),
        lambda a, w: F.grouped_mm(a.float(), w.mT.float(), offs=_ends(5, 5, M)),
    ],
    ids=["ends in int64", "too few ends", "a batch", "groups along k", "float32"],
)
def test_other_groups_are_torchs(
    switch: list[KernelSpec], model_of: ModelOf, call: Callable[..., torch.Tensor]
) -> None:
    a, weight = _bf16(M, K), _bf16(3, N, K)

    def outcome() -> torch.Tensor | str:
        try:
            return call(a, weight)
        except (RuntimeError, ValueError) as error:
            return str(error)

    expected = outcome()
    eager.enable(model_of(GROUPS))
    found = outcome()
    if isinstance(found, torch.Tensor) and isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected
    assert switch == []


def _scaled(scale_a: torch.Tensor, scale_b: torch.Tensor, **options: Any) -> torch.Tensor:
    a, b = _bf16(M, K).to(torch.float8_e4m3fn), _bf16(N, K).to(torch.float8_e4m3fn).T
    options.setdefault("out_dtype", torch.bfloat16)
    return torch._scaled_mm(a, b, scale_a, scale_b, **options)


def _by_recipe(recipe: ScalingType, *scales: torch.Tensor, **options: Any) -> torch.Tensor:
    a, b = _bf16(M, K).to(torch.float8_e4m3fn), _bf16(N, K).to(torch.float8_e4m3fn).T
    return F.scaled_mm(a, b, scales[0], recipe, scales[1], recipe, **options)


def _rows() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(M, 1), torch.rand(1, N)


def _scaled_groups(**options: Any) -> torch.Tensor:
    a, b = _bf16(M, K).to(torch.float8_e4m3fn), _bf16(3, N, K).to(torch.float8_e4m3fn).mT
    scales, ends = (torch.rand(M), torch.rand(3, N)), _ends(5, 5, M)
    return torch._scaled_grouped_mm(a, b, *scales, offs=ends, **options)


_FAST = {"use_fast_accum": True}
SCALED: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "numbers": (lambda: _scaled(torch.tensor(0.5), torch.tensor([[2.0]]), **_FAST), ONES),
    "rows": (lambda: _scaled(*_rows(), **_FAST), ROWS),
    "exact": (lambda: _scaled(*_rows()), "e4m3:rcr>bf16@fp32:row-scales"),
    "a bias": (lambda: _scaled(*_rows(), bias=_bf16(N), **_FAST), f"{ROWS}+bias"),
    "one number by recipe": (
        lambda: _by_recipe(ScalingType.TensorWise, torch.tensor(0.5), torch.ones(1), **_FAST),
        ONES,
    ),
    "rows by recipe": (
        lambda: _by_recipe(ScalingType.RowWise, *_rows(), bias=_bf16(N)),
        "e4m3:rcr>bf16@fp32:row-scales+bias",
    ),
    "int8": (lambda: torch._int_mm(_int8(M, K), _int8(N, K).T), INT8),
    "groups": (lambda: _scaled_groups(**_FAST), "e4m3:rcr>bf16:row-groups+row-scales"),
    "groups, exact": (_scaled_groups, "e4m3:rcr>bf16@fp32:row-groups+row-scales"),
}
"""Calls in 8 bits, and the operands that they ask for."""


@pytest.mark.parametrize("kind", SCALED)
def test_8_bits(switch: list[KernelSpec], model_of: ModelOf, kind: str) -> None:
    call, text = SCALED[kind]
    torch.manual_seed(0)
    expected = call()
    eager.enable(model_of(text))
    torch.manual_seed(0)
    torch.testing.assert_close(call(), expected, rtol=2**-6, atol=2**-6)
    assert _texts(switch) == [text]


@pytest.mark.parametrize(
    "options",
    [{"out_dtype": None}, {"scale_result": torch.ones(1)}, {"bias": _bf16(2 * N)[::2]}],
    ids=lambda options: next(iter(options)),
)
def test_scaled_products_that_are_torchs(
    switch: list[KernelSpec], model_of: ModelOf, options: dict[str, Any]
) -> None:
    scales = torch.ones(1), torch.ones(1)
    expected = _scaled(*scales, **options)
    eager.enable(model_of(f"{ONES}+bias" if "bias" in options else ONES))
    assert torch.equal(_scaled(*scales, **options).float(), expected.float())
    assert switch == []


@pytest.mark.parametrize(
    ("recipe", "scales"),
    [
        (ScalingType.TensorWise, (torch.ones(M, 1), torch.ones(1, N))),
        (ScalingType.RowWise, (torch.ones(1), torch.ones(1))),
        (ScalingType.BlockWise1x128, (torch.ones(M, 1), torch.ones(1, N))),
    ],
    ids=["rows as one number", "numbers as rows", "blocks"],
)
def test_scales_that_their_recipe_refuses_are_torchs(
    switch: list[KernelSpec],
    model_of: ModelOf,
    recipe: ScalingType,
    scales: tuple[torch.Tensor, torch.Tensor],
) -> None:
    def refused() -> str:
        with pytest.raises((RuntimeError, ValueError)) as error:
            _by_recipe(recipe, *scales)
        return str(error.value)

    expected = refused()
    eager.enable(model_of(ROWS))
    assert refused() == expected
    assert switch == []


def test_gradients_are_torchs(switch: list[KernelSpec]) -> None:
    results = []
    for change in (eager.disable, eager.enable):
        change()
        x, weight, bias = (_bf16(*s).requires_grad_() for s in ((M, K), (N, K), (N,)))
        loss = F.linear(x, weight, bias).float().square().mean()
        results.append(torch.autograd.grad(loss, (x, weight, bias)))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=2**-5, atol=2**-5)
    assert _texts(switch)[0] == "bf16:rcr:bias"


def test_autocast_is_torchs(switch: list[KernelSpec]) -> None:
    x, weight = _bf16(M, K).float(), _bf16(N, K).float()
    eager.enable()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.linear(x, weight).dtype == torch.bfloat16
    assert F.linear(x, weight).dtype == torch.float32
    assert _texts(switch) == ["bf16:rcr"]


def test_transforms_are_torchs(switch: list[KernelSpec]) -> None:
    x, y = _bf16(3, M, K), _bf16(N, K).T
    eager.enable()
    assert torch.func.vmap(torch.mm, (0, None))(x, y).shape == (3, M, N)
    tangent = torch.func.jvp(lambda a: torch.mm(a, y), (x[0],), (x[1],))[1]
    torch.testing.assert_close(tangent, x[1] @ y)
    assert switch


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    """A mesh of this process alone."""
    distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_distributed_tensors_stay_what_they_are(switch: list[KernelSpec], mesh: DeviceMesh) -> None:
    """Their local parts are multiplied by us, gradients too."""
    results = []
    for change in (eager.disable, eager.enable):
        change()
        x, weight = (_bf16(*shape).requires_grad_() for shape in ((M, K), (N, K)))
        rows = DTensor.from_local(x, mesh, [Shard(0)], run_check=False)
        out = F.linear(rows, DTensor.from_local(weight, mesh, [Replicate()], run_check=False))
        assert isinstance(out, DTensor) and out.placements == (Shard(0),)
        loss = out.to_local().float().square().mean()
        results.append((out.to_local(), *torch.autograd.grad(loss, (x, weight))))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=2**-5, atol=2**-5)
    assert _texts(switch)[0] == "bf16:rcr"


@pytest.mark.usefixtures("switch")
def test_a_kernel_that_fails_under_distributed_tensors_is_replaced_by_torch(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(static, "load_kernel", refuse)
    x, weight = (_bf16(*shape).requires_grad_() for shape in ((M, K), (N, K)))
    expected = F.linear(x, weight)
    eager.enable()
    rows = DTensor.from_local(x, mesh, [Shard(0)], run_check=False)
    out = F.linear(rows, DTensor.from_local(weight, mesh, [Replicate()], run_check=False))
    assert isinstance(out, DTensor)
    torch.testing.assert_close(out.to_local(), expected, rtol=2**-5, atol=2**-5)


def test_tracers_see_torchs_operators(switch: list[KernelSpec]) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    operands = _bf16(M, K), _bf16(N, K).T
    eager.enable()
    graph = make_fx(torch.mm, tracing_mode="fake")(*operands)
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert targets == [torch.ops.aten.mm.default]
    assert torch.mm(*(operand.to("meta") for operand in operands)).shape == (M, N)
    assert switch == []


@pytest.mark.usefixtures("hook")
def test_compiled_code_keeps_what_inductor_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(routing, "_KEY", "CPU")
    monkeypatch.setattr(Planner, "multiply", lambda *what: asked.append(what))
    torch._dynamo.reset()
    operands = _bf16(M, K), _bf16(N, K).T
    expected = torch.mm(*operands)
    eager.enable()
    assert torch.equal(torch.compile(torch.mm)(*operands), expected)
    assert asked == []
    torch.mm(*operands)
    assert len(asked) == 1


def test_threads_go_on_while_it_is_switched(switch: list[KernelSpec]) -> None:
    a, b = torch.ones(4, 8), torch.ones(8, 4)
    done = Event()

    def multiply() -> int:
        calls = 0
        while not done.is_set():
            assert torch.mm(a, b).sum() == 128
            calls += 1
        return calls

    with ThreadPoolExecutor(3) as threads:
        working = [threads.submit(multiply) for _ in range(3)]
        for _ in range(200):
            eager.enable()
            eager.disable()
        done.set()
        assert all(thread.result() for thread in working)


def test_another_package_may_stand_in_front(switch: list[KernelSpec]) -> None:
    seen, library = [], Library("aten", "IMPL")
    eager.enable()

    def other(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        seen.append(a.shape)
        return a.new_zeros(a.shape[0], b.shape[1])

    library.impl("mm", other, "CPU")
    eager.disable()
    torch.mm(_bf16(M, K), _bf16(N, K).T)
    assert seen == [(M, K)]
    library._destroy()
    assert torch.mm(_bf16(M, K), _bf16(N, K).T).any()


@pytest.mark.parametrize(("value", "on"), [("", False), ("0", False), ("1", True), (None, False)])
def test_a_variable_switches_it_on(
    switch: list[KernelSpec],
    another_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    value: str | None,
    on: bool,
) -> None:
    if value is not None:
        monkeypatch.setenv("TILECAST_EAGER", value)
    monkeypatch.setenv("TILECAST_MODEL", str(another_model))
    before = _kernels()
    autoload()
    assert (_kernels() != before) is on


def test_importing_torch_with_the_variable_neither_fails_nor_asks_for_a_gpu() -> None:
    code = "import torch; print(torch.cuda.is_initialized(), torch.ones(2, 2).mm(torch.ones(2, 2)))"
    process = python(code, TILECAST_EAGER="1")
    assert process.stdout.startswith("False")
    assert process.stderr.count("\n") == (torch.version.cuda is None)
