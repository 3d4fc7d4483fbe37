"""The hook on a GPU: what is compiled with it, and the eager operators, against float32."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from processes import printed, started
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.lowering import lowerings
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch._subclasses import FakeTensorMode
from torch.nn.functional import ScalingType

from tilecast.data_collection.timing.tensors import poisoned_out, random_inputs, reference
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import EPILOGUES, GemmOperands, activations
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import addmm, bmm, eager, installed, mm
from tilecast.inductor_hook.run import static
from tilecast.inductor_hook.run.static import StaticMatmul
from tilecast.inductor_hook.select.selection import first, shortlist
from tilecast.inductor_hook.settings import Settings
from tilecast.inductor_hook.timing import cuda_graph, decide, power_limit
from tilecast.kernels import occupancy
from tilecast.kernels.build.builder import object_builder
from tilecast.kernels.objects import cache as object_cache
from tilecast.kernels.spec import KernelSpec

TOLERANCE = 1e-2
"""Rounding to bf16 costs 2^-8 = 0.4% at most, twice with a bias; a wrong element far more."""
ONE_ROUNDING = 2e-3
"""A normal product with a row loses 1.7e-3 of its norm to one rounding to bf16, 2.3e-3 to two."""
BACKENDS = "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS"

Function = Callable[..., torch.Tensor]


@pytest.fixture(scope="session", autouse=True)
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One object cache for all tests, the processes that they start and pytest's workers."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "hook-objects"
    folder.mkdir(mode=0o700, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILECAST_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def same_every_time(gpu_with_a_model: None) -> None:
    torch.manual_seed(0)
    counters.clear()


def _bf16(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """||found - expected|| / ||expected||; NaN where found has one."""
    difference = torch.linalg.vector_norm(found.double() - expected.double())
    return (difference / torch.linalg.vector_norm(expected.double())).item()


def _exact(function: Function, *operands: torch.Tensor) -> torch.Tensor:
    """The result in float32, from the same views."""
    with torch.no_grad():
        return function(*(operand.float() for operand in operands))


def _failures() -> list[str]:
    return [event for event in counters["tilecast"] if event.startswith("failed")]


def _settings(backends: str = "TILECAST", pads: bool = False) -> dict[str, Any]:
    # Most without padding, which makes other products of some.
    return {
        "max_autotune_gemm": True,
        "max_autotune_gemm_backends": backends,
        "shape_padding": pads,
    }


@pytest.fixture
def compiled() -> Iterator[Callable[..., tuple[torch.Tensor, str]]]:
    """Compiles a function with TILECAST among the backends; gives its result and its code."""

    def run(
        function: Function,
        *operands: torch.Tensor,
        k: int = 3,
        backends: str = "TILECAST",
        model: Path | None = None,
        fuse: bool = True,
        pads: bool = False,
    ) -> tuple[torch.Tensor, str]:
        torch._dynamo.reset()
        counters.clear()
        ours = installed(k, model, fuse=fuse)
        with ours, fresh_cache(), config.patch(_settings(backends, pads)):
            result, codes = run_and_get_code(torch.compile(function, fullgraph=True), *operands)
        # The graph's own comes last, behind that of what is compiled on trial.
        return result, codes[-1]

    yield run
    torch._dynamo.reset()


def _is_right(function: Function, *operands: torch.Tensor, compiled: Callable) -> str:
    """Compile, compare with float32, and check that a kernel of ours did it; returns the code."""
    result, code = compiled(function, *operands)
    expected = _exact(function, *operands)
    assert result.shape == expected.shape
    assert _error(result, expected) < TOLERANCE
    assert _failures() == []
    assert counters["tilecast"]["problems"] == 1
    assert "StaticMatmul.named" in code
    return code


def _is_close(
    compiled: Callable, function: Function, *operands: torch.Tensor, **options: Any
) -> str:
    """Compile and compare with float32, whoever multiplies; returns the code."""
    result, code = compiled(function, *operands, **options)
    expected = _exact(function, *operands)
    assert result.shape == expected.shape
    assert result.numel() == 0 or _error(result, expected) < TOLERANCE
    assert _failures() == []
    return code


def _linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight.T


M, N, K = 192, 1024, 512


def _single_row(x: torch.Tensor) -> torch.Tensor:
    """As Inductor sees the one row of a view, such as a layer's last token."""
    return x.flatten().as_strided((1, x.numel()), (0, 1))


