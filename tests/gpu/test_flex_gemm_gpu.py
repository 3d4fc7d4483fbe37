"""FlexGEMM's configs in the model's order, from ``torch.compile`` to the result.

FlexGEMM is an operator, not a backend: a graph asks for it by ``flex_gemm`` with QuACK as its
backend, whatever the list of GEMM backends names, and with ``tuned`` it benchmarks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import installed
from tilecast.inductor_hook.select.selection import ranked
from tilecast.inductor_hook.settings import Settings
from tilecast.inductor_hook.stock_kernels.flex_gemm import quack_config

pytestmark = [
    pytest.mark.skipif(TorchVersion(torch.__version__) < "2.15", reason="needs PyTorch 2.15"),
    pytest.mark.usefixtures("gpu_with_a_model"),
]

M, N, K = 512, 4096, 4096
PROBLEM = GemmProblem(M, N, K)
Configs = list[Mapping[str, Any]]
Compiled = Callable[..., Configs]


@pytest.fixture
def configs_of() -> Iterator[Compiled]:
    """Compiles a function, checks its result and returns FlexGEMM's configs, as benchmarked."""
    from torch._inductor import select_algorithm
    from torch._inductor.utils import fresh_cache

    seen: Configs = []

    def see(choices: list[Any]) -> list[Any]:
        flexible = [c for c in choices if type(c).__name__ == "FlexGemmEpilogueCaller"]
        seen.extend(dict(choice.config.quack_config) for choice in flexible)
        return choices

    def compiled(function: Callable, *inputs: torch.Tensor, **options: Any) -> Configs:
        seen.clear()
        torch._dynamo.reset()
        with fresh_cache():
            result = torch.compile(_flexible(function, **options), fullgraph=True)(*inputs)
        expected = torch.relu(function(*(tensor.float() for tensor in inputs)))
        torch.testing.assert_close(result.float(), expected, rtol=2e-2, atol=2e-2 * K**0.5)
        return list(seen)

    select_algorithm.add_preprocessing_fn(see)
    yield compiled
    select_algorithm.clear_preprocessing_fns()


def _flexible(function: Callable, **options: Any) -> Callable[..., torch.Tensor]:
    """A product by FlexGEMM, with a relu behind it."""
    flex_gemm: Any = vars(import_module("torch._higher_order_ops.flex_gemm"))["flex_gemm"]

    def product(*inputs: torch.Tensor) -> torch.Tensor:
        return flex_gemm(
            function,
            inputs,
            lambda accumulator: torch.relu(accumulator),
            kernel_options={"backend": "QUACK", **options},
        )

    return product


def _operands() -> tuple[torch.Tensor, torch.Tensor]:
    a, b = (torch.randn(rows, K, device="cuda", dtype=torch.bfloat16) for rows in (M, N))
    return a, b.t()


def _in_order(
    tried: Sequence[Mapping[str, Any]], problem: GemmProblem = PROBLEM
) -> list[KernelConfig | None]:
    return [quack_config(fields, problem.operands) for fields in tried]


def _of_model(problem: GemmProblem = PROBLEM) -> list[Any]:
    """All configs that QuACK has for Hopper, in the order of the shipped model."""
    quack: Any = import_module("torch._vendor.quack.gemm_config")
    every = [dataclasses.asdict(c) for c in quack.get_all_configs() if c.device_capacity == 9]
    configs = tuple(filter(None, _in_order(every, problem)))
    gpu = hardware(torch.cuda.get_device_name())
    return list(ranked(Settings(), problem, gpu, configs, len(configs)))


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("tilecast")]


def test_the_first_twelve_of_the_model_are_benchmarked(
    configs_of: Compiled, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = _operands()
    stock = configs_of(torch.mm, *inputs, tuned=True)
    with installed(rank_flex_gemm=True):
        tried = configs_of(torch.mm, *inputs, tuned=True)
    assert _in_order(tried) == _of_model()[:12]
    assert len(stock) == 12
    assert tried != stock
    assert configs_of(torch.mm, *inputs, tuned=True) == stock
    assert _told(caplog) == []


def test_without_tuning_it_is_the_first_of_the_model(configs_of: Compiled) -> None:
    with installed(rank_flex_gemm=True):
        first = configs_of(torch.mm, *_operands())
    assert _in_order(first) == _of_model()[:1]
    assert configs_of(torch.mm, *_operands()) != first


def test_a_batch_is_ranked(configs_of: Compiled) -> None:
    a = torch.randn(4, 256, 512, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(4, 1024, 512, device="cuda", dtype=torch.bfloat16).mT
    problem = GemmProblem(256, 1024, 512, 4)
    with installed(rank_flex_gemm=True):
        tried = configs_of(torch.bmm, a, b, tuned=True)
    assert _in_order(tried, problem) == _of_model(problem)[:12]


def test_operands_without_a_model_keep_the_stock_order(
    configs_of: Compiled, model_of: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    inputs = _operands()
    stock = configs_of(torch.mm, *inputs, tuned=True)
    model = model_of("int8:rcr>int32", torch.cuda.get_device_name())
    with installed(model=model, rank_flex_gemm=True):
        assert configs_of(torch.mm, *inputs, tuned=True) == stock
    (warning,) = _told(caplog)
    assert "PyTorch ranks its own FlexGEMM kernels: no model is for bf16:rcr" in warning
