"""Rows with the same bits in every batch: which kernels may run, and what else must not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hook_graph import (
    biased_linear,
    choices_of,
    linear,
    lowered,
    names_of,
    node,
    source_of,
    symbolic,
    warnings_told,
)
from torch._inductor import config, decomposition
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.kernel import mm
from torch._inductor.select_algorithm import get_algorithm_selector_cache
from torch._subclasses.fake_tensor import FakeTensorMode

from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import eager, install, uninstall
from tilecast.inductor_hook.autoload import autoload
from tilecast.inductor_hook.dispatch import switch as routing
from tilecast.inductor_hook.offer.template import TilecastCaller
from tilecast.inductor_hook.run.dynamic import DynamicMatmul
from tilecast.inductor_hook.select import selection
from tilecast.inductor_hook.settings import Settings, active, cache_key, unbenchmarked
from tilecast.kernels.candidates import candidates
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

H200 = hardware("H200")
SPLIT = (16, 512, 16384)
"""m, n, k of which the model's first choices split k."""
aten = torch.ops.aten
UNTUNED = {"max_autotune": False, "max_autotune_gemm": False}


def _configs(choices: list[Any]) -> list[QuackConfig]:
    assert all(isinstance(choice, TilecastCaller) for choice in choices)
    return [cast(QuackConfig, config) for one in choices for config in one.choice.configs]


def test_the_first_choices_of_the_agreeing_candidates_and_no_others(graph: Any) -> None:
    install(k=5)
    others = _configs(choices_of(linear(*SPLIT), "mm"))
    assert {config.split_k for config in others} != {1}
    install(k=5, invariant=True)
    with config.patch(max_autotune_gemm_backends="ATEN,TRITON,TILECAST"):
        choices = choices_of(linear(*SPLIT), "mm", [mm.aten_mm, mm.mm_template])
    found = _configs(choices)
    assert len(found) == 5
    settings = active()
    assert settings
    posed = GemmProblem(*SPLIT).invariant()
    assert {choice.choice.matmul.hint for choice in choices} == {posed}
    assert repr(posed.operands.text) in source_of(choices[0])
    allowed = candidates(posed, H200, invariant=True)
    ranked = selection.shortlist(settings, posed, H200)
    assert found == [prediction.config for prediction in ranked]
    assert set(found) <= set(allowed)


def test_exact_sums_of_fp8_are_promoted_alike(hook: list[KernelSpec]) -> None:
    operands = GemmOperands.parse("e4m3:rcr>bf16@fp32:row-scales")
    settings = unbenchmarked(None, "robust", invariant=True)
    for m in (1, 16, 300, 4096):
        problem = GemmProblem(m, 4096, 4096, operands=operands)
        config = cast(QuackConfig, selection.first(settings, problem, H200).prediction.config)
        assert (config.tile_k, config.split_k) == (128, 1)


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("op", ["mm", "addmm"])
def test_a_layer_keeps_its_kernels_whatever_the_model_expects_of_the_library(
    graph: Any, leaving_model: Path, op: str, count: int
) -> None:
    """Through Inductor's own lowering, which asks ATen for an addmm apart."""
    install(k=count, model=leaving_model, invariant=True)
    bias = [node("bias", [512])] if op == "addmm" else []
    with config.patch(max_autotune_gemm_backends="ATEN,TILECAST"):
        nodes = linear(*SPLIT).nodes()
        choices = lowered(getattr(aten, op), *bias, *nodes)
        for function in get_algorithm_selector_cache().preprocessing_fns:
            choices = function(choices)
    assert {config.split_k for config in _configs(choices)} <= {1, 4}
    assert len(choices) == count


@pytest.mark.parametrize("op", ["mm", "addmm"])
def test_without_max_autotune_the_first_choice_runs(graph: Any, op: str) -> None:
    install(k=5, invariant=True)
    with config.patch(UNTUNED):
        bias = [node("bias", [512])] if op == "addmm" else []
        choices = lowered(getattr(aten, op), *bias, *linear(*SPLIT).nodes())
    (found,) = _configs(choices)
    assert found.split_k == 4
    assert choices[0].choice.settings.k == 1


def test_deterministic_inductor_takes_the_first_choice(graph: Any) -> None:
    install(k=5)
    with config.patch(deterministic=True):
        (found,) = _configs(lowered(aten.mm, *linear(*SPLIT).nodes()))
    first = selection.first(unbenchmarked(None, "robust"), GemmProblem(*SPLIT), H200)
    assert found == first.prediction.config
    with config.patch(deterministic=True, max_autotune_gemm_backends="ATEN,TILECAST"):
        (again,) = _configs(lowered(aten.mm, *linear(*SPLIT).nodes()))
    assert again == found


def test_what_has_no_kernel_is_one_warning_that_names_it(
    graph: Any, caplog: pytest.LogCaptureFixture
) -> None:
    install(invariant=True)
    for m in (16, 32):
        wide = linear(m, 512, 512, dtype=torch.float32)
        assert names_of(choices_of(wide, "mm", [mm.aten_mm])) == ["mm"]
    (told,) = warnings_told(caplog)
    assert "mm has no tilecast kernel, so its rows may have other bits in another batch" in told
    assert "torch.float32" in told


