"""Stock NVGEMM kernels in the model's order, from ``torch.compile`` to the result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.stock_kernels.nvgemm import kernel_config, rank_with_model, restore
from tilecast.kernels.candidates import config_table
from tilecast.models.runtime.learned import LearnedHeuristic, load_heuristic

pytest.importorskip("cutlass.operators")
pytestmark = [
    pytest.mark.skipif(TorchVersion(torch.__version__) < "2.14", reason="needs PyTorch 2.14"),
    pytest.mark.usefixtures("gpu_with_a_model"),
]

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
        given = config_table(configs, problem.operands).all()
        ranking: Any = list(_heuristic(problem).rank(problem, given, limit=limit))
        self.answers.append((problem, len(configs), ranking))
        return ranking


def _heuristic(problem: GemmProblem) -> LearnedHeuristic:
    return load_heuristic(hardware(torch.cuda.get_device_name()), problem.operands)


@pytest.fixture
def home() -> Iterator[Any]:
    """The module that keeps the ranking object which the code generator asks."""
    from torch._inductor.codegen.nv_universal_gemm import nv_universal_gemm as codegen

    module: Any = inspect.getmodule(vars(codegen)["get_nvgemm_heuristics"])
    yield module
    restore(module)


Compiled = Callable[..., list[Any]]


@pytest.fixture
def choices_of() -> Iterator[Compiled]:
    """Compiles a function, checks its result and returns the NVGEMM choices, in their order."""
    from torch._inductor import select_algorithm
    from torch._inductor.utils import fresh_cache

    seen: list[Any] = []

    def see(choices: list[Any]) -> list[Any]:
        seen.extend(c for c in choices if type(c).__name__ == "NVUniversalGemmCaller")
        return choices

    def compiled(function: Callable, *inputs: torch.Tensor, **options: Any) -> list[Any]:
        seen.clear()
        torch._dynamo.reset()
        with fresh_cache():
            result = torch.compile(function, options=OPTIONS | options)(*inputs)
        torch.testing.assert_close(result, function(*inputs), rtol=2e-2, atol=2e-2 * K**0.5)
        return list(seen)

    select_algorithm.add_preprocessing_fn(see)
    yield compiled
    select_algorithm.clear_preprocessing_fns()


def _operands(dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.randn(M, K, device="cuda", dtype=dtype),
        torch.randn(N, K, device="cuda", dtype=dtype),
    )


def _names(choices: list[Any]) -> list[str]:
    return [choice.kernel.metadata.operator_name for choice in choices]


def _linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight)


@pytest.mark.parametrize("count", [1, 3])
def test_choices_stand_in_the_order_of_the_model(home, choices_of, caplog, count: int) -> None:
    model = Model()
    rank_with_model(home, lambda device: model)
    choices = choices_of(_linear, *_operands(), nvgemm_max_profiling_configs=count)
    ((problem, available, ranking),) = model.answers
    assert (problem, available) == (GemmProblem(M, N, K), 24)
    assert [kernel_config(choice.kernel.metadata) for choice in choices] == ranking
    assert len(choices) == count
    assert not [record for record in caplog.records if record.name.startswith("tilecast")]


def test_exchanged_operands_are_ranked_too(home, choices_of) -> None:
    from torch._inductor import config

    if not hasattr(config, "nvgemm_swap_ab"):
        pytest.skip("this PyTorch does not exchange operands")
    model = Model()
    rank_with_model(home, lambda device: model)
    choices = choices_of(_linear, *_operands(), nvgemm_swap_ab=True)
    (plain, _, _), (exchanged, _, ranking) = model.answers
    assert plain == exchanged == GemmProblem(M, N, K)
    assert all(config.swap_ab for config in ranking)
    assert [choice.swap_ab for choice in choices] == [False] * 3 + [True] * 3


def test_a_fused_epilogue_is_no_reason_to_warn(home, choices_of, caplog) -> None:
    rank_with_model(home, lambda device: Model())

    def fused(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.nn.functional.linear(x, weight)) + 1

    def biased(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight, weight[:, 0])

    choices_of(fused, *_operands())
    choices_of(biased, *_operands())
    assert not [record for record in caplog.records if record.name.startswith("tilecast")]


def test_a_batch_is_ranked(home, choices_of) -> None:
    model = Model()
    rank_with_model(home, lambda device: model)
    a = torch.randn(4, 256, 512, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(4, 1024, 512, device="cuda", dtype=torch.bfloat16).mT
    choices = choices_of(torch.bmm, a, b)
    ((problem, _, ranking),) = model.answers
    assert problem == GemmProblem(256, 1024, 512, 4)
    assert [kernel_config(choice.kernel.metadata) for choice in choices] == ranking


def test_operands_without_a_model_keep_the_stock_order(home, choices_of, caplog) -> None:
    def refuse(problem: GemmProblem, configs: Sequence[KernelConfig], limit: int) -> Any:
        raise TilecastError(f"no model is for {problem.operands}")

    operands = _operands(torch.float16)
    stock = _names(choices_of(_linear, *operands))
    rank_with_model(home, lambda device: refuse)
    assert _names(choices_of(_linear, *operands)) == stock != []
    (record,) = [record for record in caplog.records if record.name.startswith("tilecast")]
    assert "PyTorch ranks its own NVGEMM kernels: " in record.getMessage()
