"""Kernels that fail: their choices lose, torch does their work, and the next ones run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from on_gpu.hook import best_config, failures, hooked
from on_gpu.layers import FACTORS, FUSIBLE, linear
from on_gpu.tensors import TOLERANCE, K, M, N, bf16, error, exact
from torch._dynamo.utils import counters
from torch._inductor import config

from tilecast.data_collection.timing.tensors import poisoned_out, random_inputs, reference
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.run import static
from tilecast.inductor_hook.run.static import StaticMatmul
from tilecast.kernels.spec import KernelSpec


@pytest.fixture
def nothing_fails() -> Callable[[], None]:
    """What is checked elsewhere is not here."""
    return lambda: None


def _broken(*arguments: Any) -> Any:
    raise RuntimeError("injected")


@pytest.mark.parametrize("part", ["load", "launch"])
def test_choices_that_fail_lose(
    close: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    told: Callable[[], list[str]],
    part: str,
) -> None:
    monkeypatch.setattr(static, "_loaded", {})
    failing = _broken if part == "load" else lambda *arguments: _broken
    monkeypatch.setattr(static, "load_kernel", failing)
    operands = bf16(M, K), bf16(N, K)
    assert "StaticMatmul" not in close(linear, *operands, backends="ATEN,TILECAST")
    (warning,) = told()
    assert "benchmarking failed (RuntimeError: injected)" in warning
    # Without ATen there is nothing to fall back on but torch.matmul.
    assert "StaticMatmul" in close(linear, *operands)


def test_a_kernel_that_failed_once_is_benchmarked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same cache of timings: what failed may have been out of memory."""
    operands = bf16(M, K), bf16(N, K)
    # A graph that is kept would spare the benchmark, too.
    with hooked(backends="ATEN,TILECAST"), config.patch(fx_graph_cache=False):
        for round_, failing in enumerate((True, False, False)):
            torch._dynamo.reset()
            counters.clear()
            with monkeypatch.context() as patch:
                patch.setattr(static, "_loaded", {})
                if failing:
                    patch.setattr(static, "load_kernel", _broken)
                result = torch.compile(linear, fullgraph=True)(*operands)
            assert error(result, exact(linear, *operands)) < TOLERANCE
            # The third finds every timing of the second.
            assert counters["inductor"]["select_algorithm_autotune"] == (round_ < 2)
            assert bool(failures()) == failing


def _static(operands: str, batched: bool = False) -> StaticMatmul:
    return StaticMatmul.named(best_config(GemmProblem(M, N, K)).name, operands, batched)


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
    assert error(out, reference(problem, (a, b, *extras))) < TOLERANCE


@pytest.mark.parametrize("batched", [False, True])
def test_torch_writes_float32_where_a_kernel_fails(
    monkeypatch: pytest.MonkeyPatch, batched: bool
) -> None:
    monkeypatch.setattr(static, "loaded_kernel", _broken)
    batch = (3,) if batched else ()
    a, b = bf16(*batch, M, K), bf16(*batch, N, K).mT
    out = torch.full((*batch, M, N), torch.nan, device="cuda")
    _static("bf16:rcr>fp32", batched)(a, b, out)
    assert error(out, a.double() @ b.double()) < 1e-5


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
        a, b, out = (t.to(device) for t in (bf16(M, K), bf16(N, K).T, bf16(M, N)))
        with torch.cuda.device(device):
            matmul(a, b, out)
        assert error(out, a.float() @ b.float()) < TOLERANCE
    assert tried == [1, 0]
