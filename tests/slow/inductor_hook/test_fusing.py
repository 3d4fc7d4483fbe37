"""Whole graphs with nodes in place of products that are not fused: compiled on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch._inductor import config
from torch.fx import Graph

from tilecast.inductor_hook import install, installed
from tilecast.inductor_hook.fuse import fx
from tilecast.inductor_hook.fuse.fx import PRODUCTS, aten

M, N, K = 48, 64, 32
INT8 = torch.int8
Function = Callable[..., Any]
Tensor = torch.Tensor


@pytest.fixture
def on_the_cpu(asked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the CPU pass for a GPU where graphs are rewritten; no tilecast kernel is for it."""
    monkeypatch.setattr(fx, "DEVICE", "cpu")


def _compiled(function: Function, *operands: Tensor) -> Any:
    torch._dynamo.reset()
    with config.patch(force_disable_caches=True):
        return torch.compile(function, fullgraph=True)(*operands)


def _tensors() -> list[Tensor]:
    torch.manual_seed(0)
    x, w, b = (torch.randn(shape).bfloat16() for shape in ((2, M // 2, K), (K, K), (K,)))
    return [x, w, (w * 32).to(INT8), torch.rand(K).bfloat16(), b]


def _quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """A row of x as int8, and what that is scaled by."""
    scales = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-5)
    whole = torch.clamp(torch.round(x / scales), -128, 127).to(INT8)
    return whole.reshape(-1, K), scales.reshape(-1, 1)


def _layers(x: Tensor, w: Tensor, w8: Tensor, s: Tensor, b: Tensor) -> Tensor:
    """One of each form; each reads what the one before it gives."""
    x = F.gelu(F.linear(x, w, b))
    x = F.relu(F.linear(x, w))
    up, gate = F.linear(x, torch.cat((w, w.neg())), torch.cat((b, b))).chunk(2, -1)
    x = up * F.gelu(gate)
    x = F.linear(x, w8.to(x.dtype)) * s + b
    x = F.linear(x, w8.to(x.dtype), b)
    x = (torch.mm(x.reshape(-1, K), w8.t().to(x.dtype)) * s).reshape(x.shape) + b
    a, column = _quantized(x)
    return ((aten._int_mm(a, w8.t()) * column).to(s.dtype) * s).reshape(x.shape) + b


def test_what_is_not_fused_is_lowered_as_without_tilecast(on_the_cpu: None) -> None:
    """Bit by bit, all forms in one graph."""
    operands, seen = _tensors(), []

    def see(graph: Graph) -> None:
        seen.append([one.target for one in graph.nodes])

    with torch.no_grad(), config.patch(post_grad_custom_post_pass=see):
        with installed(1, fuse=True):
            found = _compiled(_layers, *operands)
        names = {"gelu": 1, "relu": 1, "mul-gelu": 1, "int8 weight": 3, "int8 product": 1}
        told = {name: counters["tilecast"][f"not fused: {name}"] for name in names}
        with installed(1, fuse=False):
            expected = _compiled(_layers, *operands)
    assert told == names
    assert torch.equal(found, expected)
    fused, stock = seen
    assert not set(PRODUCTS) & set(fused), "a user's own pass sees what was put in place"
    assert set(PRODUCTS) <= set(stock)


def test_a_symbolic_m_gets_no_guard(on_the_cpu: None) -> None:
    x, *others = _tensors()
    torch._dynamo.mark_dynamic(x, 1)
    install(fuse=True)
    torch._dynamo.reset()
    with torch.no_grad(), config.patch(force_disable_caches=True):
        layers = torch.compile(_layers, fullgraph=True)
        for rows in (x, x[:, :20].clone()):
            expected = _layers(rows, *others).float()
            assert (layers(rows, *others) - expected).norm() / expected.norm() < 0.02
    assert counters["tilecast"]["not fused: int8 weight"] == 3, "compiled once"


@pytest.mark.parametrize("name", ["gelu", "relu"])
def test_training_graphs_keep_what_backward_reads(on_the_cpu: None, name: str) -> None:
    """The derivative of a gelu wants what lies between; that of a relu its result alone."""
    torch.manual_seed(0)

    def layer(x: Tensor, weight: Tensor, bias: Tensor, second: Tensor) -> Tensor:
        return F.linear(getattr(F, name)(F.linear(x, weight, bias)), second)

    shapes = ((M, K), (N, K), (N,), (K, N))
    operands = [torch.randn(shape).bfloat16().requires_grad_() for shape in shapes]
    gradient = torch.randn(M, K).bfloat16()
    expected = torch.autograd.grad(layer(*operands), operands, gradient)
    install(fuse=True)
    found = torch.autograd.grad(_compiled(layer, *operands), operands, gradient)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.02, atol=0.05)
    tried = {event for event in counters["tilecast"] if "fused" in event}
    assert tried == ({"not fused: relu"} if name == "relu" else set())
