"""The heuristic that ``cutlass.operators`` finds by name: its order, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.settings import unbenchmarked
from tilecast.inductor_hook.stock_kernels.cutlass_operators import NAME, register
from tilecast.inductor_hook.stock_kernels.nvgemm import kernel_config

library: Any = pytest.importorskip("cutlass.operators")


def _arguments(m: int, n: int, k: int, dtype: torch.dtype = torch.bfloat16) -> Any:
    a, b = torch.empty(m, k, dtype=dtype), torch.empty(n, k, dtype=dtype).t()
    out = torch.empty(m, n, dtype=torch.bfloat16)
    return library.GemmArguments(a, b, out, torch.float32)


def _name(operator: Any) -> str:
    return operator.metadata.operator_name


@pytest.fixture
def heuristic() -> Any:
    register()
    return library.get_heuristic(NAME)(gpu="H200")


def test_the_library_gives_operators_in_the_models_order(heuristic: Any) -> None:
    arguments = _arguments(16, 6144, 4096)
    stock = library.get_operators(arguments, target_sm="90a")
    found = library.get_operators(arguments, target_sm="90a", heuristic=heuristic)
    assert sorted(map(_name, found)) == sorted(map(_name, stock))
    configs = [config for one in found if (config := kernel_config(one.metadata))]
    assert len(configs) > 8
    problem = GemmProblem(16, 6144, 4096, 1, LINEAR_BF16)
    expected = selection.ranked(
        unbenchmarked(None, "robust"), problem, hardware("H200"), tuple(configs), len(configs)
    )
    assert configs == [*expected]


def test_no_more_operators_than_asked_for(heuristic: Any) -> None:
    arguments = _arguments(4096, 4096, 4096)
    every = library.get_operators(arguments, target_sm="90a", heuristic=heuristic)
    first = library.get_operators(arguments, target_sm="90a", heuristic=heuristic, limit=3)
    assert [*map(_name, first)] == [*map(_name, every[:3])]


def test_without_operators_there_is_nothing_to_rank(heuristic: Any) -> None:
    assert heuristic.rank(_arguments(16, 64, 64), []) == []


def test_operators_that_no_model_knows_are_refused(heuristic: Any) -> None:
    arguments = _arguments(128, 256, 512)
    blackwell = library.get_operators(arguments, target_sm="100a")
    with pytest.raises(TilecastError, match="no model"):
        heuristic.rank(arguments, blackwell)


def test_a_gpu_that_is_not_known_is_refused() -> None:
    with pytest.raises(TilecastError, match="B300"):
        register()(gpu="B300")


def test_a_product_without_arguments_is_refused(heuristic: Any) -> None:
    operators = library.get_operators(_arguments(16, 64, 64), target_sm="90a")
    with pytest.raises(TilecastError, match="NoneType"):
        heuristic.rank(None, operators)