def test_nothing_is_fused() -> None:
    assert Settings(fuse=True).fuse
    assert not Settings(fuse=True, invariant=True).fuse


def test_caches_tell_it_apart(hook: list[KernelSpec]) -> None:
    assert cache_key(Settings(fuse=False)) != cache_key(Settings(fuse=False, invariant=True))


def test_calls_of_any_length_run_agreeing_kernels(graph: Any, leaving_model: Path) -> None:
    install(k=3, model=leaving_model, invariant=True)
    (choice,) = choices_of(linear(symbolic(), *SPLIT[1:]), "mm", [mm.aten_mm])
    assert {config.split_k for config in _configs([choice])} == {1, 4}
    assert "invariant=True" in source_of(choice)
    names = [config.name for config in choice.choice.configs]
    told = active()
    assert told
    model: dict[str, Any] = {
        "model": str(leaving_model),
        "power": told.power,
        "digest": told.digest,
    }
    weight = torch.empty(SPLIT[1:], dtype=torch.bfloat16).t()
    for invariant in (True, False):
        matmul = DynamicMatmul.named(names, "bf16:rcr@4xfp32", False, invariant=invariant, **model)
        chosen = matmul._best(torch.empty(40, SPLIT[2], dtype=torch.bfloat16), weight)
        assert (chosen in matmul.matmuls.values()) == invariant


@pytest.fixture
def decomposed() -> Iterator[Callable[[], list[bool]]]:
    """Tells which products of one row or column on a GPU become sums for max-autotune."""

    def which() -> list[bool]:
        table, found = select_decomp_table(), []
        with FakeTensorMode(), config.patch(coordinate_descent_tuning=True):
            for op, batch in ((aten.mm.default, ()), (aten.bmm.default, (3,))):
                for m, n in ((1, 64), (64, 1)):
                    a, b = (
                        torch.empty(*batch, *extents, device="cuda", dtype=torch.bfloat16)
                        for extents in ((m, 128), (128, n))
                    )
                    found.append(table[op](a, b) is not NotImplemented)
        return found

    yield which


def test_products_of_one_row_stay_products(
    hook: list[KernelSpec], decomposed: Callable[[], list[bool]]
) -> None:
    stock = {op: decomposition.decompositions[op] for op in (aten.mm.default, aten.bmm.default)}
    assert decomposed() == [True] * 4
    install(invariant=True)
    assert decomposed() == [False] * 4
    install(invariant=True)
    assert decomposed() == [False] * 4
    install()
    assert decomposed() == [True] * 4
    install(invariant=True)
    uninstall()
    assert decomposed() == [True] * 4
    assert {op: decomposition.decompositions[op] for op in stock} == stock


def test_outer_products_stay_what_inductor_makes_of_them(hook: list[KernelSpec]) -> None:
    install(invariant=True)
    with FakeTensorMode(), config.patch(coordinate_descent_tuning=True):
        for op, batch in ((aten.mm.default, ()), (aten.bmm.default, (3,))):
            a, b = (torch.empty(*batch, *one, device="cuda") for one in ((64, 1), (1, 64)))
            assert select_decomp_table()[op](a, b).shape == (*batch, 64, 64)


def test_one_variable_asks_for_it_compiled_and_eager(
    hook: list[KernelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled: list[dict[str, Any]] = []
    monkeypatch.setattr(routing, "enable", lambda *_, **options: enabled.append(options))
    monkeypatch.setenv("TILECAST_INVARIANT", "1")
    autoload()
    assert active() == Settings(invariant=True)
    assert enabled == [{"power": "robust", "invariant": True}]
    monkeypatch.setenv("TILECAST_EAGER", "0")
    autoload()
    assert len(enabled) == 1


def test_eager_products_run_agreeing_kernels_and_others_are_warned_of(
    switch: list[KernelSpec], leaving_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    m, n, k = SPLIT
    x, weight = torch.zeros(m, k, dtype=torch.bfloat16), torch.zeros(n, k, dtype=torch.bfloat16)
    caplog.set_level(logging.WARNING, "tilecast")
    eager.enable(leaving_model, invariant=True)
    for rows in (1, 7, m):
        torch.nn.functional.linear(x[:rows], weight)
    assert {spec.operands.text for spec in switch} == {"bf16:rcr@4xfp32"}
    assert {cast(QuackConfig, spec.config).split_k for spec in switch} <= {1, 4}
    assert warnings_told(caplog) == []
    torch.mm(x.float()[:, :1], weight.float().T[:1])
    assert warnings_told(caplog) == []
    for _ in range(2):
        torch.mm(x.float(), weight.float().T)
    (told,) = warnings_told(caplog)
    assert "torch does some mm of torch.float32" in told
    eager.enable(leaving_model)
    torch.nn.functional.linear(x, weight)
    assert len(switch) == 3


def test_a_bias_is_added_by_the_kernel(graph: Any) -> None:
    install(k=2, invariant=True)
    found = choices_of(biased_linear(*SPLIT), "addmm")
    assert {one.choice.matmul.hint.operands.text for one in found} == {"bf16:rcr@4xfp32:bias"}
