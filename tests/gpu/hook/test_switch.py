"""The switch, which routes torch's own functions to our kernels where a model chooses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from on_gpu.hook import forget_kernels, texts
from on_gpu.launches import captured, check_replays
from on_gpu.layers import FACTORS, SCALED, SCALES, added, as_in_torch, int_mm, linear, stacked
from on_gpu.tensors import TOLERANCE, Function, K, M, N, bf16, error, exact
from torch._subclasses import FakeTensorMode

from tilecast.inductor_hook import eager
from tilecast.kernels.build.builder import object_builder
from tilecast.kernels.objects import cache as object_cache

Switch = Callable[..., None]


def _settled(call: Callable[[], Any]) -> Any:
    """The result of a call once the kernels that it wants are compiled."""
    call()
    eager.decide_again()
    return call()


ROUTED: dict[str, tuple[Function, tuple[tuple[int, ...], ...], str]] = {
    "mm": (lambda x, w: torch.mm(x, w.T), ((M, K), (N, K)), "bf16:rcr"),
    "bmm": (stacked, ((3, M, K), (3, 264, K)), "bf16:rcr"),
    "matmul": (linear, ((2, M, K), (N, K)), "bf16:rcr"),
    "linear": (F.linear, ((2, M, K), (N, K), (N,)), "bf16:rcr:bias"),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w.T), ((M, K), (N, K), (N,)), "bf16:rcr:bias"),
}
"""A function of torch, the shapes of its operands, and those of our kernel."""


@pytest.mark.parametrize("kind", ROUTED)
def test_the_switch_routes_and_gives_back(switched_on: Switch, kind: str) -> None:
    function, shapes, text = ROUTED[kind]
    operands = [bf16(*shape) for shape in shapes]
    before = function(*operands)
    switched_on()
    result = _settled(lambda: function(*operands))
    assert error(result, exact(function, *operands)) < TOLERANCE
    assert texts() == {text}
    eager.disable()
    forget_kernels()
    assert torch.equal(function(*operands), before)
    assert texts() == set()


@pytest.mark.parametrize("steps", FACTORS)
def test_the_switch_routes_a_matrix_where_the_model_knows_such(
    switched_on: Switch, steps: str
) -> None:
    function = added(steps)
    operands = bf16(M, N) * 10, bf16(M, K), bf16(N, K)
    switched_on("bf16:rcr bf16:rcr:c")
    result = _settled(lambda: function(*operands))
    assert error(result, exact(function, *operands)) < TOLERANCE
    assert texts() == {f"bf16:rcr:{steps}"}
    switched_on("bf16:rcr")
    _settled(lambda: function(*operands))
    assert texts() == set()


@pytest.mark.parametrize(
    "text", ["int8:rcr>int32", *(f"e4m3:rcr>bf16{a}:{s}" for a in ("", "@fp32") for s in SCALES)]
)
@pytest.mark.parametrize("name", SCALED)
def test_the_switch_routes_8_bits(switched_on: Switch, name: str, text: str) -> None:
    inputs = as_in_torch(text)
    function = SCALED[name]("@" not in text) if "e4m3" in text else int_mm
    expected = function(*inputs)
    switched_on(text)
    assert error(_settled(lambda: function(*inputs)), expected) < TOLERANCE
    assert texts() == {text}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_switch_trains_under_autocast(switched_on: Switch, dtype: torch.dtype) -> None:
    """Weights in float32, as a training loop keeps them; dtypes and values as torch's."""
    operands = [bf16(*shape).float().requires_grad_() for shape in ((M, K), (N, K), (N,))]

    def step() -> list[torch.Tensor]:
        with torch.autocast("cuda", dtype=dtype):
            result = F.linear(*operands)
        return [result.detach(), *torch.autograd.grad(result.float().sum(), operands)]

    expected = step()
    switched_on()
    for mine, theirs in zip(_settled(step), expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert error(mine, theirs) < TOLERANCE
    assert any(text.endswith(":rcr:bias") for text in texts())


@pytest.mark.parametrize("k", [1, K])
def test_the_switch_below_a_mode(k: int) -> None:
    # As of PyTorch 2.15 torch's own kernel is written in Python, for a k of 1.
    a, b = bf16(4, 77, k), bf16(4, 264, k).mT
    expected = torch.bmm(a.float(), b.float())
    python = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)
    for switched in (eager.enable, eager.disable, eager.enable, eager.disable):
        switched()
        with FakeTensorMode(), torch._C._ExcludeDispatchKeyGuard(python):
            result = torch.bmm(a, b)
        assert error(result, expected) < TOLERANCE


def test_the_switch_leaves_to_torch_what_it_wins(switched_on: Switch) -> None:
    a, b, c = bf16(M, K), bf16(N, K).T, bf16(M, N)
    calls = (
        lambda: torch.mm(a, b),
        lambda: torch.addmm(c, a, b, alpha=0.5),
        lambda: torch.mm(a.float(), b.float()),
        lambda: torch.mm(a[:, 1:], b[1:]),
    )
    expected = [call() for call in calls]
    switched_on(leaves=True)
    for call, before in zip(calls, expected, strict=True):
        assert torch.equal(_settled(call), before)
    assert texts() == set()


def test_the_switch_waits_for_no_compiler(
    switched_on: Switch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "objects"))
    monkeypatch.setattr(object_cache, "shipped", lambda key: None)  # as from a checkout
    a, b = bf16(M, K), bf16(N, K).T
    before = torch.mm(a, b)
    switched_on()
    assert torch.equal(torch.mm(a, b), before)
    object_builder().settle()
    assert torch.equal(torch.mm(a, b), before), "it changes its kernel without being told"
    assert texts() == set()
    _settled(lambda: torch.mm(a, b))
    assert texts() == {"bf16:rcr"}


def test_what_the_switch_routes_is_captured(switched_on: Switch) -> None:
    x, weight, bias = bf16(M, K), bf16(N, K), bf16(N)
    switched_on()
    _settled(lambda: F.linear(x, weight, bias))
    check_replays(lambda: F.linear(x, weight, bias), x)
    assert texts() == {"bf16:rcr:bias"}


def test_no_kernel_is_loaded_while_a_graph_is_captured(switched_on: Switch) -> None:
    """As behind a warm-up in which torch multiplied, because it was not compiled yet."""
    x, weight = bf16(M, K), bf16(N, K)
    switched_on()
    _settled(lambda: F.linear(x, weight))
    forget_kernels()
    graph, result = captured(lambda: F.linear(x, weight))
    assert texts() == set()
    x.normal_()
    graph.replay()
    assert error(result, x.float() @ weight.float().T) < TOLERANCE
    F.linear(x, weight)
    assert texts() == set()
    _settled(lambda: F.linear(x, weight))
    assert texts() == {"bf16:rcr"}
