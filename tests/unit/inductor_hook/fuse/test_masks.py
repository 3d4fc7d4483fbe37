"""Masks behind grouped products: which are known to mask nothing, and what becomes of the graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hook_graph import run, traced

from tilecast.inductor_hook.fuse import fx
from tilecast.inductor_hook.fuse.activation import activations
from tilecast.inductor_hook.fuse.masks import drop_masks

ROWS, EXPERTS, CHOSEN, N, K = 24, 8, 2, 64, 32
SHAPES = [
    ((ROWS * CHOSEN, K), torch.bfloat16),
    ((ROWS, EXPERTS), torch.float32),
    ((EXPERTS, N, K), torch.bfloat16),
    ((EXPERTS, K, N // 2), torch.bfloat16),
    ((EXPERTS,), torch.int32),
]
Tensor = torch.Tensor
where = torch.ops.aten.where.self
NEVER: dict[str, Callable[[Tensor], Tensor]] = {
    "sorted": lambda scores: scores.topk(CHOSEN)[1].reshape(-1).sort()[0] >= EXPERTS,
    "of probabilities": lambda scores: (
        scores.softmax(-1).topk(CHOSEN, sorted=False)[1].view(-1).sort()[0] >= EXPERTS + 1
    ),
    "along rows": lambda scores: scores.T.topk(CHOSEN, dim=0)[1].reshape(-1) >= EXPERTS,
}
PERHAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "some": lambda scores: scores.topk(CHOSEN)[1].reshape(-1).sort()[0] >= EXPERTS - 1,
    "places of a sort": lambda scores: scores.topk(CHOSEN)[1].reshape(-1).sort()[1] >= EXPERTS,
    "scores": lambda scores: scores.topk(CHOSEN)[0].reshape(-1) >= EXPERTS,
    "of more than there are": lambda scores: scores.T.topk(6)[1].reshape(-1) >= EXPERTS,
    "not behind": lambda scores: scores.topk(CHOSEN)[1].reshape(-1) < EXPERTS,
    "computed": lambda scores: scores.topk(CHOSEN)[1].reshape(-1) + 1 >= EXPERTS,
}


@pytest.fixture(autouse=True)
def _fused_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no GPU, a number to fill with is made on the CPU."""
    monkeypatch.setattr(fx, "DEVICE", "cpu")


def _layer(mask_of: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """A layer of experts as Hugging Face writes it."""

    def layer(x: Tensor, scores: Tensor, up: Tensor, down: Tensor, ends: Tensor) -> Tensor:
        mask = mask_of(scores).unsqueeze(-1)
        first, second = F.grouped_mm(x, up.mT, offs=ends).masked_fill(mask, 0.0).chunk(2, -1)
        result = F.grouped_mm(F.silu(first) * second, down.mT, offs=ends)
        return result.masked_fill(mask, 0.0)

    return layer


@pytest.mark.parametrize("mask", NEVER)
def test_a_gate_is_found_behind_a_mask_that_masks_nothing(mask: str) -> None:
    graph = traced(_layer(NEVER[mask]), SHAPES, "cpu")
    torch.manual_seed(0)
    values = [torch.randn(shape).to(dtype) for shape, dtype in SHAPES[:-1]]
    values[1][0] = torch.nan
    ends = torch.linspace(0, ROWS * CHOSEN, EXPERTS + 1)[1:].to(torch.int32)
    expected = run(graph, *values, ends)
    assert len(graph.find_nodes(op="call_function", target=where)) == 2
    assert list(activations(graph)) == []
    drop_masks(graph)
    (found,) = activations(graph)
    assert found.fused.name == "silu-mul"
    assert not graph.find_nodes(op="call_function", target=where)
    graph.lint()
    assert torch.equal(run(graph, *values, ends), expected)


@pytest.mark.parametrize("mask", PERHAPS)
def test_a_mask_that_may_mask_a_row_stays(mask: str) -> None:
    graph = traced(_layer(PERHAPS[mask]), SHAPES, "cpu")
    drop_masks(graph)
    assert len(graph.find_nodes(op="call_function", target=where)) == 2


def test_a_mask_that_is_an_input_stays() -> None:
    def masked(x: Tensor, up: Tensor, ends: Tensor, mask: Tensor) -> Tensor:
        return F.grouped_mm(x, up.mT, offs=ends).masked_fill(mask, 0.0)

    operands = [SHAPES[0], SHAPES[2], SHAPES[4], ((ROWS * CHOSEN, 1), torch.bool)]
    graph = traced(masked, operands, "cpu")
    drop_masks(graph)
    assert len(graph.find_nodes(op="call_function", target=where)) == 1