def _heads(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Queries and keys as attention splits them: batch strides smaller than row strides."""
    heads = [t.view(M, 8, 64).transpose(0, 1) for t in (q, k)]
    return torch.bmm(heads[0], heads[1].mT)


def _stacked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.bmm(x, y.mT)


COVERED: dict[str, tuple[Function, Callable[[], tuple[torch.Tensor, ...]]]] = {
    "linear": (_linear, lambda: (_bf16(M, K), _bf16(N, K))),
    "one row": (_linear, lambda: (_bf16(1, K), _bf16(N, K))),
    "37x1112x1032": (_linear, lambda: (_bf16(37, 1032), _bf16(1112, 1032))),
    "300x520x8": (_linear, lambda: (_bf16(300, 8), _bf16(520, 8))),
    "2500x264x200": (_linear, lambda: (_bf16(2500, 200), _bf16(264, 200))),
    "float16": (_linear, lambda: (_bf16(M, K).half(), _bf16(N, K).half())),
    "QKV": (lambda qkv, w: qkv[:, K : 2 * K] @ w.T, lambda: (_bf16(M, 3 * K), _bf16(N, K))),
    "offset": (
        lambda x, w: x[5:, 16 : 16 + K] @ w[8:].T,
        lambda: (_bf16(M + 5, K + 40), _bf16(N + 8, K)),
    ),
    "every second row": (
        lambda x, w: x[::2] @ w[::3].T,
        lambda: (_bf16(2 * M, K), _bf16(3 * N, K)),
    ),
    "one row that steps by nothing": (_linear, lambda: (_single_row(_bf16(K)), _bf16(N, K))),
    "inputs that are views": (
        _linear,
        lambda: (_bf16(M, 3 * K)[:, K : 2 * K], _bf16(N + 1, K)[1:]),
    ),
    "both column-major": (torch.mm, lambda: (_bf16(K, M).T, _bf16(N, K).T)),
    "both row-major": (torch.mm, lambda: (_bf16(M, K), _bf16(K, N))),
    "bmm": (_stacked, lambda: (_bf16(4, M, K), _bf16(4, 264, K))),
    "a batch of 1": (_stacked, lambda: (_bf16(1, M, K), _bf16(1, 264, K))),
    "a batch of 37 rows": (_stacked, lambda: (_bf16(6, 37, K), _bf16(6, 264, K))),
    "a batch of one row": (_stacked, lambda: (_bf16(3, 1, K), _bf16(3, 264, K))),
    "heads": (_heads, lambda: (_bf16(M, K), _bf16(M, K))),
}
"""Products that a tilecast kernel does, and their operands."""


@pytest.mark.parametrize("kind", COVERED)
def test_a_kernel_multiplies(compiled: Callable, kind: str) -> None:
    function, operands = COVERED[kind]
    _is_right(function, *operands(), compiled=compiled)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("backends", ["TILECAST", "ATEN,TILECAST"])
def test_int_mm_of_a_single_row_that_steps_by_nothing(
    compiled: Callable, k: int, backends: str
) -> None:
    """ATen's own takes no fewer than 17 rows."""
    x = torch.randint(-128, 128, (K,), dtype=torch.int8, device="cuda")
    weight = torch.randint(-128, 128, (N, K), dtype=torch.int8, device="cuda")
    found, code = compiled(
        lambda a, b: torch.ops.aten._int_mm(a, b.T), _single_row(x), weight, k=k, backends=backends
    )
    assert torch.equal(found.double(), x.double()[None] @ weight.double().T)
    assert "StaticMatmul" in code
    assert not _failures()


def _two_products(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Which Inductor makes one operator of."""
    return x @ weight.T + (x * 2) @ (weight * 3).T


def _int_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    a, b = x.float().round().to(torch.int8), weight.float().round().to(torch.int8)
    return torch.ops.aten._int_mm(a, b.T).float()


def _misaligned_view(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x[:, 3 : 3 + K] @ weight.T


@pytest.mark.parametrize(
    ("function", "a", "b"),
    [
        (_misaligned_view, (M, K + 8), (N, K)),
        (_linear, (M, K + 1), (N, K + 1)),
        (_linear, (0, K), (N, K)),
        (_two_products, (M, K), (N, K)),
        (_int_product, (M, K + 8), (N, K + 8)),
    ],
    ids=["misaligned", "odd k", "empty", "two products", "int8"],
)
def test_what_is_not_covered_is_right_too(
    compiled: Callable, function: Function, a: tuple, b: tuple
) -> None:
    assert "StaticMatmul" not in _is_close(compiled, function, _bf16(*a), _bf16(*b))


ODD: dict[str, tuple[Function, Callable[[int], tuple[torch.Tensor, ...]]]] = {
    "mm": (lambda x, w: x @ w.T, lambda n: (_bf16(M, K), _bf16(n, K))),
    "few rows": (lambda x, w: x @ w.T, lambda n: (_bf16(3, K), _bf16(n, K))),
    "linear": (torch.nn.functional.linear, lambda n: (_bf16(M, K), _bf16(n, K), _bf16(n))),
    "bmm": (lambda x, w: torch.bmm(x, w.mT), lambda n: (_bf16(4, M, K), _bf16(4, n, K))),
    "gelu": (
        lambda x, w: torch.nn.functional.gelu(x @ w.T),
        lambda n: (_bf16(M, K) / 32, _bf16(n, K)),
    ),
}


@pytest.mark.parametrize("columns", [N + 1, N + 2, 50257])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("kind", ODD)
def test_rows_that_tma_does_not_store(compiled: Callable, kind: str, k: int, columns: int) -> None:
    function, operands = ODD[kind]
    tensors = operands(columns)
    with torch.no_grad():
        result, code = compiled(function, *tensors, k=k)
    expected = _exact(function, *tensors)
    assert result.shape == expected.shape
    assert result.is_contiguous()
    assert _error(result, expected) < TOLERANCE
    # A row that ends at 2 bytes is added by no kernel.
    assert ("any_rows=True" in code) == (kind != "linear" or columns % 2 == 0)
    assert _failures() == []


def test_no_rows_are_added_for_a_kernel_that_takes_any(
    compiled: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.fx_passes import pad_mm

    # Whatever Inductor measures, it finds longer operands faster.
    monkeypatch.setattr(pad_mm, "_skip_do_bench_times", True)
    x, weight = _bf16(2043, K), _bf16(N, K)
    for backends, is_padded in (("ATEN", True), ("TILECAST", False), ("ATEN,TILECAST", False)):
        result, code = compiled(_linear, x, weight, backends=backends, pads=True)
        assert (f"(2048, {N})" in code) is is_padded
        assert _error(result, _exact(_linear, x, weight)) < TOLERANCE


FUSED: dict[str, tuple[Function, tuple[int, ...]]] = {
    "of nn.Linear": (lambda bias, x, w: F.linear(x, w, bias), (N,)),
    "as a matrix": (lambda bias, x, w: torch.addmm(bias, x, w.T), (1, N)),
    "expanded": (lambda bias, x, w: torch.addmm(bias.expand(M, N), x, w.T), (N,)),
    "of QKV": (lambda bias, x, w: F.linear(x, w, bias[N : 2 * N]), (3 * N,)),
    "4 bytes in": (lambda bias, x, w: F.linear(x, w, bias[2 : N + 2]), (N + 8,)),
}
"""Biases of one row, which a kernel adds."""


@pytest.fixture
def matrix_model(model_of: Callable[..., Path]) -> Path:
    """One that has seen some."""
    return model_of("bf16:rcr bf16:rcr:c", torch.cuda.get_device_name())


FACTORS: dict[str, dict[str, Any]] = {
    "c": {},
    "alpha+c": {"alpha": 0.5},
    "beta-c": {"beta": -2},
    "alpha+beta-c": {"alpha": 0.5, "beta": 3},
}
"""Factors of an addmm, by the steps of our kernel."""


def _added(steps: str) -> Function:
    """The addmm of a kernel with some steps."""
    return lambda c, x, weight: torch.addmm(c, x, weight.T, **FACTORS.get(steps, {}))


@pytest.mark.parametrize("steps", FACTORS)
@pytest.mark.parametrize("extents", [(M, N, K), (2, 264, 200), (37, 1112, 1032)], ids=str)
@pytest.mark.parametrize("k", [1, 3])
def test_addmm_with_a_matrix(
    compiled: Callable, matrix_model: Path, steps: str, extents: tuple[int, int, int], k: int
) -> None:
    m, n, depth = extents
    operands = _bf16(m, n) * 10, _bf16(m, depth), _bf16(n, depth)
    code = _is_right(_added(steps), *operands, compiled=partial(compiled, model=matrix_model, k=k))
    assert f"'bf16:rcr:{steps}'" in code


def test_addmm_with_a_matrix_of_wider_rows(compiled: Callable, matrix_model: Path) -> None:
    def function(c: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.addmm(c[3:, 8 : N + 8], x, weight.T)

    operands = _bf16(M + 3, N + 16), _bf16(M, K), _bf16(N, K)
    code = _is_right(function, *operands, compiled=partial(compiled, model=matrix_model))
    assert "'bf16:rcr:c'" in code


BATCHED_SUMS: dict[str, tuple[tuple[int, ...], str]] = {
    "a matrix each": ((4, M, 264), "c"),
    "one matrix for all": ((1, M, 264), "c"),
    "a row": ((264,), "bias"),
}
"""Shapes of what is added to four products, and the step of our kernel."""


@pytest.mark.parametrize("kind", BATCHED_SUMS)
@pytest.mark.parametrize("k", [1, 3])
def test_baddbmm(compiled: Callable, matrix_model: Path, kind: str, k: int) -> None:
    """Inductor may write one matrix for all as a matrix each."""

    def function(added: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(added, x, y.mT)

    shape, step = BATCHED_SUMS[kind]
    operands = _bf16(*shape) * 10, _bf16(4, M, K), _bf16(4, 264, K)
    code = _is_right(function, *operands, compiled=partial(compiled, model=matrix_model, k=k))
    assert "batched=True" in code
    assert f"'bf16:rcr:{step}'" in code


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", FUSED)
def test_addmm_with_a_row(compiled: Callable, kind: str, dtype: torch.dtype) -> None:
    function, shape = FUSED[kind]
    operands = [_bf16(*s).to(dtype) for s in (shape, (M, K), (N, K))]
    code = _is_right(function, *operands, compiled=compiled)
    assert ("'bf16:rcr:bias'" if dtype == torch.bfloat16 else "'fp16:rcr:bias'") in code
    assert "row(bias)" in code


@pytest.mark.parametrize("extents", [(2, 264, 200), (37, 1112, 1032), (300, 520, 8)], ids=str)
def test_addmm_with_a_row_on_ragged_problems(
    compiled: Callable, extents: tuple[int, int, int]
) -> None:
    """Many times larger than the product, so that a bias in the wrong place is seen at once."""
    m, n, k = extents
    bias = _bf16(n) * 100
    _is_right(FUSED["of nn.Linear"][0], bias, _bf16(m, k), _bf16(n, k), compiled=compiled)


@pytest.mark.parametrize("a", ["row", "col"])
def test_addmm_with_a_row_in_another_layout(compiled: Callable, a: str) -> None:
    left = _bf16(M, K) if a == "row" else _bf16(K, M).T
    code = _is_right(torch.addmm, _bf16(N), left, _bf16(K, N), compiled=compiled)
    assert f"'bf16:{a[0]}rr:bias'" in code


RIGHT: dict[str, tuple[Function, Callable[[], tuple[torch.Tensor, ...]]]] = {
    # Inductor may copy it or not; TMA reads no stride of 0.
    "an expanded row": (
        lambda x, w: x[:1].expand(M, K) @ w.T,
        lambda: (_bf16(M, K), _bf16(N, K)),
    ),
    # Inductor may see it at run time only, and copies it then.
    "an input that is not aligned": (
        lambda x, w: x @ w.T,
        lambda: (_bf16(M * K + 1)[1:].view(M, K), _bf16(N, K)),
    ),
    # Which the kernel before this one writes; Inductor may expand it in memory.
    "a row that the graph makes": (
        lambda bias, x, w: F.linear(x, w, torch.relu(bias) * 2),
        lambda: (_bf16(N), _bf16(M, K), _bf16(N, K)),
    ),
    # Sums that no kernel does.
    "two factors": (
        lambda bias, x, w: torch.addmm(bias, x, w.T, alpha=0.5, beta=3),
        lambda: (_bf16(N), _bf16(M, K), _bf16(N, K)),
    ),
    "a row 2 bytes in": (
        lambda bias, x, w: F.linear(x, w, bias[1 : N + 1]),
        lambda: (_bf16(N + 8), _bf16(M, K), _bf16(N, K)),
    ),
    "a column": (
        lambda bias, x, w: torch.addmm(bias, x, w.T),
        lambda: (_bf16(M, 1), _bf16(M, K), _bf16(N, K)),
    ),
    "a column each": (
        lambda bias, x, y: torch.baddbmm(bias, x, y.mT),
        lambda: (_bf16(4, M, 1), _bf16(4, M, K), _bf16(4, 264, K)),
    ),
    "a residual that is an operand": (
        lambda x, w: x + x @ w.T,
        lambda: (_bf16(K, K), _bf16(K, K)),
    ),
    # One matrix for all, which Inductor may expand in memory.
    "a batch that is expanded": (
        lambda x, y: torch.bmm(x.expand(5, M, K), y.mT),
        lambda: (_bf16(1, M, K), _bf16(5, 264, K)),
    ),
}
"""Products that a tilecast kernel may do or not."""


@pytest.mark.parametrize("kind", RIGHT)
def test_whoever_multiplies_is_right(compiled: Callable, kind: str) -> None:
    function, operands = RIGHT[kind]
    _is_close(compiled, function, *operands())


def test_a_beta_of_0_ignores_the_bias(compiled: Callable) -> None:
    operands = _bf16(N).fill_(torch.nan), _bf16(M, K), _bf16(N, K)
    result, _ = compiled(lambda bias, x, w: torch.addmm(bias, x, w.T, beta=0), *operands)
    assert _error(result, operands[1].float() @ operands[2].float().T) < TOLERANCE


def test_products_between_other_operations(compiled: Callable) -> None:
    def function(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ up.T) @ down.T

    operands = _bf16(M, K), _bf16(N, K), _bf16(K, N)
    result, code = compiled(function, *operands)
    assert _error(result, _exact(function, *operands)) < 2 * TOLERANCE
    assert counters["tilecast"]["problems"] == 2
    assert code.count("StaticMatmul.named") >= 1
    assert _failures() == []


@pytest.mark.parametrize("backwards", [False, True])
def test_a_kernel_that_reads_the_same_stays_beside(compiled: Callable, backwards: bool) -> None:
    """Inductor asks whether both become one, and PyTorch 2.11's CuteDSL templates do not say."""

    def function(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pair = x @ weight.T, torch.sigmoid(x) * 2
        return pair[::-1] if backwards else pair

    operands = _bf16(M, K), _bf16(N, K)
    found, code = compiled(function, *operands, k=1)
    for result, right in zip(found, function(*(one.float() for one in operands)), strict=True):
        assert _error(result, right) < TOLERANCE
    assert code.count("StaticMatmul.named") == 1
    assert _failures() == []


def _activated(name: str) -> Function:
    """A linear layer with an activation or a gate, and a bias where one is given.

    Its function is looked up here: Dynamo breaks a graph where that is done in it.
    """
    row = EPILOGUES[name]
    assert row.torch
    activation, half = partial(resolve_name(row.torch), **dict(row.options)), row.half

    def function(x: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        product = F.linear(x, weight, *bias)
        if half is None:
            return activation(product)
        halves = product.chunk(2, -1)
        return activation(halves[half]) * halves[1 - half]

    return function


def _weight_only(form: str) -> Function:
    """A linear layer with a weight of int8, as torchao writes it, and what scales it."""

    def function(x: torch.Tensor, weight: torch.Tensor, *rows: torch.Tensor) -> torch.Tensor:
        scales, bias = (*rows, None, None)[:2] if "scales" in form else (None, *rows, None)[:2]
        result = torch.mm(x.reshape(-1, x.shape[-1]), weight.t().to(x.dtype))
        if scales is not None:
            result = (result * scales.flatten()).to(x.dtype)
        result = result.reshape(*x.shape[:-1], weight.shape[0])
        return result if bias is None else result + bias

    return function


def _weight_only_operands(form: str, *rows: int, n: int, k: int) -> list[torch.Tensor]:
    operands = [_bf16(*rows, k) / k**0.5]
    operands += [torch.randint(-128, 128, (n, k), dtype=torch.int8, device="cuda")]
    if "scales" in form:
        dtype = torch.float32 if "fp32" in form else torch.bfloat16
        operands += [torch.rand(n, 1, dtype=dtype, device="cuda") / 64]
    return [*operands, *([_bf16(n)] if "bias" in form else [])]


MIXED = ("", "bias", "column-scales", "column-scales+bias")
MIXED += ("fp32-column-scales", "fp32-column-scales+bias")


@pytest.mark.parametrize("form", ["column-scales", "fp32-column-scales+bias", ""])
def test_an_int8_weight_is_fused_at_few_rows(compiled: Callable, form: str) -> None:
    """By a wide margin: what Inductor does without us reads the weight three times, or slowly."""
    operands = _weight_only_operands(form, 16, n=4096, k=4096)
    with torch.no_grad():
        compiled(_weight_only(form), *operands, k=3, backends="ATEN,TILECAST")
    assert counters["tilecast"]["fused: int8 weight"] == 1


@pytest.mark.parametrize("form", [*MIXED, "gelu"])
def test_what_is_not_fused_is_as_if_it_had_not_been_tried(
    compiled: Callable, model_of: Callable[..., Path], form: str
) -> None:
    gelu = form == "gelu"
    known = "bf16:rcr" if gelu else "bf16xint8:rcr:column-scales"
    model = model_of(known, torch.cuda.get_device_name(), leaves=True)
    function = _activated("gelu") if gelu else _weight_only(form)
    operands = _weight_only_operands(form, 2, 96, n=N, k=K)
    if gelu:
        operands = [_bf16(2, 96, K), _bf16(N, K), _bf16(N)]
    options = {"k": 1, "backends": "ATEN,TILECAST", "model": model}
    with torch.no_grad():
        found, code = compiled(function, *operands, **options)
        assert counters["tilecast"][f"not fused: {'gelu' if gelu else 'int8 weight'}"] == 1
        expected, without = compiled(function, *operands, fuse=False, **options)
    # Not bit by bit: 2.11 has two ways to add a row in ATen, of which one rounds twice, and takes
    # what it finds faster.
    assert _error(found, expected) < (2 if gelu else 1) * ONE_ROUNDING
    for call in ("extern_kernels.", ".run(", "_weight_int8pack_mm"):
        assert code.count(call) == without.count(call)


def _whole(a: Any, column: Any, weight: Any, row: Any, *bias: Any) -> torch.Tensor:
    """The scaled product of int8 by int8, and what is added."""
    result = (torch.ops.aten._int_mm(a, weight.t()) * column * row.flatten()).to(torch.bfloat16)
    return result + bias[0] if bias else result


def _dynamic(x: torch.Tensor, weight: torch.Tensor, row: torch.Tensor, bias: torch.Tensor):
    """A linear layer as torchao's int8 dynamic quantization writes it, in bf16 throughout."""
    scales = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-5)
    whole = torch.clamp(torch.round(x / scales), -128, 127).to(torch.int8)
    product = torch.ops.aten._int_mm(whole.reshape(-1, x.shape[-1]), weight.t())
    column = scales.reshape(-1, 1).expand(product.shape)
    result = (product * column).to(scales.dtype) * row.flatten()
    return result.reshape(*x.shape[:-1], weight.shape[0]) + bias


def _whole_operands(extras: str, m: int, n: int = N, k: int = K) -> tuple:
    """What `_whole` takes, and its result in double precision."""
    operands = GemmOperands.parse(f"int8:rcr>bf16:{extras}")
    a, b, column, *rows = random_inputs(GemmProblem(m, n, k, operands=operands))
    expected = (a.double() @ b.double()) * column.double()[:, None] * rows[0].double()
    return (a, column[:, None], b.t(), *rows), sum(map(torch.Tensor.double, rows[1:]), expected)


WHOLE = ("row-scales", "out-row-scales", "out-row-scales+bias")


FUSIBLE = {
    **{f"bf16:rcr:bias+{name}": name for name in activations()},
    **{f"bf16xint8:rcr{':' * bool(form)}{form}": "int8 weight" for form in MIXED},
    **{f"int8:rcr>bf16:{extras}": "int8 product" for extras in WHOLE},
}
"""Operands of fused kernels, and the counter of each."""
GATED = {"bf16:rcr:silu-mul": "silu-mul", "bf16:rcr:bias+mul-gelu": "mul-gelu"}
"""The same of kernels that are fused if that is measured to be faster, and never at k = 1."""


def _fusible(
    text: str, *rows: int, n: int = N, k: int = K
) -> tuple[Function, Sequence[torch.Tensor], torch.Tensor]:
    """What a kernel of some operands replaces, on random tensors, and the exact result."""
    kind, _, extras = text.partition(":rcr")
    if kind == "int8":
        return _whole, *_whole_operands(extras.partition(":")[2], *rows, n=n, k=k)
    if kind == "bf16xint8":
        function = _weight_only(extras)
        operands = _weight_only_operands(extras, *rows, n=n, k=k)
    else:
        *bias, name = extras.removeprefix(":").split("+")
        function = _activated(name)
        operands = [_bf16(*rows, k) / k**0.5, _bf16(n, k), *(_bf16(n) for _ in bias)]
    return function, operands, _exact(function, *operands)


@pytest.mark.parametrize("rows", [(M,), (5,), (2, 96)], ids=str)
@pytest.mark.parametrize("text", [*FUSIBLE, *(f"bf16:rcr:{name}" for name in activations())])
def test_what_is_fused_is_one_kernel(compiled: Callable, text: str, rows: tuple[int, ...]) -> None:
    """Rounded once, while eager code rounds the product, too."""
    if text.startswith("int8"):
        rows = rows[-1:]  # ``_int_mm`` takes matrices
    name = FUSIBLE.get(text, text.rpartition(":")[2])
    function, operands, expected = _fusible(text, *rows)
    with torch.no_grad():
        result, code = compiled(function, *operands, k=1)
    assert repr(text) in code
    assert "triton" not in code.split("def call")[-1]
    assert result.dtype == torch.bfloat16
    assert _error(result, expected) < (1.5 if name in activations() else 1.2) * ONE_ROUNDING
    assert counters["tilecast"] == {f"fused: {name}": 1, "problems": 1}


@pytest.mark.parametrize("backends", ["ATEN,TILECAST", "ATEN,TRITON,TILECAST", "TILECAST"])
@pytest.mark.parametrize("rows", [32, 2048])
@pytest.mark.parametrize("text", [*FUSIBLE, *GATED])
def test_what_may_be_fused_is_or_not_as_measured(
    compiled: Callable, text: str, rows: int, backends: str
) -> None:
    name = (FUSIBLE | GATED)[text]
    function, operands, expected = _fusible(text, rows, n=4096, k=1024)
    with torch.no_grad():
        result, code = compiled(function, *operands, k=3, backends=backends)
    assert _error(result, expected) < TOLERANCE
    fused = counters["tilecast"][f"fused: {name}"]
    assert fused + counters["tilecast"][f"not fused: {name}"] == 1
    assert (repr(text) in code) == bool(fused)
    assert "on_trial" not in code
    assert _failures() == []


def test_dynamic_quantization_is_a_kernel_and_the_product_another(compiled: Callable) -> None:
    """A's scales are written in fp32 where they are computed, and nothing is read again."""
    operands = _weight_only_operands("column-scales+bias", 2, 96, n=N, k=K)
    with torch.no_grad():
        result, code = compiled(_dynamic, *operands, k=1)
        assert counters["tilecast"] == {"fused: int8 product": 1, "problems": 1}
        assert _failures() == []
        _, without = compiled(_dynamic, *operands, k=1, fuse=False)
    assert "'int8:rcr>bf16:out-row-scales+bias'" in code
    x, weight, row, bias = (operand.double() for operand in operands)
    expected = x @ weight.t() * row.flatten() + bias
    assert _error(result, expected) < 0.02  # what A loses in 8 bits
    assert code.count(".run(") == without.count(".run(") - 1


def test_gradients_behind_a_relu_that_is_fused(compiled: Callable) -> None:
    """Its derivative wants the result alone, so that nothing else is kept for it."""
    function = _activated("relu")
    operands = [tensor.requires_grad_() for tensor in (_bf16(M, K), _bf16(N, K), _bf16(N))]
    result, _ = compiled(function, *operands, k=1)
    found = torch.autograd.grad(result, operands, torch.ones_like(result))
    exact = [operand.detach().float().requires_grad_() for operand in operands]
    expected = function(*exact)
    for mine, theirs in zip(
        found, torch.autograd.grad(expected, exact, torch.ones_like(expected)), strict=True
    ):
        # Numbers close to 0 are cut off on one side or the other.
        assert _error(mine, theirs) < 5 * TOLERANCE


def _calls_from_cpp(code: str) -> int:
    """Calls of our operator in C++, as PyTorch writes them until 2.11 and since."""
    spelled = ('findSchemaOrThrow("tilecast::launch"', '("torch.ops.tilecast.launch.default")')
    return sum(map(code.count, spelled))


@pytest.mark.usefixtures("cpp_wrapper")
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("kind", ["mm", "of nn.Linear", *FACTORS])
def test_a_cpp_wrapper_calls_our_operator(
    compiled: Callable, matrix_model: Path, kind: str, k: int
) -> None:
    function, bias = {"mm": (_linear, None), **FUSED}.get(kind, (_added(kind), (M, N)))
    operands = [*([_bf16(*bias)] if bias else []), _bf16(M, K), _bf16(N, K)]
    model = matrix_model if kind in FACTORS else None
    code = _is_close(compiled, function, *operands, k=k, model=model)
    assert _calls_from_cpp(code) == 1
    assert "StaticMatmul" not in code
    assert kind not in FACTORS or f'"bf16:rcr:{kind}"' in code
    assert counters["tilecast"]["problems"] == 1


@pytest.mark.usefixtures("cpp_wrapper")
def test_one_graph_in_cpp_for_every_m(compiled: Callable) -> None:
    x, weight = _bf16(M, K), _bf16(N, K)
    torch._dynamo.mark_dynamic(x, 0)
    assert _calls_from_cpp(_is_close(compiled, _linear, x, weight, k=1)) == 1


@pytest.mark.usefixtures("cpp_wrapper")
def test_stock_choices_compete_in_cpp(compiled: Callable) -> None:
    """Where Triton's are among them, Inductor may put the winner in when it schedules the graph."""

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ weight.T)

    operands = _bf16(M, K), _bf16(N, K)
    _is_close(compiled, function, *operands, backends="ATEN,TRITON,TILECAST", fuse=False)
    assert counters["tilecast"]["won"] + counters["tilecast"]["lost"] == 1


@pytest.mark.parametrize(
    ("bias", "cpp"), [(False, False), (True, False), (True, True)], ids=["bare", "bias", "in C++"]
)
def test_a_training_step(request: pytest.FixtureRequest, bias: bool, cpp: bool) -> None:
    if cpp:
        request.getfixturevalue("cpp_wrapper")
    layer = torch.nn.Linear(K, N, bias=bias, device="cuda", dtype=torch.bfloat16)
    x, gradient = _bf16(M, K).requires_grad_(), _bf16(M, N)
    torch._dynamo.reset()
    counters.clear()
    _forget_kernels()
    # Settings of its own: a backward pass compiles in another thread, which sees no patch of ours.
    options = _settings() | {"cpp_wrapper": cpp}
    step: Any = torch.compile(lambda x: layer(x), fullgraph=True, options=options)
    with installed(k=1 if cpp else 3), fresh_cache():
        out = step(x)
        found = torch.autograd.grad(out, (x, *layer.parameters()), gradient)
    exact_x, exact_weight, exact_gradient = x.float(), layer.weight.float(), gradient.float()
    expected = exact_x @ exact_weight.T + (layer.bias.float() if bias else 0)
    gradients = exact_gradient @ exact_weight, exact_gradient.T @ exact_x, exact_gradient.sum(0)
    for mine, exact in zip((out, *found), (expected, *gradients[: len(found)]), strict=True):
        assert _error(mine.detach(), exact.detach()) < TOLERANCE
    assert counters["tilecast"]["problems"] == 3, "one product forward and two back"
    assert ("bf16:rcr:bias" in _texts()) == bias
    assert _failures() == []


def _as_in_torch(problem: GemmProblem) -> tuple[torch.Tensor, ...]:
    """Random inputs, with scales as ``_scaled_mm`` takes them."""
    a, b, *extras = random_inputs(problem)
    if problem.operands.scales == "row-scales":
        extras[:2] = extras[0][:, None], extras[1][None]
    return a, b, *extras


def _product_of_integers(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._int_mm(a, b)


def _scaled_product(fast: bool) -> Function:
    def function(*operands: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._scaled_mm(*operands, out_dtype=torch.bfloat16, use_fast_accum=fast)

    return function


def _product_by_recipe(fast: bool) -> Function:
    def function(
        a: torch.Tensor,
        b: torch.Tensor,
        scale_a: torch.Tensor,
        scale_b: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        # Of one row, row scales too are one scale of a.
        recipe = ScalingType.TensorWise if scale_b.numel() == 1 else ScalingType.RowWise
        return F.scaled_mm(a, b, scale_a, recipe, scale_b, recipe, bias=bias, use_fast_accum=fast)

    return function


SCALED = {"_scaled_mm": _scaled_product, "F.scaled_mm": _product_by_recipe}
"""Functions of torch that scale fp8, by how products are added up."""


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("extents", [(M, N, K), (5, N, K), (37, 1112, 1040)], ids=str)
def test_int_mm(
    compiled: Callable, model_of: Callable[..., Path], extents: tuple[int, int, int], k: int
) -> None:
    """Exact, also for the few rows that torch itself does not multiply."""
    operands = GemmOperands.parse("int8:rcr>int32")
    a, b = random_inputs(GemmProblem(*extents, operands=operands))
    model = model_of(operands.text, torch.cuda.get_device_name())
    result, code = compiled(_product_of_integers, a, b, k=k, model=model)
    assert result.dtype == torch.int32
    assert torch.equal(result.double(), a.double() @ b.double())
    assert f"'{operands}'" in code
    assert _failures() == []


@pytest.mark.parametrize("extents", [(M, N, K), (1, N, K), (37, 1120, 1040)], ids=str)
@pytest.mark.parametrize("acc", ["", "@fp32"], ids=["fast", "exact"])
@pytest.mark.parametrize("extras", ["tensor-scales", "row-scales", "row-scales+bias"])
@pytest.mark.parametrize("name", SCALED)
def test_scaled_mm(
    compiled: Callable,
    model_of: Callable[..., Path],
    name: str,
    extents: tuple[int, int, int],
    acc: str,
    extras: str,
) -> None:
    if name == "F.scaled_mm" and torch.ops.aten._scaled_mm_v2.default not in lowerings:
        pytest.skip("before PyTorch 2.13 a graph calls the library for F.scaled_mm")
    operands = GemmOperands.parse(f"e4m3:rcr>bf16{acc}:{extras}")
    inputs = _as_in_torch(GemmProblem(*extents, operands=operands))
    model = model_of(operands.text, torch.cuda.get_device_name())
    function = SCALED[name](not acc)
    result, code = compiled(function, *inputs, model=model)
    assert _error(result, function(*inputs)) < TOLERANCE
    assert f"'{operands}'" in code
    assert _failures() == []


def _biased(bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.addmm(bias, x, weight.T)


COMPETING: dict[str, tuple[Function, Callable[[], tuple[torch.Tensor, ...]]]] = {
    "mm": (_linear, lambda: (_bf16(M, K), _bf16(N, K))),
    # For which Inductor also offers to split k into a batch.
    "long k": (_linear, lambda: (_bf16(64, 8192), _bf16(64, 8192))),
    "addmm": (_biased, lambda: (_bf16(N), _bf16(M, K), _bf16(N, K))),
    "bmm": (_stacked, lambda: (_bf16(4, M, K), _bf16(4, 264, K))),
    "activation": (lambda x, w: torch.relu(x @ w.T), lambda: (_bf16(M, K), _bf16(N, K))),
    "int8": (_product_of_integers, lambda: _as_in_torch(_problem("int8:rcr>int32"))),
    "fp8": (_scaled_product(True), lambda: _as_in_torch(_problem("e4m3:rcr>bf16:row-scales"))),
    "int8 weight": (_weight_only(""), lambda: (*_weight_only_operands("", M, n=N, k=K),)),
}


def _problem(operands: str) -> GemmProblem:
    return GemmProblem(M, N, K, operands=GemmOperands.parse(operands))


@pytest.mark.parametrize("kind", COMPETING)
@pytest.mark.parametrize("backends", ["ATEN,TRITON,TILECAST", "TILECAST"])
def test_what_is_benchmarked_is_benchmarked_in_graphs(
    compiled: Callable, monkeypatch: pytest.MonkeyPatch, kind: str, backends: str
) -> None:
    from torch._inductor import select_algorithm

    function, operands = COMPETING[kind]
    in_graphs: list[float] = []
    told: list[float] = []
    in_a_graph = cuda_graph._milliseconds

    def noted(calls: Any) -> float:
        in_graphs.append(in_a_graph(calls))
        return in_graphs[-1]

    monkeypatch.setattr(cuda_graph, "_milliseconds", noted)
    monkeypatch.setattr(decide, "at_the_limit", lambda *_: {})
    select_algorithm.add_feedback_saver(lambda found, *_: told.extend(found.values()))
    try:
        with torch.no_grad():
            compiled(function, *operands(), backends=backends)
    finally:
        select_algorithm.clear_feedback_savers()
    assert _failures() == []
    assert len(in_graphs) > 2
    assert all(5e-4 < taken < 1 for taken in in_graphs)
    assert {taken for taken in told if taken < 1e3} <= set(in_graphs)


@pytest.mark.alone
@pytest.mark.parametrize("backends", ["ATEN,TILECAST", "ATEN,TRITON,TILECAST"])
def test_choices_near_the_fastest_race_at_the_power_limit(
    compiled: Callable, monkeypatch: pytest.MonkeyPatch, backends: str
) -> None:
    """Where those of a large product are slower than on a cool card, and of a small one none is."""
    told: list[tuple[dict[Any, float], dict[Any, float]]] = []
    at_the_limit = power_limit.at_the_limit

    def noted(timings: dict[Any, float], *rest: Any) -> dict[Any, float]:
        cool = dict(timings)
        told.append((cool, at_the_limit(timings, *rest)))
        return told[-1][1]

    races: list[list[float]] = []
    race = power_limit.race

    def raced(graphs: Any, device: int) -> list[float]:
        limited = race(graphs, device)
        cool = [captured.milliseconds for captured in graphs]
        races.append([time / before for time, before in zip(limited, cool, strict=True)])
        return limited

    monkeypatch.setattr(decide, "at_the_limit", noted)
    monkeypatch.setattr(power_limit, "race", raced)
    with torch.no_grad():
        for rows, racing in ((4096, True), (16, False)):
            operands = _bf16(rows, 4096), _bf16(4096, 4096)
            result, _ = compiled(_linear, *operands, backends=backends)
            assert _error(result, _exact(_linear, *operands)) < TOLERANCE
            assert len(told) == racing
            for cool, raised in told:
                assert len(raised) > 1
                assert all(raised[choice] >= cool[choice] for choice in raised)
                assert min(raised.values()) <= 1.05 * min(cool.values())
            told.clear()
    (slower,) = races
    assert [ratio for ratio in slower if not 1.02 < ratio < 1.5] == []
    assert _failures() == []


class Dynamic(NamedTuple):
    """A function whose operands have symbolic extents."""

    function: Function
    operands: Callable[[int], Sequence[torch.Tensor]]
    """Of one size."""
    symbolic: dict[int, tuple[int, ...]]
    """Symbolic dimensions by the operand's position."""
    sizes: tuple[int, ...] = (17, 2, 16, 100, 192, 1000, 5000, 20000)
    fused: str = ""
    """The counter of a fused product."""
    known: str = ""
    """Operands that the model knows; the shipped model when left out."""


FEW, ROWS = (17, M, 500, 3000), "e4m3:rcr>bf16:row-scales"
DYNAMIC: dict[str, Dynamic] = {
    "linear": Dynamic(F.linear, lambda m: (_bf16(m, K), _bf16(N, K)), {0: (0,)}),
    "a bias": Dynamic(F.linear, lambda m: (_bf16(m, K), _bf16(N, K), _bf16(N)), {0: (0,)}),
    "a matrix": Dynamic(
        lambda c, x, w: torch.addmm(c, x, w.T),
        lambda m: (_bf16(m, N), _bf16(m, K), _bf16(N, K)),
        {0: (0,), 1: (0,)},
        FEW,
        known="bf16:rcr bf16:rcr:c",
    ),
    # Whose scales are as many as its rows.
    "fp8 by rows": Dynamic(
        _scaled_product(fast=True),
        lambda m: _as_in_torch(GemmProblem(m, N, K, operands=GemmOperands.parse(ROWS))),
        {0: (0,), 2: (0,)},
        (17, 2, 16, 192, 5000),
        known=ROWS,
    ),
    "a batch": Dynamic(
        torch.bmm,
        lambda batch: (_bf16(batch, M, K), _bf16(batch, N, K).mT),
        {0: (0,), 1: (0,)},
        (5, 2, 16, 33),
    ),
    "a batch and m": Dynamic(
        torch.bmm,
        lambda batch: (_bf16(batch, 40 * batch, K), _bf16(batch, N, K).mT),
        {0: (0, 1), 1: (0,)},
        (5, 2, 16, 33),
    ),
    "silu": Dynamic(
        _activated("silu"),
        lambda m: (_bf16(m, K) / K**0.5, _bf16(N, K), _bf16(N)),
        *({0: (0,)}, FEW, "silu"),
    ),
    "int8 weight": Dynamic(
        _weight_only(""),
        lambda m: _weight_only_operands("", m, n=N, k=K),
        *({0: (0,)}, FEW, "int8 weight"),
    ),
    "int8 weight with scales and bias": Dynamic(
        _weight_only("column-scales+bias"),
        lambda m: _weight_only_operands("column-scales+bias", m, n=N, k=K),
        *({0: (0,)}, FEW, "int8 weight"),
    ),
    "int8 product": Dynamic(
        _whole,
        lambda m: _whole_operands("out-row-scales+bias", m)[0],
        *({0: (0,), 1: (0,)}, FEW, "int8 product"),
    ),
}


def _expected(function: Function, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """The result in float32, or in double precision; of fp8 that of torch."""
    if operands[0].dtype == torch.int8:
        a, column, weight, row, bias = (operand.double() for operand in operands)
        return a @ weight.t() * column * row + bias
    if operands[0].itemsize == 1:
        return function(*operands)
    return _exact(function, *operands)


@pytest.mark.parametrize("kind", DYNAMIC)
def test_one_graph_for_every_extent(model_of: Callable[..., Path], kind: str) -> None:
    function, operands_of, symbolic, sizes, fused, known = DYNAMIC[kind]
    model = model_of(known, torch.cuda.get_device_name()) if known else None
    settings = installed(1 if fused else 3, model, fuse=bool(fused))
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(function, fullgraph=True)
    with settings, fresh_cache(), config.patch(_settings()), torch.no_grad():
        operands = operands_of(sizes[0])
        for position, dimensions in symbolic.items():
            torch._dynamo.mark_dynamic(operands[position], dimensions)
        result, codes = run_and_get_code(compiled, *operands)
        assert _error(result, _expected(function, operands)) < TOLERANCE
        assert "DynamicMatmul.named" in codes[-1]
        for size in (*sizes[1:], sizes[0]):
            operands = operands_of(size)
            result = compiled(*operands)
            assert _error(result, _expected(function, operands)) < TOLERANCE, size
    assert counters["stats"]["unique_graphs"] == 1
    assert counters["tilecast"]["problems"] == 1
    assert not fused or counters["tilecast"][f"fused: {fused}"] == 1
    assert _failures() == []


def test_k_1_benchmarks_nothing(compiled: Callable) -> None:
    for function, operands in (
        (_linear, (_bf16(M, K), _bf16(N, K))),
        (FUSED["of nn.Linear"][0], (_bf16(N), _bf16(M, K), _bf16(N, K))),
    ):
        result, code = compiled(function, *operands, k=1, backends="ATEN,TRITON,TILECAST")
        assert _error(result, _exact(function, *operands)) < TOLERANCE
        assert counters["inductor"]["select_algorithm_autotune"] == 0
        assert code.count("StaticMatmul.named") == 1
        assert _failures() == []


@pytest.mark.parametrize("deterministic", [False, True])
def test_k_1_times_aten_where_it_may_win(compiled: Callable, deterministic: bool) -> None:
    gpu = hardware(torch.cuda.get_device_name())
    extents = ((m, 4096, k) for m in (4096, 1024, 256) for k in (4096, 1024, 8192))
    m, n, k = next(it for it in extents if first(Settings(k=1), GemmProblem(*it), gpu).deferred)
    operands = _bf16(m, k), _bf16(n, k)
    for backends, aten in (("ATEN,TRITON,TILECAST", True), ("TILECAST", False)):
        torch._dynamo.reset()
        with config.patch(deterministic=deterministic):
            result, code = compiled(_linear, *operands, k=1, backends=backends)
        assert _error(result, _exact(_linear, *operands)) < TOLERANCE
        timed = aten and not deterministic
        assert counters["inductor"]["select_algorithm_autotune"] == timed
        won = not aten or (timed and counters["tilecast"]["won"])
        assert code.count("StaticMatmul.named") == won
        assert _failures() == []


def test_stock_choices_compete(compiled: Callable) -> None:
    operands = _bf16(M, K), _bf16(N, K)
    result, _ = compiled(_linear, *operands, backends="ATEN,TILECAST")
    assert _error(result, _exact(_linear, *operands)) < TOLERANCE
    assert counters["inductor"]["select_algorithm_autotune"] == 1
    assert counters["tilecast"]["won"] + counters["tilecast"]["lost"] == 1


@pytest.mark.parametrize("part", ["load", "launch"])
def test_choices_that_fail_lose(
    compiled: Callable,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    part: str,
) -> None:
    def fails(*arguments: Any) -> Any:
        raise RuntimeError("injected")

    monkeypatch.setattr(static, "_loaded", {})
    if part == "load":
        monkeypatch.setattr(static, "load_kernel", fails)
    else:
        monkeypatch.setattr(static, "load_kernel", lambda *arguments: fails)
    operands = _bf16(M, K), _bf16(N, K)
    result, code = compiled(_linear, *operands, backends="ATEN,TILECAST")
    assert _error(result, _exact(_linear, *operands)) < TOLERANCE
    assert "StaticMatmul" not in code
    (warning,) = [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("tilecast") and record.levelno >= logging.WARNING
    ]
    assert "benchmarking failed (RuntimeError: injected)" in warning
    # Without ATen there is nothing to fall back on but torch.matmul.
    result, code = compiled(_linear, *operands)
    assert _error(result, _exact(_linear, *operands)) < TOLERANCE
    assert "StaticMatmul" in code


def test_a_kernel_that_failed_once_is_benchmarked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same cache of timings: what failed may have been out of memory."""

    def fails(*arguments: Any) -> Any:
        raise RuntimeError("injected")

    operands = _bf16(M, K), _bf16(N, K)
    # A graph that is kept would spare the benchmark, too.
    options = _settings("ATEN,TILECAST") | {"fx_graph_cache": False}
    with installed(k=3), fresh_cache(), config.patch(options):
        for round_, failing in enumerate((True, False, False)):
            torch._dynamo.reset()
            counters.clear()
            with monkeypatch.context() as patch:
                patch.setattr(static, "_loaded", {})
                if failing:
                    patch.setattr(static, "load_kernel", fails)
                result = torch.compile(_linear, fullgraph=True)(*operands)
            assert _error(result, _exact(_linear, *operands)) < TOLERANCE
            # The third finds every timing of the second.
            assert counters["inductor"]["select_algorithm_autotune"] == (round_ < 2)
            assert bool(_failures()) == failing


def test_mode_max_autotune_with_cuda_graphs() -> None:
    torch._dynamo.reset()
    bias, weight = _bf16(N), _bf16(N, K)
    function: Any = torch.compile(F.linear, mode="max-autotune", fullgraph=True)
    with installed(k=3), fresh_cache(), config.patch(_settings()):
        for _ in range(5):
            x = _bf16(M, K)
            torch.compiler.cudagraph_mark_step_begin()
            result = function(x, weight, bias).clone()
            assert _error(result, _exact(F.linear, x, weight, bias)) < TOLERANCE
    assert counters["inductor"]["cudagraph_skips"] == 0
    assert counters["tilecast"]["problems"] == 1
    assert _failures() == []


SCRIPT = """
import re
import torch
from torch._dynamo.utils import counters
from torch._inductor.codecache import PyCodeCache

torch.manual_seed(0)
x, weight = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in ((192, 512), (1024, 512)))
function = torch.compile(lambda x, w: x @ w.T, options={"max_autotune_gemm": True})
result = function(x, weight)
exact = x.float() @ weight.float().T
print((torch.linalg.norm(result.float() - exact) / torch.linalg.norm(exact)).item() < 1e-2)
hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
print("hit" if hits else "miss", counters["inductor"]["select_algorithm_autotune"])
print(sum(name.startswith("failed") for name in counters["tilecast"]))
sources = [open(module.__file__).read() for module in PyCodeCache.modules]
print(*sorted(set(re.findall(r"StaticMatmul.named\\(\\s*'(\\w+)'", "".join(sources)))))
"""


def _started(folder: Path, **environment: str) -> subprocess.Popen[str]:
    """The script in a process that has nothing but environment variables."""
    own = {BACKENDS: "TILECAST", "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    return started("-c", SCRIPT, **own, **environment)


def test_processes_choose_alike_and_share_graphs(tmp_path: Path) -> None:
    here, there = printed(*(_started(tmp_path / n, TILECAST_K="1") for n in ("here", "there")))
    assert here[:3] == there[:3] == ["True", "miss 0", "0"]
    problem = GemmProblem(192, 1024, 512)
    gpu = hardware(torch.cuda.get_device_name())
    assert here[3] == there[3] == shortlist(Settings(k=1), problem, gpu)[0].config.name
    again, other = printed(*(_started(tmp_path / "here", TILECAST_K=k) for k in "12"))
    assert again == ["True", "hit 0", "0", here[3]]
    assert other[:3] == ["True", "miss 1", "0"]


RUNNER = """
import importlib.util, sys
import torch
spec = importlib.util.spec_from_file_location("generated", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
x, weight = torch.load(sys.argv[2])
code = open(sys.argv[1]).read()
first = f"assert_size_stride(arg0_1, ({x.shape[0]}, {x.shape[1]})" in code
(result,) = module.call([x.clone(), weight.clone()] if first else [weight.clone(), x.clone()])
exact = x.float() @ weight.float().T
print((torch.linalg.norm(result.float() - exact) / torch.linalg.norm(exact)).item() < 1e-2)
print("tilecast.inductor_hook.installation" in sys.modules)
from torch._dynamo.utils import counters
print(sum(name.startswith("failed") for name in counters["tilecast"]))
"""


def test_generated_code_runs_where_nothing_is_installed(compiled: Callable, tmp_path: Path) -> None:
    operands = _bf16(M, K), _bf16(N, K)
    _, code = compiled(_linear, *operands)
    (tmp_path / "generated.py").write_text(code)
    torch.save(operands, tmp_path / "operands.pt")
    process = subprocess.run(
        [sys.executable, "-c", RUNNER, tmp_path / "generated.py", tmp_path / "operands.pt"],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != BACKENDS},
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == ["True", "False", "0"]


def _transposed(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT


EAGER: dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]] = {
    "linear": lambda: (_bf16(M, K), _bf16(N, K).T),
    "one row": lambda: (_bf16(1, K), _bf16(N, K).T),
    "one row that steps by nothing": lambda: (_single_row(_bf16(K)), _bf16(N, K).T),
    "ragged": lambda: (_bf16(37, 1032), _bf16(1112, 1032).T),
    "QKV": lambda: (_bf16(M, 3 * K)[:, K : 2 * K], _bf16(N, K).T),
    "every second row": lambda: (_bf16(2 * M, K)[::2], _bf16(3 * N, K)[::3].T),
    "row-major B": lambda: (_bf16(M, K), _bf16(K, N)),
    "column-major A": lambda: (_transposed(_bf16(M, K)), _bf16(N, K).T),
    "every second column": lambda: (_bf16(M, 2 * K)[:, ::2], _bf16(N, K).T),
    "misaligned": lambda: (_bf16(M * K + 1)[1:].view(M, K), _bf16(N, K).T),
    "misaligned columns": lambda: (_bf16(M, K + 8)[:, 3 : 3 + K], _bf16(N, K).T),
    "expanded": lambda: (_bf16(1, K).expand(M, K), _bf16(N, K).T),
    "odd": lambda: (_bf16(M, 33), _bf16(N, 33).T),
    "odd n": lambda: (_bf16(M, K), _bf16(N + 1, K).T),
    "empty": lambda: (_bf16(0, K), _bf16(N, K).T),
    "no k": lambda: (_bf16(M, 0), _bf16(N, 0).T),
    "float16": lambda: (_bf16(M, K).half(), _bf16(N, K).half().T),
}


@pytest.mark.parametrize("kind", EAGER)
def test_eager_mm(kind: str) -> None:
    a, b = EAGER[kind]()
    expected = a.float() @ b.float()
    out = torch.full(expected.shape, torch.nan, dtype=a.dtype, device="cuda")
    mm(a, b, out=out)
    for result in (mm(a, b), out):
        assert (result.shape, result.dtype) == (expected.shape, a.dtype)
        if expected.any():
            assert _error(result, expected) < TOLERANCE
        else:
            assert torch.equal(result.float(), expected)
    assert _failures() == []


def _forget_kernels() -> None:
    """As in a process that has multiplied nothing yet."""
    eager.decide_again()
    static._loaded.clear()
    occupancy._max_active_clusters.cache_clear()


def test_eager_mm_runs_the_kernel_that_the_model_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*arguments: Any, **options: Any) -> torch.Tensor:
        raise AssertionError("torch multiplied")

    _forget_kernels()
    a, b = _bf16(M, K), _bf16(N, K).T
    expected = a.float() @ b.float()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "mm", unwanted)
        patch.setattr(torch, "matmul", unwanted)
        result = mm(a, b)
    assert _error(result, expected) < TOLERANCE
    (best,) = shortlist(Settings(k=1), GemmProblem(M, N, K), hardware(torch.cuda.get_device_name()))
    assert [spec.config for spec, _ in static._loaded] == [best.config]


@pytest.mark.parametrize("bias", [(N,), (M, N), (1, N), (M, 1), ()], ids=str)
@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (0.5, 1), (1, -2), (0.5, 3), (1, 0)])
def test_eager_addmm(bias: tuple[int, ...], alpha: float, beta: float) -> None:
    operands = _bf16(*bias), _bf16(M, K), _bf16(N, K).T
    expected = torch.addmm(*(t.float() for t in operands), alpha=alpha, beta=beta)
    out = torch.full((M, N), torch.nan, dtype=torch.bfloat16, device="cuda")
    addmm(*operands, alpha=alpha, beta=beta, out=out)
    for result in (addmm(*operands, alpha=alpha, beta=beta), out):
        assert _error(result, expected) < TOLERANCE
    assert _failures() == []


EAGER_BIASES: dict[str, tuple[Callable[[], torch.Tensor], str | None]] = {
    "(n,)": (lambda: _bf16(N), "bf16:rcr:bias"),
    "(1, n)": (lambda: _bf16(1, N), "bf16:rcr:bias"),
    "expanded": (lambda: _bf16(N).expand(M, N), "bf16:rcr:bias"),
    "4 bytes in": (lambda: _bf16(N + 2)[2:], "bf16:rcr:bias"),
    "2 bytes in": (lambda: _bf16(N + 1)[1:], None),
    "every second element": (lambda: _bf16(2 * N)[::2], None),
    "(m, n)": (lambda: _bf16(M, N), "bf16:rcr:c"),
}
"""Biases, and the operands of the kernel of ours that adds each."""


@pytest.mark.parametrize("kind", EAGER_BIASES)
def test_eager_addmm_fuses(kind: str) -> None:
    make, operands = EAGER_BIASES[kind]
    bias, a, b = make(), _bf16(M, K), _bf16(N, K).T
    expected = bias.float() + a.float() @ b.float()
    _forget_kernels()
    out = torch.full((M, N), torch.nan, dtype=torch.bfloat16, device="cuda")
    addmm(bias, a, b, out=out)
    for result in (addmm(bias, a, b), out):
        assert _error(result, expected) < (ONE_ROUNDING if operands else TOLERANCE)
    texts = {spec.operands.text for spec, _ in static._loaded}
    assert texts == ({operands} if operands else set())
    assert _failures() == []


def test_eager_addmm_into_its_own_bias() -> None:
    bias, a, b = _bf16(M, N), _bf16(M, K), _bf16(N, K).T
    expected = bias.float() + a.float() @ b.float()
    addmm(bias, a, b, out=bias)
    assert _error(bias, expected) < TOLERANCE


@pytest.mark.parametrize("batch", [1, 5])
def test_eager_bmm(batch: int) -> None:
    a, b = _bf16(batch, 77, K), _bf16(batch, 264, K).mT
    expected = torch.bmm(a.float(), b.float())
    whole = torch.full((batch, 80, 272), 7.0, dtype=torch.bfloat16, device="cuda")
    out = whole[:, :77, :264]
    bmm(a, b, out=out)
    for result in (bmm(a, b), out):
        for i in range(batch):
            assert _error(result[i], expected[i]) < TOLERANCE
    assert bool((whole[:, 77:] == 7.0).all())
    assert bool((whole[:, :, 264:] == 7.0).all())


def test_eager_bmm_of_a_batch_that_is_expanded() -> None:
    a, b = _bf16(1, 77, K).expand(5, 77, K), _bf16(5, 264, K).mT
    for left, right in ((a, b), (b.mT, a.mT), (a, a.mT)):
        assert _error(bmm(left, right), torch.bmm(left.float(), right.float())) < TOLERANCE
    assert _failures() == []


@pytest.mark.parametrize("k", [1, K])
def test_the_switch_below_a_mode(k: int) -> None:
    # As of PyTorch 2.15 torch's own kernel is written in Python, for a k of 1.
    a, b = _bf16(4, 77, k), _bf16(4, 264, k).mT
    expected = torch.bmm(a.float(), b.float())
    python = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)
    for switched in (eager.enable, eager.disable, eager.enable, eager.disable):
        switched()
        with FakeTensorMode(), torch._C._ExcludeDispatchKeyGuard(python):
            result = torch.bmm(a, b)
        assert _error(result, expected) < TOLERANCE


def _broken(*arguments: Any) -> Any:
    raise RuntimeError("injected")


def _static(operands: str, batched: bool = False) -> StaticMatmul:
    (best,) = shortlist(Settings(k=1), GemmProblem(M, N, K), hardware(torch.cuda.get_device_name()))
    return StaticMatmul.named(best.config.name, operands, batched)


FUSES = (
    *(f"bf16:rcr:{steps}" for steps in (*FACTORS, "bias", "bias+c")),
    *(*FUSIBLE, "int8:rcr>int32", "e4m3:rcr>bf16:row-scales+bias"),
)
"""Operands of kernels in whose place torch multiplies."""


@pytest.mark.parametrize(
    ("text", "batch"), [*((text, 1) for text in FUSES), *((f"bf16:rcr:{s}", 3) for s in FACTORS)]
)
def test_torch_does_all_where_a_kernel_fails(
    monkeypatch: pytest.MonkeyPatch, text: str, batch: int
) -> None:
    monkeypatch.setattr(static, "loaded_kernel", _broken)
    problem = GemmProblem(M, N, K, batch, GemmOperands.parse(text))
    a, b, *extras = random_inputs(problem)
    out = poisoned_out(problem)
    _static(text, batch > 1)(a, b, out, *extras)
    assert _error(out, reference(problem, (a, b, *extras))) < TOLERANCE


@pytest.mark.parametrize("batched", [False, True])
def test_torch_writes_float32_where_a_kernel_fails(
    monkeypatch: pytest.MonkeyPatch, batched: bool
) -> None:
    monkeypatch.setattr(static, "loaded_kernel", _broken)
    batch = (3,) if batched else ()
    a, b = _bf16(*batch, M, K), _bf16(*batch, N, K).mT
    out = torch.full((*batch, M, N), torch.nan, device="cuda")
    _static("bf16:rcr>fp32", batched)(a, b, out)
    assert _error(out, a.double() @ b.double()) < 1e-5


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="takes two GPUs")
def test_a_gpu_that_fails_leaves_the_other_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    load, tried = static.loaded_kernel, []
    matmul = _static("bf16:rcr")
    load(matmul.spec, 0)  # compiles it

    def loaded_kernel(spec: KernelSpec, device: int) -> Any:
        tried.append(device)
        return _broken() if device == 1 else load(spec, device)

    monkeypatch.setattr(static, "loaded_kernel", loaded_kernel)
    for device in (1, 0, 1, 0):
        a, b, out = (t.to(device) for t in (_bf16(M, K), _bf16(N, K).T, _bf16(M, N)))
        with torch.cuda.device(device):
            matmul(a, b, out)
        assert _error(out, a.float() @ b.float()) < TOLERANCE
    assert tried == [1, 0]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="takes two GPUs")
def test_eager_mm_on_another_gpu_than_the_current() -> None:
    a, b = _bf16(M, K), _bf16(N, K).T
    assert torch.cuda.current_device() == 0
    assert _error(mm(a.to(1), b.to(1)).to(0), a.float() @ b.float()) < TOLERANCE
    with pytest.raises(RuntimeError, match="same device"):
        mm(a, b.to(1))
    assert _failures() == []


def test_eager_functions_in_a_compiled_graph(compiled: Callable) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return mm(torch.relu(x), weight.T) + 1

    operands = _bf16(M, K), _bf16(N, K)
    result, code = compiled(function, *operands)
    expected = torch.relu(operands[0].float()) @ operands[1].float().T + 1
    assert _error(result, expected) < TOLERANCE
    assert "StaticMatmul.named" in code


def _launches() -> list[tuple[Callable[[], torch.Tensor], torch.Tensor]]:
    """Each operator on operands of its own, with the first one of them."""
    a, b, bias = _bf16(M, K), _bf16(N, K).T, _bf16(N)
    batch_a, batch_b = _bf16(3, M, K), _bf16(3, 264, K).mT
    other = _bf16(M, K)
    return [
        (lambda: mm(a, b), a),
        (lambda: addmm(bias, other, b), other),
        (lambda: bmm(batch_a, batch_b), batch_a),
    ]


def test_eager_launches_behind_what_is_queued_on_a_side_stream() -> None:
    for multiply, a in _launches():
        multiply()
        values, zeros = a.clone(), torch.zeros_like(a)
        expected = multiply()
        a.copy_(zeros)
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            # 0.05 s at 2 GHz: a launch on any other stream would read the zeros.
            torch.cuda._sleep(100_000_000)
            a.copy_(values)
            result = multiply()
            torch.cuda.current_stream().synchronize()
        assert torch.equal(result, expected)


def test_eager_launches_are_captured() -> None:
    for multiply, a in _launches():
        multiply()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = multiply()
        for _ in range(3):
            a.normal_()
            graph.replay()
            assert torch.equal(captured, multiply())


@pytest.fixture
def switched_on(model_of: Callable[..., Path]) -> Iterator[Callable[..., None]]:
    """Switches routing on with a model of some operands, and off behind the test."""

    def enable(operands: str = "bf16:rcr", **options: Any) -> None:
        _forget_kernels()
        eager.enable(model_of(operands, torch.cuda.get_device_name(), **options))

    yield enable
    eager.disable()


def _settled(call: Callable[[], Any]) -> Any:
    """The result of a call once the kernels that it wants are compiled."""
    call()
    eager.decide_again()
    return call()


def _texts() -> set[str]:
    """Operands of the kernels that have run."""
    return {spec.operands.text for spec, _ in static._loaded}


ROUTED: dict[str, tuple[Function, tuple[tuple[int, ...], ...], str]] = {
    "mm": (lambda x, w: torch.mm(x, w.T), ((M, K), (N, K)), "bf16:rcr"),
    "bmm": (lambda x, w: torch.bmm(x, w.mT), ((3, M, K), (3, 264, K)), "bf16:rcr"),
    "matmul": (lambda x, w: x @ w.T, ((2, M, K), (N, K)), "bf16:rcr"),
    "linear": (F.linear, ((2, M, K), (N, K), (N,)), "bf16:rcr:bias"),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w.T), ((M, K), (N, K), (N,)), "bf16:rcr:bias"),
}
"""A function of torch, the shapes of its operands, and those of our kernel."""


@pytest.mark.parametrize("kind", ROUTED)
def test_the_switch_routes_and_gives_back(switched_on: Callable[..., None], kind: str) -> None:
    function, shapes, text = ROUTED[kind]
    operands = [_bf16(*shape) for shape in shapes]
    before = function(*operands)
    switched_on()
    result = _settled(lambda: function(*operands))
    assert _error(result, _exact(function, *operands)) < TOLERANCE
    assert _texts() == {text}
    eager.disable()
    _forget_kernels()
    assert torch.equal(function(*operands), before)
    assert _texts() == set()
    assert _failures() == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_switch_trains_under_autocast(
    switched_on: Callable[..., None], dtype: torch.dtype
) -> None:
    """Weights in float32, as a training loop keeps them; dtypes and values as torch's."""
    operands = [_bf16(*shape).float().requires_grad_() for shape in ((M, K), (N, K), (N,))]

    def step() -> list[torch.Tensor]:
        with torch.autocast("cuda", dtype=dtype):
            result = F.linear(*operands)
        return [result.detach(), *torch.autograd.grad(result.float().sum(), operands)]

    expected = step()
    switched_on()
    for mine, theirs in zip(_settled(step), expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert _error(mine, theirs) < TOLERANCE
    assert any(text.endswith(":rcr:bias") for text in _texts())
    assert _failures() == []


@pytest.mark.parametrize("steps", FACTORS)
def test_the_switch_routes_a_matrix_where_the_model_knows_such(
    switched_on: Callable[..., None], steps: str
) -> None:
    function = _added(steps)
    operands = _bf16(M, N) * 10, _bf16(M, K), _bf16(N, K)
    switched_on("bf16:rcr bf16:rcr:c")
    result = _settled(lambda: function(*operands))
    assert _error(result, _exact(function, *operands)) < TOLERANCE
    assert _texts() == {f"bf16:rcr:{steps}"}
    switched_on("bf16:rcr")
    _settled(lambda: function(*operands))
    assert _texts() == set()
    assert _failures() == []


def test_the_switch_leaves_to_torch_what_it_wins(switched_on: Callable[..., None]) -> None:
    a, b, c = _bf16(M, K), _bf16(N, K).T, _bf16(M, N)
    calls = (
        lambda: torch.mm(a, b),
        lambda: torch.addmm(c, a, b, alpha=0.5),
        lambda: torch.mm(a.float(), b.float()),
        lambda: torch.mm(a[:, 1:], b[1:]),
    )
    expected = [call() for call in calls]
    switched_on(leaves=True)
    for call, before in zip(calls, expected, strict=True):
        assert torch.equal(_settled(call), before)
    assert _texts() == set()


def test_the_switch_waits_for_no_compiler(
    switched_on: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "objects"))
    monkeypatch.setattr(object_cache, "shipped", lambda key: None)  # as from a checkout
    a, b = _bf16(M, K), _bf16(N, K).T
    before = torch.mm(a, b)
    switched_on()
    assert torch.equal(torch.mm(a, b), before)
    object_builder().settle()
    assert torch.equal(torch.mm(a, b), before), "it changes its kernel without being told"
    assert _texts() == set()
    _settled(lambda: torch.mm(a, b))
    assert _texts() == {"bf16:rcr"}


def test_what_the_switch_routes_is_captured(switched_on: Callable[..., None]) -> None:
    x, weight, bias = _bf16(M, K), _bf16(N, K), _bf16(N)
    switched_on()
    _settled(lambda: F.linear(x, weight, bias))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = F.linear(x, weight, bias)
    for _ in range(3):
        x.normal_()
        graph.replay()
        assert torch.equal(captured, F.linear(x, weight, bias))
    assert _texts() == {"bf16:rcr:bias"}


def test_no_kernel_is_loaded_while_a_graph_is_captured(switched_on: Callable[..., None]) -> None:
    """As behind a warm-up in which torch multiplied, because it was not compiled yet."""
    x, weight = _bf16(M, K), _bf16(N, K)
    switched_on()
    _settled(lambda: F.linear(x, weight))
    _forget_kernels()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = F.linear(x, weight)
    assert _texts() == set()
    x.normal_()
    graph.replay()
    assert _error(captured, x.float() @ weight.float().T) < TOLERANCE
    F.linear(x, weight)
    assert _texts() == set()
    _settled(lambda: F.linear(x, weight))
    assert _texts() == {"bf16:rcr"}
    assert _failures() == []


@pytest.mark.parametrize(
    "text",
    ["int8:rcr>int32"]
    + [
        f"e4m3:rcr>bf16{acc}:{extras}"
        for acc in ("", "@fp32")
        for extras in ("tensor-scales", "row-scales", "row-scales+bias")
    ],
)
@pytest.mark.parametrize("name", SCALED)
def test_the_switch_routes_8_bits(switched_on: Callable[..., None], name: str, text: str) -> None:
    inputs = _as_in_torch(_problem(text))
    function = SCALED[name]("@" not in text) if "e4m3" in text else _product_of_integers
    expected = function(*inputs)
    switched_on(text)
    assert _error(_settled(lambda: function(*inputs)), expected) < TOLERANCE
    assert _texts() == {text}
    assert _failures() == []


def test_threads_do_not_disturb_each_other() -> None:
    _forget_kernels()

    def work(seed: int) -> float:
        generator = torch.Generator("cuda").manual_seed(seed)
        worst = 0.0
        with torch.cuda.stream(torch.cuda.Stream()):
            for m in (16, 64, 192, 500, 1000) * 4:
                shapes = ((m + seed, K), (N, K))
                a, b = (
                    torch.randn(s, device="cuda", generator=generator).bfloat16() for s in shapes
                )
                worst = max(worst, _error(mm(a, b.T), a.float() @ b.float().T))
        return worst

    with ThreadPoolExecutor(2) as threads:
        assert max(threads.map(work, range(2))) < TOLERANCE
    assert _failures() == []


def test_a_first_call_may_be_captured() -> None:
    """With a kernel that is compiled and not yet loaded, as after a restart: torch multiplies.

    The last test: a capture that breaks off may leave the stream unusable.
    """
    a, b = _bf16(M, K), _bf16(N, K).T
    mm(a, b)
    _forget_kernels()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = mm(a, b)
    graph.replay()
    assert torch.equal(captured, torch.mm(a, b))
    assert _texts() == set()
    assert _failures() == []


HOWS: dict[str, dict[str, Any]] = {
    "eager": {},
    "without max-autotune": {"dynamic": False},
    "max-autotune": {"mode": "max-autotune", "dynamic": False},
    "one graph from the second m on": {"options": {"max_autotune_gemm": True}},
}
"""How `torch.compile` is called."""


@pytest.mark.parametrize("how", HOWS)
def test_a_row_has_the_same_bits_in_every_batch(how: str, objects: Path) -> None:
    """Forward, and the gradient of the input; few tiles and a long k, which cuBLAS splits."""
    torch._dynamo.reset()
    weights = _bf16(512, 8192) / 90, _bf16(512), _bf16(256, 512) / 22
    x, gradient = _bf16(300, 8192), _bf16(300, 256)

    def layers(x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.gelu(F.linear(x, *weights[:2])), weights[2])

    eager.enable(invariant=True)
    try:
        with installed(k=2, invariant=True), fresh_cache():
            function = torch.compile(layers, **HOWS[how]) if HOWS[how] else layers
            whole: list[torch.Tensor] = []
            for first, m in ((0, 300), (11, 64), (290, 7), (130, 1)):
                rows = x[first : first + m].clone().requires_grad_()
                torch.compiler.cudagraph_mark_step_begin()
                out = function(rows)
                (back,) = torch.autograd.grad(out, rows, gradient[first : first + m])
                found = [out.detach().clone(), back.clone()]
                whole = whole or found
                for one, every in zip(found, whole, strict=True):
                    assert torch.equal(one, every[first : first + m]), m
    finally:
        eager.disable()
        torch._dynamo.reset()
    wide = [one.float() for one in weights]
    exact = F.linear(F.gelu(F.linear(x.float(), *wide[:2])), wide[2])
    assert _error(whole[0], exact) < TOLERANCE
    assert _failures() == []
    assert counters["tilecast"]["said: not invariant"] == 0
