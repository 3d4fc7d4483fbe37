"""A layer of experts on a GPU: its grouped products run tilecast kernels, and are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from on_gpu.hook import hooked, texts
from on_gpu.launches import captured
from on_gpu.tensors import TOLERANCE, bf16, error
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code

from tilecast.data_collection.timing.tensors import group_ends, random_inputs, reference
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import eager

EXPERTS, ROWS, HIDDEN, WIDTH = 16, 640, 1024, 768
GROUPED = GemmOperands.parse("bf16:rcr:row-groups")
UP = GemmProblem(ROWS, 2 * WIDTH, HIDDEN, EXPERTS, GROUPED)
DOWN = GemmProblem(ROWS, HIDDEN, WIDTH, EXPERTS, GROUPED)


def _experts(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, ends: torch.Tensor):
    """Gate and up, and down, of the rows that a router has sorted by expert."""
    gate, value = F.grouped_mm(x, up, offs=ends).chunk(2, -1)
    return F.grouped_mm(F.silu(gate) * value, down, offs=ends)


def _tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    x, up, ends = random_inputs(UP)
    _, down, _ = random_inputs(DOWN)
    return x, up / 32, down / 32, ends


def _exact(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, ends: torch.Tensor):
    gate, value = reference(UP, (x, up, ends)).chunk(2, -1)
    return reference(DOWN, ((F.silu(gate) * value).bfloat16(), down, ends))


@torch.no_grad()
@pytest.mark.parametrize(("cpp", "fuse"), [(False, True), (False, False), (True, True)], ids=str)
def test_both_products_run_tilecast_kernels_for_any_spread(
    request: pytest.FixtureRequest, cpp: bool, fuse: bool
) -> None:
    """Whether or not the gate is part of the first, which its time decides."""
    if cpp:
        request.getfixturevalue("cpp_wrapper")
    tensors = _tensors()
    with hooked(fuse=fuse):
        layer: Callable = torch.compile(_experts, fullgraph=True)
        result, codes = run_and_get_code(layer, *tensors)
        assert error(result, _exact(*tensors)) < TOLERANCE
        for ends in (group_ends(ROWS, EXPERTS), torch.tensor([0] * 15 + [ROWS], dtype=torch.int32)):
            others = (*tensors[:3], ends.cuda())
            assert error(layer(*others), _exact(*others)) < TOLERANCE
    calls = ("tilecast::launch", "tilecast.launch") if cpp else ("StaticMatmul.named",)
    assert sum(map(codes[-1].count, calls)) >= 2
    assert counters["tilecast"]["problems"] == 2


@pytest.mark.parametrize("k", [1, 3])
def test_gradients_of_all_weights_run_tilecast_kernels(k: int) -> None:
    """Those of experts are groups along k; the others, of the rows, groups of rows."""
    if k == 1 and "H200" not in torch.cuda.get_device_name():
        pytest.skip("models that know groups are of the H200")
    x, up, down, ends = _tensors()
    gradient = bf16(ROWS, HIDDEN)

    def step(layer: Callable) -> tuple[torch.Tensor, ...]:
        leaves = [tensor.detach().requires_grad_() for tensor in (x, up, down)]
        return torch.autograd.grad(layer(*leaves, ends), leaves, gradient)

    expected = step(_experts)
    with hooked(k):
        found = step(torch.compile(_experts, fullgraph=True))
    for one, right in zip(found, expected, strict=True):
        assert error(one, right) < TOLERANCE
    assert counters["tilecast"]["problems"] == 6
    assert "bf16:crr:k-groups" in texts()


@torch.no_grad()
@pytest.mark.parametrize("fast", [False, True])
def test_groups_in_fp8_run_tilecast_kernels(fast: bool) -> None:
    operands = GemmOperands.parse(f"e4m3:rcr>bf16{'' if fast else '@fp32'}:row-groups+row-scales")
    problem = GemmProblem(ROWS, WIDTH, HIDDEN, EXPERTS, operands)

    def scaled(a, b, ends, *scales):
        return torch.ops.aten._scaled_grouped_mm(a, b, *scales, offs=ends, use_fast_accum=fast)

    inputs = random_inputs(problem)
    with hooked():
        compiled: Callable = torch.compile(scaled, fullgraph=True)
        result, codes = run_and_get_code(compiled, *inputs)
        assert error(result, reference(problem, inputs)) < TOLERANCE
        inputs = (*inputs[:2], group_ends(ROWS, EXPERTS).cuda(), *inputs[3:])
        assert error(compiled(*inputs), reference(problem, inputs)) < TOLERANCE
    assert "StaticMatmul.named" in codes[-1] and operands.text in codes[-1]
    assert counters["tilecast"]["problems"] == 1


def test_a_layer_in_a_cuda_graph_follows_its_router() -> None:
    x, up, down, ends = _tensors()
    with hooked(), torch.no_grad():
        layer: Callable = torch.compile(_experts, fullgraph=True)
        layer(x, up, down, ends)
        graph, out = captured(lambda: layer(x, up, down, ends))
    for _ in range(3):
        ends.copy_(group_ends(ROWS, EXPERTS))
        x.normal_()
        graph.replay()
        assert error(out, _exact(x, up, down, ends)) < TOLERANCE


def test_eager_code_and_its_gradients_run_tilecast_kernels_that_a_model_knows(
    model_here: Callable[..., Path],
) -> None:
    x, up, _, ends = _tensors()
    gradient = bf16(ROWS, 2 * WIDTH)

    def step() -> list[torch.Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in (x, up)]
        result = F.grouped_mm(*leaves, offs=ends)
        return [result.detach(), *torch.autograd.grad(result, leaves, gradient)]

    expected = step()
    # The first call of each waits for its kernel.
    eager.enable(model_here("bf16:rcr:row-groups bf16:rrr:row-groups"), invariant=True)
    try:
        for found, right in zip(step(), expected, strict=True):
            assert error(found, right) < TOLERANCE
    finally:
        eager.disable()
    assert {"bf16:rcr:row-groups", "bf16:rrr:row-groups"} <= texts()
