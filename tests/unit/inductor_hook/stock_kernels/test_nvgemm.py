"""Stock NVGEMM kernels: what config each is, and their order, with and without a model."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hook_graph import linear, lowering, symbolic
from stand_in_models import Asked, backwards
from torch._inductor import ir
from torch._inductor.kernel_inputs import MMKernelInputs

from tilecast.heuristics.dtypes import dtype_of_torch
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import MAJORS, GemmOperands, TensorSpec
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.stock_kernels.nvgemm import (
    STOCK_OPERATOR,
    kernel_config,
    rank_kernels,
    rank_with_model,
    restore,
)
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.quack_sm90.space import stock_configs

H200 = hardware("H200")
LAYOUTS = tuple("".join(letters) for letters in itertools.product("rc", repeat=3))
EXTENTS = (16, 6144, 4096, 1)


def _tensor(rows: int, columns: int, major: str, dtype: torch.dtype) -> torch.Tensor:
    if major == "r":
        return torch.empty(rows, columns, dtype=dtype)
    return torch.empty(columns, rows, dtype=dtype).t()


def _kernels(
    layout: str = "rcr",
    dtype: torch.dtype = torch.bfloat16,
    out_dtype: torch.dtype | None = None,
) -> list[Any]:
    """What ``cutlass.operators`` offers on Hopper, in its order."""
    operators: Any = pytest.importorskip("cutlass.operators")
    arguments_module: Any = pytest.importorskip("cutlass.operators.arguments")
    a, b, out = (
        _tensor(512, 512, major, dtype_)
        for major, dtype_ in zip(layout, (dtype, dtype, out_dtype or dtype), strict=True)
    )
    arguments = arguments_module.GemmArguments(A=a, B=b, out=out, accumulator_type=torch.float32)
    return list(operators.get_operators(arguments, target_sm="90a"))


def _stock(kernels: Sequence[Any]) -> list[Any]:
    return [kernel for kernel in kernels if type(kernel).__name__ == STOCK_OPERATOR]


def _configs(kernels: Sequence[Any]) -> list[Any]:
    return [kernel_config(kernel.metadata) for kernel in kernels]


@pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [("bfloat16", "bfloat16"), ("float16", "float16"), ("float16", "float32")],
)
@pytest.mark.parametrize("layout", ["rcr", "rrr", "ccc"])
def test_every_stock_kernel_has_its_config(layout: str, dtype: str, out_dtype: str) -> None:
    kernels = _kernels(layout, getattr(torch, dtype), getattr(torch, out_dtype))
    dtypes = [dtype_of_torch(name) for name in (dtype, dtype, out_dtype)]
    majors = [MAJORS[letter] for letter in layout]
    operands = GemmOperands.product(*map(TensorSpec, dtypes, majors))
    assert _configs(_stock(kernels)) == list(stock_configs(operands, H200))


def test_a_tile_that_is_not_stock_has_no_config() -> None:
    metadata = _stock(_kernels())[0].metadata
    design = SimpleNamespace(tile_shape=(64, 192, 64), cluster_shape=(1, 1, 1))
    strange = SimpleNamespace(
        operator_class=metadata.operator_class, operands=metadata.operands, design=design
    )
    assert kernel_config(strange) is None


def test_kernels_that_the_model_does_not_know_come_last() -> None:
    kernels = _kernels()
    stock = _stock(kernels)
    others = [kernel for kernel in kernels if kernel not in stock]
    mixed = [*others, *stock]
    assert rank_kernels(mixed, EXTENTS, len(mixed), backwards) == [*stock[::-1], *others]
    assert rank_kernels(mixed, EXTENTS, 25, backwards) == [*stock[::-1], others[0]]
    assert rank_kernels(mixed, EXTENTS, 24, backwards) == stock[::-1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_model_is_asked_about_the_problem(layout: str) -> None:
    kernels, asked = _stock(_kernels(layout)), Asked()
    assert rank_kernels(kernels, (512, 1024, 2048, 3), 7, asked) == kernels[:7]
    assert asked.problem == GemmProblem(512, 1024, 2048, 3, GemmOperands.parse(f"bf16:{layout}"))
    assert asked.configs == _configs(kernels)


@pytest.mark.parametrize(
    ("layout", "exchanged"), [("rcr", "rcc"), ("rrr", "ccc"), ("ccc", "rrr"), ("crr", "crc")]
)
def test_an_exchanged_problem_is_asked_about_as_it_was(layout: str, exchanged: str) -> None:
    """out^T = B^T A^T: B^T is (n, k) and row-major where B is column-major."""
    kernels, asked = _stock(_kernels(exchanged)), Asked()
    assert rank_kernels(kernels, (1024, 16, 2048, 1), 7, asked, swap_ab=True) == kernels[:7]
    assert asked.problem == GemmProblem(16, 1024, 2048, 1, GemmOperands.parse(f"bf16:{layout}"))
    assert all(config.swap_ab for config in asked.configs)


def test_kernels_without_a_model_are_refused() -> None:
    others = [kernel for kernel in _kernels() if type(kernel).__name__ != STOCK_OPERATOR]
    with pytest.raises(TilecastError, match=r"Sm80\w+ have no model; allowed: Sm90\w+ with"):
        rank_kernels(others, EXTENTS, 3, backwards)


@pytest.fixture
def codegen() -> Iterator[Any]:
    """The module of the installed PyTorch that asks for kernels, with the stock object in place."""
    module = pytest.importorskip("torch._inductor.codegen.nv_universal_gemm.nv_universal_gemm")
    telemetry._told.clear()
    yield module
    restore(_home(module))


def _home(codegen: Any) -> Any:
    return inspect.getmodule(codegen.get_nvgemm_heuristics)


@pytest.fixture
def environment() -> Iterator[None]:
    """A graph under compilation."""
    with lowering():
        yield


def _exchanged(inputs: MMKernelInputs) -> MMKernelInputs:
    """As Inductor turns them round."""
    a, b = (ir.TensorBox.create(node) for node in inputs.mat1mat2())
    return MMKernelInputs([ir.PermuteView.create(x, [1, 0]) for x in (b, a)])


OPTIONS = {"is_nvfp4": False, "swap_ab": False, "fallback_count": 10}
"""What 2.15 passes on beyond the accumulator's dtype."""


