"""Stock NVGEMM kernels in the model's order, from ``torch.compile`` to the result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from on_gpu.hook import this_gpu
from on_gpu.tensors import bf16
from torch.torch_version import TorchVersion

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.stock_kernels.nvgemm import kernel_config, rank_with_model, restore
from tilecast.kernels.candidates import config_table
from tilecast.models.runtime.learned import load_heuristic

pytest.importorskip("cutlass.operators")
pytestmark = pytest.mark.skipif(
    TorchVersion(torch.__version__) < "2.14", reason="needs PyTorch 2.14"
)

M, N, K = 16, 6144, 4096
OPTIONS: dict[str, Any] = {
    "max_autotune_gemm": True,
    "max_autotune_gemm_backends": "ATEN,NVGEMM",
    "nvgemm_max_profiling_configs": 3,
}


class Model:
    """The shipped model, remembering its answers."""

    def __init__(self) -> None:
        self.answers: list[tuple[GemmProblem, int, list[Any]]] = []

    def __call__(
        self, problem: GemmProblem, configs: Sequence[KernelConfig], limit: int
    ) -> list[Any]:
        heuristic = load_heuristic(this_gpu(), problem.operands)
        given = config_table(configs, problem.operands).all()
        ranking: Any = list(heuristic.rank(problem, given, limit=limit))
        self.answers.append((problem, len(configs), ranking))
        return ranking


@pytest.fixture
def home() -> Iterator[Any]:
    """The module that keeps the ranking object which the code generator asks."""
    from torch._inductor.codegen.nv_universal_gemm import nv_universal_gemm as codegen

    module: Any = inspect.getmodule(vars(codegen)["get_nvgemm_heuristics"])
    yield module
    restore(module)


@pytest.fixture
def choices_of(benchmarked: Callable) -> Callable[..., list[Any]]:
    """Compiles a function, checks its result and returns the NVGEMM choices, in their order."""

    def compiled(function: Callable, *inputs: torch.Tensor, **options: Any) -> list[Any]:
        options = OPTIONS | options
        result, choices = benchmarked("NVUniversalGemmCaller", function, *inputs, options=options)
        torch.testing.assert_close(result, function(*inputs), rtol=2e-2, atol=2e-2 * K**0.5)
        return choices

    return compiled


def _names(choices: list[Any]) -> list[str]:
    return [choice.kernel.metadata.operator_name for choice in choices]


@pytest.mark.parametrize("count", [1, 3])
def test_choices_stand_in_the_order_of_the_model(home, choices_of, told, count: int) -> None:
    model = Model()
    rank_with_model(home, lambda device: model)
    choices = choices_of(F.linear, bf16(M, K), bf16(N, K), nvgemm_max_profiling_configs=count)
    ((problem, available, ranking),) = model.answers
    assert (problem, available) == (GemmProblem(M, N, K), 24)
    assert [kernel_config(choice.kernel.metadata) for choice in choices] == ranking
    assert len(choices) == count
    assert told() == []


def test_exchanged_operands_are_ranked_too(home, choices_of) -> None:
    from torch._inductor import config

    if not hasattr(config, "nvgemm_swap_ab"):
        pytest.skip("this PyTorch does not exchange operands")
    model = Model()
    rank_with_model(home, lambda device: model)
    choices = choices_of(F.linear, bf16(M, K), bf16(N, K), nvgemm_swap_ab=True)
    (plain, _, _), (exchanged, _, ranking) = model.answers
    assert plain == exchanged == GemmProblem(M, N, K)
    assert all(config.swap_ab for config in ranking)
    assert [choice.swap_ab for choice in choices] == [False] * 3 + [True] * 3


def test_a_fused_epilogue_is_no_reason_to_warn(home, choices_of, told) -> None:
    rank_with_model(home, lambda device: Model())
    choices_of(lambda x, w: torch.relu(F.linear(x, w)) + 1, bf16(M, K), bf16(N, K))
    choices_of(lambda x, w: F.linear(x, w, w[:, 0]), bf16(M, K), bf16(N, K))
    assert told() == []


def test_a_batch_is_ranked(home, choices_of) -> None:
    model = Model()
    rank_with_model(home, lambda device: model)
    choices = choices_of(torch.bmm, bf16(4, 256, 512), bf16(4, 1024, 512).mT)
    ((problem, _, ranking),) = model.answers
    assert problem == GemmProblem(256, 1024, 512, 4)
    assert [kernel_config(choice.kernel.metadata) for choice in choices] == ranking


def test_operands_without_a_model_keep_the_stock_order(home, choices_of, told) -> None:
    def refuse(problem: GemmProblem, configs: Sequence[KernelConfig], limit: int) -> Any:
        raise TilecastError(f"no model is for {problem.operands}")

    operands = bf16(M, K).half(), bf16(N, K).half()
    stock = _names(choices_of(F.linear, *operands))
    rank_with_model(home, lambda device: refuse)
    assert _names(choices_of(F.linear, *operands)) == stock != []
    (warning,) = told()
    assert "PyTorch ranks its own NVGEMM kernels: " in warning
