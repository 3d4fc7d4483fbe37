"""What generated code calls: the right kernel for each call, the bias, and torch where all fails.

On tensors of the CPU, with functions in place of compiled kernels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import LINEAR_BF16, GemmProblem
from tilecast.inductor_hook import launcher, selection
from tilecast.inductor_hook.launcher import (
    DynamicMatmul,
    StaticMatmul,
    add_bias,
    errors_raised,
    loaded_kernel,
)
from tilecast.inductor_hook.settings import model_digest
from tilecast.kernels.cutlass_sm90.space import candidates
from tilecast.kernels.launch import LoadedKernel
from tilecast.kernels.spec import KernelSpec
from tilecast.models.learned import load_heuristic

H200 = hardware("H200")
N, K = 64, 128


def _firsts(*extents: int) -> list[str]:
    """The model's choices for several m."""
    heuristic = load_heuristic(H200, LINEAR_BF16)
    problems = [GemmProblem(m, N, K) for m in extents]
    return [heuristic.rank(p, candidates(p, H200), limit=1)[0].name for p in problems]


NAME = _firsts(16)[0]
OPERANDS = ("rcr", "bfloat16", "bfloat16")

Function = Callable[..., object]


@pytest.fixture
def loads(hook: list[KernelSpec], monkeypatch: pytest.MonkeyPatch) -> Callable[[Function], list]:
    """Has every kernel load as a function of its spec; gives the specs that are loaded."""
    loaded: list[KernelSpec] = []

    def loads_as(function: Function) -> list[KernelSpec]:
        def load(spec: KernelSpec, objects: object, device: int) -> LoadedKernel:
            loaded.append(spec)
            return LoadedKernel(spec, function, 132)

        monkeypatch.setattr(launcher, "load_kernel", load)
        return loaded

    monkeypatch.setattr(launcher, "_loaded", {})
    monkeypatch.setattr(selection, "gpu_of", lambda device: H200)
    return loads_as


def _product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, clusters: int) -> None:
    out.copy_(a @ b)


def _refuses(*arguments: object) -> None:
    raise ValueError("Mismatched Tensor on argument #1,\nexpected stride 8")


def _operands(m: int = 16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(m)
    a, b = (torch.randn(rows, K, generator=generator).bfloat16() for rows in (m, N))
    return a, b.T, torch.full((m, N), torch.nan, dtype=torch.bfloat16)


def _static() -> StaticMatmul:
    return StaticMatmul.named(NAME, *OPERANDS, batched=False, arch="sm_90a")


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


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


def test_each_extent_runs_what_the_model_prefers_for_it(loads: Callable) -> None:
    extents = (16, 100, 512, 4096)
    names = list(dict.fromkeys(_firsts(*extents)))
    assert len(names) > 1
    loaded = loads(_product)
    matmul = DynamicMatmul.named(
        names, *OPERANDS, False, "sm_90a", model="", power="robust", digest=model_digest(None)
    )
    for m, expected in zip(extents, _firsts(*extents), strict=True):
        for _ in range(2):
            a, b, out = _operands(m)
            loaded.clear()
            launcher._loaded.clear()
            for static in matmul.matmuls.values():
                static._kernels.clear()
            matmul(a, b, out)
            assert [spec.config.name for spec in loaded] == [expected]
            assert torch.equal(out, a @ b)


@pytest.mark.parametrize(("model", "digest"), [("/gone", "0" * 16), ("", "another")])
def test_a_model_that_is_gone_leaves_a_kernel_that_runs(
    loads: Callable, caplog: pytest.LogCaptureFixture, model: str, digest: str
) -> None:
    loaded = loads(_product)
    matmul = DynamicMatmul.named(
        _firsts(16, 4096), *OPERANDS, False, "sm_90a", model=model, power="robust", digest=digest
    )
    for m in (16, 17, 4096):
        a, b, out = _operands(m)
        matmul(a, b, out)
        assert torch.equal(out, a @ b)
    assert len(loaded) == 1
    (warning,) = _warnings(caplog)
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
    (warning,) = _warnings(caplog)
    assert "Mismatched Tensor on argument #1, expected stride 8" in warning
    assert "\n" not in warning
    assert counters["tilecast"][f"failed: running {NAME}"] == 3


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

    def fails(*arguments: Any) -> LoadedKernel:
        tries.append(arguments)
        raise error

    monkeypatch.setattr(launcher, "load_kernel", fails)
    matmul = _static()
    for m in (16, 16, 33):
        a, b, out = _operands(m)
        matmul(a, b, out)
        assert torch.equal(out, a @ b)
    assert len(_warnings(caplog)) == 1
    assert len(tries) == 1, "each call of a graph pays for it"


def test_a_benchmark_sees_what_fails(loads: Callable) -> None:
    """Time that torch took would pass for the kernel's."""
    loads(_refuses)
    a, b, out = _operands()
    with errors_raised(), pytest.raises(ValueError, match="Mismatched Tensor"):
        _static()(a, b, out)
    assert bool(out.isnan().all())
    _static()(a, b, out)
    assert torch.equal(out, a @ b)


@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (0.5, 1), (1, 3), (-2, 1), (1, -0.25), (1, 0)])
@pytest.mark.parametrize("shape", [(16, N), (N,), (1, N), (16, 1), (1,), ()], ids=str)
def test_bias(alpha: float, beta: float, shape: tuple[int, ...]) -> None:
    a, b, bias = (torch.randn(s, dtype=torch.double) for s in ((16, K), (K, N), shape))
    out = a @ b
    add_bias(out, bias, alpha, beta)
    torch.testing.assert_close(out, torch.addmm(bias, a, b, alpha=alpha, beta=beta))


def test_a_beta_of_0_ignores_what_the_bias_holds() -> None:
    """As torch.addmm does, whose bias may then be memory that nobody wrote to."""
    a, b = torch.randn(16, K), torch.randn(K, N)
    bias = torch.full((N,), torch.nan)
    out = a @ b
    add_bias(out, bias, 1, 0)
    assert torch.equal(out, torch.addmm(bias, a, b, beta=0))


def test_a_bias_is_rounded_no_more_than_twice(loads: Callable) -> None:
    """The product to bf16, then the sum: 2^-8 of each at most."""
    loads(_product)
    a, b, out = _operands()
    bias = torch.randn(N).bfloat16()
    _static()(a, b, out)
    add_bias(out, bias, 1, 1)
    exact = bias.double() + a.double() @ b.double()
    error = (out.double() - exact).abs() / torch.maximum(exact.abs(), (exact - bias).abs())
    assert error.max() <= 2**-7