def test_the_code_generator_gets_the_order_of_the_model(codegen, environment) -> None:
    stock = codegen.get_nvgemm_heuristics()
    rank_with_model(_home(codegen), lambda device: backwards)
    ranking = codegen.get_nvgemm_heuristics()
    assert ranking is stock
    kernels = _stock(_kernels())
    inputs = linear(16, 6144, 4096)
    # 2.14, then 2.15; the method takes the rest by name, too.
    assert ranking.filter_kernels(kernels, inputs, 10, torch.float32) == kernels[:-11:-1]
    assert ranking.filter_kernels(kernels, inputs, 1, torch.float32, **OPTIONS) == kernels[-1:]
    assert ranking.filter_kernels(
        kernels=kernels, inputs=inputs, count=2, accumulator_type=torch.float32
    ) == [*kernels[-1:], *kernels[-2:-1]]


def test_extents_come_from_the_inputs(codegen, environment) -> None:
    asked = Asked()
    rank_with_model(_home(codegen), lambda device: asked)
    ranking = codegen.get_nvgemm_heuristics()
    inputs = linear(16, 6144, 4096)
    ranking.filter_kernels(_kernels(), inputs, 3, torch.float32, **OPTIONS)
    assert asked.problem == GemmProblem(16, 6144, 4096)
    ranking.filter_kernels(
        _kernels("rcc"), _exchanged(inputs), 3, torch.float32, **OPTIONS | {"swap_ab": True}
    )
    assert asked.problem == GemmProblem(16, 6144, 4096)
    assert all(config.swap_ab for config in asked.configs)


def test_a_symbolic_extent_counts_as_its_hint(codegen, environment) -> None:
    asked = Asked()
    rank_with_model(_home(codegen), lambda device: asked)
    inputs = linear(symbolic(), 6144, 4096)
    codegen.get_nvgemm_heuristics().filter_kernels(_kernels(), inputs, 3)
    assert asked.problem == GemmProblem(17, 6144, 4096)


def test_no_kernels_are_no_reason_to_warn(codegen, environment, caplog) -> None:
    """Hopper has none with a fused epilogue, and Inductor asks for them all the same."""
    rank_with_model(_home(codegen), lambda device: backwards)
    assert codegen.get_nvgemm_heuristics().filter_kernels([], linear(16, 6144, 4096), 3) == []
    assert not caplog.records


def _no_model(problem: GemmProblem, configs: Sequence[Any], limit: int):
    raise TilecastError("gpu 'H20' is not known; allowed: H200; run `tilecast collect` on it")


def _broken(problem: GemmProblem, configs: Sequence[Any], limit: int):
    raise ZeroDivisionError("float division")


def _inventing(problem: GemmProblem, configs: Sequence[Any], limit: int):
    return [QuackConfig(256, 16, 64)]


@pytest.mark.parametrize(
    ("choose", "dtype", "reason"),
    [
        (_no_model, torch.bfloat16, "gpu 'H20' is not known; allowed: H200; run `tilecast coll"),
        (_broken, torch.bfloat16, "ZeroDivisionError: float division"),
        (_inventing, torch.bfloat16, "KeyError: QuackConfig"),
        (backwards, torch.float8_e4m3fn, f"kernels of {STOCK_OPERATOR} have no model"),
    ],
)
def test_without_a_model_the_order_is_the_stock_one(
    codegen, environment, caplog, choose: Callable, dtype: torch.dtype, reason: str
) -> None:
    kernels = _kernels(dtype=dtype, out_dtype=torch.bfloat16)
    inputs = linear(16, 6144, 4096)
    expected = codegen.get_nvgemm_heuristics().filter_kernels(kernels, inputs, 5, torch.float32)
    rank_with_model(_home(codegen), lambda device: choose)
    for _ in range(3):
        ranking = codegen.get_nvgemm_heuristics()
        assert ranking.filter_kernels(kernels, inputs, 5, torch.float32) == expected
    (record,) = caplog.records
    assert f"PyTorch ranks its own NVGEMM kernels: {reason}" in record.getMessage()


def test_restoring_brings_the_stock_ranking_back(codegen) -> None:
    home, stock = _home(codegen), codegen.get_nvgemm_heuristics()
    before, method = dict(vars(stock)), stock.filter_kernels
    restore(home)
    rank_with_model(home, lambda device: backwards)
    rank_with_model(home, lambda device: _no_model)
    assert stock.filter_kernels != method
    restore(home)
    assert stock.filter_kernels == method
    assert vars(stock) == before
