"""Fused products on a GPU: scales, biases, matrices and activations, for every kind of kernel."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from compiled_kernels import compiled

from tilecast.data_collection.timing.gpu_session import GpuSession
from tilecast.data_collection.timing.tensors import poisoned_out, random_inputs
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import space
from tilecast.kernels.launch import load_kernel
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

FUSED = (
    *(f"bf16:rcr:{step}" for step in ("alpha", "bias", "c", "beta-c", "relu", "gelu", "silu")),
    *(f"bf16:rcr:bias+{step}" for step in ("relu", "gelu", "gelu-tanh", "silu")),
    "bf16:rrr:alpha+beta-c",
    "bf16:crr:bias",
    "bf16:rcc:bias+c",
    "bf16:rcr:bias+c",
    "fp16:rcr:bias+gelu",
    "bf16:rcr>fp32:bias",
    "e4m3:rcr>bf16:tensor-scales",
    "e4m3:rcr>bf16:row-scales+bias",
    "e5m2xe4m3:rcr>bf16:tensor-scales+bias",
    "e4m3xe5m2:rcr>fp16:row-scales",
    "e4m3:rcr>bf16@fp32:tensor-scales",
    "int8:rcr>bf16:row-scales+bias",
    "int8:rcr>bf16:out-row-scales+bias",
    "int8:rcr>fp32:tensor-scales",
    "bf16xint8:rcr:column-scales",
    "bf16xint8:rcr:fp32-column-scales+bias",
    "bf16xint8:ccr:column-scales+bias+gelu",
    "bf16xint8:rcr>fp32",
    *(f"bf16:rcr:{gate}" for gate in ("silu-mul", "bias+mul-gelu", "gelu-tanh-mul")),
    "fp16:ccr:bias+silu-mul",
    "bf16:rcc:mul-silu",
    "bf16:rcr>fp32:relu-mul",
    "e4m3:rcr>bf16@fp32:row-scales+bias+silu-mul",
    "int8:rcr>bf16:row-scales+silu-mul",
)


BATCHED = tuple(f"bf16:rcr:{step}" for step in ("bias", "c", "beta-c", "alpha+beta-c", "silu-mul"))
"""What is done to a batch of products."""


def kinds(operands: GemmOperands, batched: bool = False) -> list[KernelSpec]:
    """A kernel each with and without swap_ab, split, alternation of warp groups, two CTAs an SM.

    And of each cluster, and with the smallest tiles, for operands with a gate.
    """
    shown = {}
    configs = space(operands, hardware("H200"), [QuackConfig.family]).configs
    for config in cast("tuple[QuackConfig, ...]", configs[::7]):
        if operands.gate:  # whose loads are shared, and pieces stored, in another way
            shown.setdefault(("smallest", config.swap_ab), config)
            shown["cluster", config.cluster_m, config.cluster_n] = config
        if config.tile_m * config.tile_n >= 64 * 64:
            shown["split", config.swap_ab, config.split_k > 1] = config
            shown["schedule", config.ping_pong, config.tile_m] = config
            shown["shared", config.swap_ab, config.ctas_per_sm] = config
    return [KernelSpec(config, operands, batched) for config in sorted(shown.values())]


@pytest.fixture(scope="module")
def objects() -> ObjectCache:
    specs = [spec for text in FUSED for spec in kinds(GemmOperands.parse(text))]
    specs += [spec for text in BATCHED for spec in kinds(GemmOperands.parse(text), batched=True)]
    return compiled(specs)


@pytest.fixture(scope="module")
def session(objects: ObjectCache) -> GpuSession:
    return GpuSession(objects, 0, lambda spec: None)


@pytest.mark.parametrize("text", FUSED)
def test_every_kind_of_kernel_is_right_on_ragged_problems(session: GpuSession, text: str) -> None:
    specs = kinds(GemmOperands.parse(text))
    assert len(specs) >= 8
    wrong = {str(spec): found for spec in specs if (found := session.check(spec))}
    assert wrong == {}


@pytest.mark.parametrize("text", BATCHED)
def test_what_is_done_to_a_batch_is_right_on_ragged_problems(
    session: GpuSession, text: str
) -> None:
    specs = kinds(GemmOperands.parse(text), batched=True)
    wrong = {str(spec): found for spec in specs if (found := session.check(spec))}
    assert wrong == {}


def test_one_matrix_is_added_to_a_whole_batch(objects: ObjectCache) -> None:
    problem = GemmProblem(77, 200, 136, 5, GemmOperands.parse("bf16:rcr:c"))
    a, b, c = random_inputs(problem)
    shared = c[:1].expand_as(c)
    expected = a.float() @ b.float() + shared.float()
    for spec in kinds(problem.operands, batched=True):
        out = poisoned_out(problem)
        load_kernel(spec, objects)(a, b, out, shared)
        assert torch.allclose(out.float(), expected, rtol=2e-2, atol=2e-2), spec


@pytest.mark.parametrize(("text", "atol"), [("bf16:rcr:c", 4e-2), ("bf16:rcr:bias", 2e-2)])
def test_what_the_kernel_before_writes_is_waited_for(
    objects: ObjectCache, text: str, atol: float
) -> None:
    """In a graph, where a kernel may begin while the one before it ends."""
    problem = GemmProblem(40, 1024, 1024, operands=GemmOperands.parse(text))
    a, b, added = random_inputs(problem)
    b /= 32
    steps = [poisoned_out(problem) for _ in range(8)]
    written = [added, *(out if text.endswith("c") else out[0] for out in steps)]
    for spec in kinds(problem.operands):
        launch = load_kernel(spec, objects)
        launch(a, b, steps[0], added)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for given, out in zip(written, steps, strict=False):
                launch(a, b, out, given)
        for _ in range(10):
            for out in steps:
                out.fill_(torch.nan)
            graph.replay()
            for given, out in zip(written, steps, strict=False):
                expected = a.float() @ b.float() + given.float()
                assert torch.allclose(out.float(), expected, rtol=2e-2, atol=atol), spec


@pytest.mark.parametrize(
    "text", ["bf16:rcr:bias+gelu", "bf16:rrr:alpha+beta-c", "bf16:rcr:bias+mul-gelu"]
)
def test_graphs_replay_with_new_extras(objects: ObjectCache, text: str) -> None:
    problem = GemmProblem(72, 528, 1032, operands=GemmOperands.parse(text))
    a, b, *extras = random_inputs(problem)
    for spec in kinds(problem.operands):
        launch, out = load_kernel(spec, objects), poisoned_out(problem)
        launch(a, b, out, *extras)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch(a, b, out, *extras)
        before = out.clone()
        for extra in extras:
            if isinstance(extra, torch.Tensor):
                extra.mul_(2)
        graph.replay()
        again = poisoned_out(problem)
        launch(a, b, again, *extras)
        assert torch.equal(out, again), spec
        assert not torch.equal(out, before), spec


def test_extras_that_a_kernel_was_not_compiled_for_are_refused(objects: ObjectCache) -> None:
    operands = GemmOperands.parse("bf16:rcr:bias")
    problem = GemmProblem(64, 128, 128, operands=operands)
    a, b, bias = random_inputs(problem)
    launch, out = load_kernel(kinds(operands)[0], objects), poisoned_out(problem)
    for bad in ((), (bias.float(),), (bias[:64],), (bias, bias)):
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            launch(a, b, out, *bad)
    torch.cuda.synchronize()
    assert bool(out.isnan().all())


@pytest.mark.parametrize("step", ["relu", "gelu", "bias+gelu-tanh", "silu", "silu-mul"])
def test_what_is_no_number_stays_none(objects: ObjectCache, step: str) -> None:
    problem = GemmProblem(72, 528, 264, operands=GemmOperands.parse(f"bf16:rcr:{step}"))
    a, b, *extras = random_inputs(problem)
    a[3, 5] = torch.nan
    for spec in kinds(problem.operands):
        out = torch.zeros_like(poisoned_out(problem))
        load_kernel(spec, objects)(a, b, out, *extras)
        assert bool(out[3].isnan().all()), spec
        assert not bool(out[:3].isnan().any()), spec
