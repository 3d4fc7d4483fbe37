"""FlexGEMM's configs in the model's order, from ``torch.compile`` to the result.

FlexGEMM is an operator, not a backend: a graph asks for it by ``flex_gemm`` with QuACK as its
backend, whatever the list of GEMM backends names, and with ``tuned`` it benchmarks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from on_gpu.hook import this_gpu
from on_gpu.tensors import bf16, exact
from torch.torch_version import TorchVersion

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import installed
from tilecast.inductor_hook.select.selection import ranked
from tilecast.inductor_hook.settings import Settings
from tilecast.inductor_hook.stock_kernels.flex_gemm import quack_config

pytestmark = pytest.mark.skipif(
    TorchVersion(torch.__version__) < "2.15", reason="needs PyTorch 2.15"
)

M, N, K = 512, 4096, 4096
PROBLEM = GemmProblem(M, N, K)
Configs = list[Mapping[str, Any]]
Compiled = Callable[..., Configs]


@pytest.fixture
def configs_of(benchmarked: Callable) -> Compiled:
    """Compiles a function, checks its result and returns FlexGEMM's configs, as benchmarked."""

    def compiled(function: Callable, *inputs: torch.Tensor, **options: Any) -> Configs:
        flexible = _flexible(function, **options)
        result, choices = benchmarked("FlexGemmEpilogueCaller", flexible, *inputs, fullgraph=True)
        expected = torch.relu(exact(function, *inputs))
        torch.testing.assert_close(result.float(), expected, rtol=2e-2, atol=2e-2 * K**0.5)
        return [dict(choice.config.quack_config) for choice in choices]

    return compiled


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
    return bf16(M, K), bf16(N, K).t()


def _in_order(
    tried: Sequence[Mapping[str, Any]], problem: GemmProblem = PROBLEM
) -> list[KernelConfig | None]:
    return [quack_config(fields, problem.operands) for fields in tried]


def _of_model(problem: GemmProblem = PROBLEM) -> list[Any]:
    """All configs that QuACK has for Hopper, in the order of the shipped model."""
    quack: Any = import_module("torch._vendor.quack.gemm_config")
    every = [dataclasses.asdict(c) for c in quack.get_all_configs() if c.device_capacity == 9]
    configs = tuple(filter(None, _in_order(every, problem)))
    return list(ranked(Settings(), problem, this_gpu(), configs, len(configs)))


def test_the_first_twelve_of_the_model_are_benchmarked(
    configs_of: Compiled, told: Callable[[], list[str]]
) -> None:
    inputs = _operands()
    stock = configs_of(torch.mm, *inputs, tuned=True)
    with installed(rank_flex_gemm=True):
        tried = configs_of(torch.mm, *inputs, tuned=True)
    assert _in_order(tried) == _of_model()[:12]
    assert len(stock) == 12
    assert tried != stock
    assert configs_of(torch.mm, *inputs, tuned=True) == stock
    assert told() == []


def test_without_tuning_it_is_the_first_of_the_model(configs_of: Compiled) -> None:
    with installed(rank_flex_gemm=True):
        first = configs_of(torch.mm, *_operands())
    assert _in_order(first) == _of_model()[:1]
    assert configs_of(torch.mm, *_operands()) != first


def test_a_batch_is_ranked(configs_of: Compiled) -> None:
    a, b = bf16(4, 256, 512), bf16(4, 1024, 512).mT
    problem = GemmProblem(256, 1024, 512, 4)
    with installed(rank_flex_gemm=True):
        tried = configs_of(torch.bmm, a, b, tuned=True)
    assert _in_order(tried, problem) == _of_model(problem)[:12]


def test_operands_without_a_model_keep_the_stock_order(
    configs_of: Compiled, model_here: Callable[..., Path], told: Callable[[], list[str]]
) -> None:
    inputs = _operands()
    stock = configs_of(torch.mm, *inputs, tuned=True)
    model = model_here("int8:rcr>int32")
    with installed(model=model, rank_flex_gemm=True):
        assert configs_of(torch.mm, *inputs, tuned=True) == stock
    (warning,) = told()
    assert "PyTorch ranks its own FlexGEMM kernels: no model is for bf16:rcr" in warning
