"""FlexGEMM's configs: which of ours each is, and their order, with and without a model.

Where PyTorch has FlexGEMM with QuACK (2.15), its own lowering is asked; elsewhere a function of the
same signature stands for the one that is replaced.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import runpy
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hook_graph import batched, linear, lowering, node, symbolic, warnings_told
from stand_in_models import Asked, backwards

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import install, telemetry
from tilecast.inductor_hook.patch.torch_versions import (
    FLEX_GEMM,
    torch_version,
)
from tilecast.inductor_hook.stock_kernels.flex_gemm import (
    Legal,
    quack_config,
    rank_configs,
    rank_with_model,
    read,
    restore,
)
from tilecast.kernels.candidates import space

H200 = hardware("H200")
PROBLEM = GemmProblem(512, 4096, 4096)

needs_flex_gemm = pytest.mark.skipif(
    torch_version() < FLEX_GEMM.since, reason="this PyTorch's FlexGEMM does not ask QuACK"
)


def _legal() -> Legal:
    """What QuACK allows on Hopper where nothing forbids it, as FlexGEMM holds it."""
    (folder,) = find_spec("quack").submodule_search_locations  # type: ignore[union-attr]
    every = runpy.run_path(f"{folder}/gemm_config.py")["get_all_configs"]()
    return tuple(
        tuple(sorted(dataclasses.asdict(one).items())) for one in every if one.device_capacity == 9
    )


LEGAL = _legal()


def _call(**changes: Any) -> Any:
    """A call of ``mm``, as far as it is read."""
    spec = SimpleNamespace(mat1_index=0, mat2_index=1)
    return SimpleNamespace(**{"gemm_op": spec, "cu_seqlens_index": None, **changes})


def _with(fields: Any, **changes: Any) -> dict[str, Any]:
    return {**dict(fields), **changes}


@pytest.mark.parametrize("operands", ["bf16:rcr", "bf16:rrr", "fp16:ccr", "fp16:crr"])
def test_every_config_on_hopper_is_one_of_ours(operands: str) -> None:
    ours = [quack_config(dict(fields), GemmOperands.parse(operands)) for fields in LEGAL]
    assert len(set(ours)) == len(LEGAL) == 44
    assert set(ours) <= set(space(GemmOperands.parse(operands), H200).configs)


def test_a_config_keeps_its_tile_cluster_schedule_and_side() -> None:
    for fields in map(dict, LEGAL):
        found: Any = quack_config(fields, LINEAR_BF16)
        assert found
        assert (found.tile_m, found.tile_n) == (fields["tile_m"], fields["tile_n"])
        assert (found.cluster_m, found.cluster_n) == (fields["cluster_m"], fields["cluster_n"])
        assert (found.schedule == "pong") == fields["pingpong"]
        assert found.swap_ab == fields["swap_ab"]
        assert (found.tile_k, found.split_k, found.ctas_per_sm) == (64, 1, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"device_capacity": 10},
        {"is_dynamic_persistent": True},
        {"split_k": 2},
        {"tile_k": 128},
        {"max_swizzle_size": 4},
        {"use_tma_gather": True},
        {"a_new_knob": 1},
    ],
    ids=str,
)
def test_a_knob_that_was_not_measured_makes_a_config_unknown(changes: dict) -> None:
    assert quack_config(_with(LEGAL[0], **changes), LINEAR_BF16) is None


def test_a_knob_that_a_version_lacks_is_as_it_was_measured() -> None:
    fields = {name: value for name, value in LEGAL[0] if name != "split_k"}
    assert quack_config(fields, LINEAR_BF16) == quack_config(dict(LEGAL[0]), LINEAR_BF16)
    del fields["tile_n"]
    assert quack_config(fields, LINEAR_BF16) is None


def test_configs_that_the_model_does_not_know_come_last() -> None:
    dynamic = tuple(
        tuple(_with(fields, is_dynamic_persistent=True).items()) for fields in LEGAL[:2]
    )
    mixed = (dynamic[0], *LEGAL, dynamic[1])
    assert rank_configs(mixed, PROBLEM, backwards) == (*LEGAL[::-1], *dynamic)


def test_configs_of_another_architecture_are_refused() -> None:
    other = tuple(tuple(_with(fields, device_capacity=10).items()) for fields in LEGAL)
    with pytest.raises(TilecastError, match=r"'device_capacity': 10.* have no model; allowed: Hop"):
        rank_configs(other, PROBLEM, backwards)


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        (linear, PROBLEM),
        (
            lambda: linear(16, 6144, 1024, dtype=torch.float16),
            GemmProblem(16, 6144, 1024, operands=GemmOperands.parse("fp16:rcr")),
        ),
        (batched, GemmProblem(512, 128, 4096, 4)),
        (lambda: linear(symbolic(), 6144, 4096), GemmProblem(17, 6144, 4096)),
    ],
    ids=["linear", "fp16", "batch", "hint of a symbolic extent"],
)
def test_the_product_is_read_from_the_call(inputs: Callable, problem: GemmProblem) -> None:
    with lowering():
        assert read(_call(), inputs().nodes()) == problem


def test_operands_stand_where_the_call_says() -> None:
    """A bias stands before A and B in an addmm; B may be row-major."""
    spec = SimpleNamespace(mat1_index=1, mat2_index=2)
    with lowering():
        nodes = [node("c", [16, 64]), node("a", [16, 128]), node("b", [128, 64])]
        found = read(_call(gemm_op=spec), nodes)
    assert found == GemmProblem(16, 64, 128, operands=GemmOperands.parse("bf16:rrr"))


def flex_gemm_quack_configs(
    template_config: Any, gemm_input_nodes: Any, epilogue_input_nodes: Any
) -> Legal:
    """In the place of the function of the same name where PyTorch has none."""
    return LEGAL


@pytest.fixture
def home() -> Any:
    """A module that lowers FlexGEMM, as far as it is changed."""
    telemetry._told.clear()
    module = ModuleType("lowers_flex_gemm")
    setattr(module, FLEX_GEMM.name, flex_gemm_quack_configs)
    return module


def _asked(home: Any, **call: Any) -> Legal:
    """What a lowering hears of a linear layer."""
    with lowering():
        return getattr(home, FLEX_GEMM.name)(_call(**call), linear().nodes(), [])


def test_lowerings_get_the_order_of_the_model(home: Any) -> None:
    asked = Asked(backwards)
    rank_with_model(home, lambda device: asked)
    assert _asked(home) == LEGAL[::-1]
    assert asked.problem == PROBLEM


def test_the_gpu_of_the_operands_is_asked_about(home: Any) -> None:
    devices: list[int] = []

    def choose(device: int) -> Callable:
        devices.append(device)
        return backwards

    rank_with_model(home, choose)
    with lowering():
        getattr(home, FLEX_GEMM.name)(_call(), linear(device="cuda:1").nodes(), [])
    assert devices == [1]


def test_restoring_brings_the_stock_order_back(home: Any) -> None:
    restore(home)
    rank_with_model(home, lambda device: backwards)
    rank_with_model(home, lambda device: _no_model)
    restore(home)
    assert getattr(home, FLEX_GEMM.name) is flex_gemm_quack_configs
    restore(home)
    assert getattr(home, FLEX_GEMM.name) is flex_gemm_quack_configs


def _no_model(problem: GemmProblem, configs: Sequence[KernelConfig], limit: int) -> Any:
    raise TilecastError("gpu 'H20' is not known; allowed: H200; run `tilecast collect` on it")


def _broken(problem: GemmProblem, configs: Sequence[KernelConfig], limit: int) -> Any:
    raise ZeroDivisionError("float division")


@pytest.mark.parametrize(
    ("choose", "call", "reason"),
    [
        (_no_model, {}, "gpu 'H20' is not known; allowed: H200; run `tilecast collect` on it"),
        (_broken, {}, "ZeroDivisionError: float division"),
        (backwards, {"cu_seqlens_index": 2}, "grouped products have no model"),
    ],
)
def test_without_a_model_the_order_is_the_stock_one(
    home: Any, caplog: pytest.LogCaptureFixture, choose: Callable, call: dict, reason: str
) -> None:
    rank_with_model(home, lambda device: choose)
    for _ in range(3):
        assert _asked(home, **call) == LEGAL
    (warning,) = warnings_told(caplog)
    assert f"PyTorch ranks its own FlexGEMM kernels: {reason}" in warning


@pytest.mark.skipif(torch_version() >= FLEX_GEMM.since, reason="this PyTorch is new enough")
def test_an_older_pytorch_is_told_what_it_needs() -> None:
    with pytest.raises(TilecastError, match=r"too old for rank_flex_gemm; allowed: 2\.15 or later"):
        install(rank_flex_gemm=True)


@needs_flex_gemm
def test_the_function_that_stands_in_is_like_the_real_one() -> None:
    lowers: Any = importlib.import_module(FLEX_GEMM.module)
    template: Any = importlib.import_module(FLEX_GEMM.module.replace("lowering", "template"))
    stood_in, real = map(
        inspect.signature, (flex_gemm_quack_configs, getattr(lowers, FLEX_GEMM.name))
    )
    assert list(stood_in.parameters) == list(real.parameters)
    names = {field.name for field in dataclasses.fields(template.FlexGemmEpilogueConfig)}
    assert set(vars(_call())) <= names
