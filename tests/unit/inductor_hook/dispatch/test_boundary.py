"""A problem keeps its kernel: what torch does once for want of one it does until `decide_again`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
import torch

from tilecast.heuristics.errors import TilecastError
from tilecast.inductor_hook import eager
from tilecast.inductor_hook.dispatch import plan
from tilecast.inductor_hook.run import static
from tilecast.inductor_hook.select import selection
from tilecast.kernels.build.builder import ObjectBuilder
from tilecast.kernels.spec import KernelSpec

M, N, K = 32, 64, 128


def _operands() -> tuple[torch.Tensor, torch.Tensor]:
    a, b = (torch.randn(shape).bfloat16() for shape in ((M, K), (N, K)))
    return a, b.T


def test_torch_goes_on_with_what_it_did_while_a_kernel_was_compiled(
    switch: list[KernelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = False
    monkeypatch.setattr(ObjectBuilder, "ready", lambda self, spec: compiled)
    a, b = _operands()
    expected = torch.mm(a, b)
    eager.enable()
    assert torch.equal(torch.mm(a, b), expected)
    compiled = True
    torch.mm(a, b)
    plan._plan.cache_clear()  # as after 4,096 other problems
    torch.mm(a, b)
    assert switch == []
    torch.mm(a[:16], b)
    assert len(switch) == 1, "another problem has its kernel from the first call on"
    eager.decide_again()
    torch.mm(a, b)
    assert len(switch) == 2
    eager.disable()
    compiled = False
    static._loaded.clear()
    eager.enable(power="burst")
    torch.mm(a, b)
    assert len(switch) == 2
    compiled = True
    eager.enable(power="burst")
    torch.mm(a, b)
    assert len(switch) == 3, "enabling decides anew"


@pytest.mark.parametrize("multiply", [torch.mm, eager.mm])
def test_a_kernel_that_fails_once_is_not_tried_again_before_the_boundary(
    switch: list[KernelSpec], monkeypatch: pytest.MonkeyPatch, multiply: Callable
) -> None:
    a, b = _operands()
    expected = torch.mm(a, b)
    eager.enable()
    working, broken = static.load_kernel, True

    def load(spec: KernelSpec, *rest: Any) -> Callable[..., object]:
        kernel = working(spec, *rest)

        def launch(*tensors: Any) -> None:
            if broken:
                raise RuntimeError("injected")
            kernel(*tensors)

        return launch

    monkeypatch.setattr(static, "load_kernel", load)
    assert torch.equal(multiply(a, b), expected)
    broken = False
    multiply(a, b)
    plan._plan.cache_clear()
    multiply(a, b)
    assert switch == []
    eager.decide_again()
    multiply(a, b)
    assert len(switch) == 1


def test_a_kernel_that_does_not_compile_is_said_once(
    switch: list[KernelSpec], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[KernelSpec] = []

    def ready(builder: ObjectBuilder, spec: KernelSpec) -> bool:
        asked.append(spec)
        raise TilecastError("injected")

    monkeypatch.setattr(ObjectBuilder, "ready", ready)
    eager.enable()
    a, b = _operands()
    for _ in range(5):
        torch.mm(a, b)
    assert len(asked) == 1, "it is tried at every call"
    (said,) = caplog.records
    assert "failed (TilecastError: injected); PyTorch's own kernels are used" in said.getMessage()


def test_threads_that_meet_a_problem_together_do_alike(
    switch: list[KernelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = Event(), Event()

    def ready(builder: ObjectBuilder, spec: KernelSpec) -> bool:
        if asked.is_set():
            return True  # it was compiled in between
        asked.set()
        assert go_on.wait(60)
        return False

    monkeypatch.setattr(ObjectBuilder, "ready", ready)
    a, b = _operands()
    eager.enable()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(torch.mm, a, b)
        assert asked.wait(60)
        second = threads.submit(torch.mm, a, b)
        go_on.set()
        assert torch.equal(first.result(), second.result())
    assert switch == []


@pytest.mark.parametrize("multiply", [torch.mm, eager.mm])
def test_nothing_is_loaded_nor_compiled_while_a_graph_is_captured(
    switch: list[KernelSpec], monkeypatch: pytest.MonkeyPatch, multiply: Callable
) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("in a capture")

    a, b = _operands()
    expected = torch.mm(a, b)
    eager.enable()
    capturing = True
    monkeypatch.setattr(static, "_is_capturing", lambda: capturing)
    with monkeypatch.context() as patch:
        patch.setattr(ObjectBuilder, "ready", refused)
        patch.setattr(ObjectBuilder, "wait", refused)
        assert torch.equal(multiply(a, b), expected)
    capturing = False
    multiply(a, b)
    assert switch == []
    eager.decide_again()
    multiply(a, b)
    assert len(switch) == 1


def test_a_kernel_that_is_loaded_serves_other_extents_in_a_capture(
    switch: list[KernelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = selection.decided
    first: list[Any] = []

    def decided(*arguments: Any) -> Any:
        first.append(chosen(*arguments))
        return first[0]  # the same config for all extents

    monkeypatch.setattr(selection, "decided", decided)
    a, b = _operands()
    eager.enable()
    torch.mm(a, b)
    monkeypatch.setattr(static, "_is_capturing", lambda: True)
    torch.mm(a[:16], b)
    assert len(switch) == 2
