"""Timing choices in a CUDA graph: what is noted in place of Inductor's benchmark, and its operands.

What is captured and how long it takes, tests/gpu/hook/test_choices.py sees to.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from hook_graph import lowered, lowering, node
from torch._inductor import config
from torch._inductor.codegen.cutlass.kernel import CUTLASSTemplateCaller
from torch._inductor.runtime.benchmarking import benchmarker

from tilecast.inductor_hook import install
from tilecast.inductor_hook.patch.torch_versions import benchmarks_calls_here, torch_version
from tilecast.inductor_hook.timing import choice_benchmark, cuda_graph
from tilecast.inductor_hook.timing.choice_benchmark import Contest
from tilecast.inductor_hook.timing.cuda_graph import set_count
from tilecast.kernels.spec import KernelSpec


def _stock(function: Callable[..., object]) -> Callable[..., float]:
    """A choice's benchmark, as Inductor writes them."""
    return lambda *inputs, out: benchmarker.benchmark(function, inputs, {"out": out})


def test_what_would_be_benchmarked_runs_once_and_is_noted() -> None:
    a, out, calls = torch.ones(2), torch.zeros(2), []
    stock = benchmarker.benchmark
    with cuda_graph._noted(calls):
        assert _stock(torch.neg)(a, out=out) == 0.0
    assert out.tolist() == [-1, -1]
    out.zero_()
    (call,) = calls
    call()
    assert out.tolist() == [-1, -1]
    assert benchmarker.benchmark == stock
    assert "benchmark" not in vars(benchmarker)


def test_what_a_first_call_benchmarks_itself_is_timed() -> None:
    times, calls = [], []

    def compiles(a: torch.Tensor, out: torch.Tensor) -> None:
        # By name, as Triton's own autotuning in generated code asks for it.
        times.append(benchmarker.benchmark(fn=lambda: a.sum(), device="cpu"))

    with cuda_graph._noted(calls):
        _stock(compiles)(torch.ones(2), out=torch.ones(2))
        _stock(torch.neg)(torch.ones(2), out=torch.ones(2))
    assert len(calls) == 2
    (time,) = times
    assert 0 < time < 1e3


def test_threads_that_note_at_once_each_note_their_own() -> None:
    """Whoever ends first: nothing stays in place of the benchmark."""
    begun, ended = threading.Event(), threading.Event()
    theirs, ours = [], []

    def note() -> None:
        with cuda_graph._noted(theirs):
            begun.set()
            ended.wait()
            benchmarker.benchmark(torch.neg, (torch.ones(2),), {})

    thread = threading.Thread(target=note)
    with cuda_graph._noted(ours):
        thread.start()
        begun.wait()
        benchmarker.benchmark(torch.abs, (torch.ones(2),), {})
    assert benchmarker.benchmark(torch.abs, (torch.ones(2),), {}) > 0
    ended.set()
    thread.join()
    assert [(call.func) for call in (*ours, *theirs)] == [torch.abs, torch.neg]
    assert "benchmark" not in vars(benchmarker)


def test_what_another_package_put_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs(*_: Any, **__: Any) -> float:
        return 7.0

    monkeypatch.setitem(vars(benchmarker), "benchmark", theirs)
    with cuda_graph._noted([]):
        assert benchmarker.benchmark(torch.neg, (torch.ones(2),), {}) == 0.0
    assert benchmarker.benchmark is theirs


def test_a_choice_may_refuse_to_say_how_it_is_benchmarked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As decompose-k does in 2.15."""

    class Choice:
        bmreq = property(lambda self: 1 / 0)

        def benchmark(self, *inputs: torch.Tensor, out: torch.Tensor) -> float:
            return 3.0

    monkeypatch.setattr(
        choice_benchmark, "benchmark", lambda stock, *inputs, out, keep: stock(out=out)
    )
    choice = Choice()
    Contest(None).enter(choice)
    assert choice.benchmark(out=torch.ones(2)) == 3.0


class _Choice:
    """A choice whose kernel Inductor loads for each benchmark."""

    def __init__(self, milliseconds: float) -> None:
        self.bmreq: Any = _Request()
        self.milliseconds = milliseconds
        self.error: Callable[[], Exception | None] = lambda: None

    def benchmark(self, a: torch.Tensor, out: torch.Tensor) -> float:
        return self.bmreq.benchmark(a, out=out)


@pytest.fixture
def reset(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Gives the milliseconds of the graphs that are gone; a choice takes what it says, or raises
    its ``error``."""
    gone: list[float] = []

    def timed(stock: Any, *inputs: Any, out: Any, keep: Callable) -> float:
        choice = stock.__self__
        if error := choice.error():
            raise error
        stock(*inputs, out=out)
        milliseconds = choice.milliseconds
        graph = MagicMock(reset=lambda: gone.append(milliseconds))
        keep(cuda_graph.Captured((), 1, graph, MagicMock(), MagicMock(), milliseconds))
        return milliseconds

    monkeypatch.setattr(choice_benchmark, "benchmark", timed)
    return gone


def _entered(held: Contest, *choices: _Choice) -> tuple[_Choice, ...]:
    for choice in choices:
        held.enter(choice)
    return choices


def test_those_near_the_fastest_stay_loaded_until_a_contest_is_closed(reset: list[float]) -> None:
    held = Contest(0.05)
    slow, near, fast, again = _entered(held, *map(_Choice, (1.2, 1.04, 1.0, 1.03)))
    a, out = torch.ones(2), torch.ones(2)
    for choice in (slow, near, fast, again):
        assert choice.benchmark(a, out=out) == choice.milliseconds
    assert {*held.graphs} == {near, fast, again}
    assert reset == [1.2]
    assert [one.bmreq.unloaded for one in (slow, near, fast)] == [1, 0, 0]
    # Timed once more: the graph of its first time goes before its kernel does.
    near.milliseconds = 1.06
    near.benchmark(a, out=out)
    assert (reset, near.bmreq.unloaded) == ([1.2, 1.04, 1.06], 2)
    held.close()
    assert held.graphs == {}
    assert sorted(reset) == [1.0, 1.03, 1.04, 1.06, 1.2]
    assert [one.bmreq.unloaded for one in (fast, again)] == [1, 1]
    # As if nothing had been: Inductor unloads it after a benchmark.
    fast.bmreq.benchmark(a, out=out)
    assert fast.bmreq.unloaded == 2


@pytest.mark.parametrize("in_vain", [False, True])
def test_on_a_full_card_kept_graphs_go_first(reset: list[float], in_vain: bool) -> None:
    """They hold what their launches allocate; without any, Inductor times as ever."""
    held = Contest(0.05)
    small, large = _entered(held, _Choice(1.0), _Choice(1.04))
    full = torch.OutOfMemoryError("CUDA out of memory")
    large.error = lambda: full if in_vain or not reset else None
    small.benchmark(torch.ones(2), out=torch.ones(2))
    assert (large.benchmark(torch.ones(2), out=torch.ones(2)) == 1.04) is not in_vain
    assert reset == [1.0]
    assert {*held.graphs} == (set() if in_vain else {large})
    assert small.bmreq.unloaded == 1


def test_without_a_race_a_graph_goes_before_its_kernel_does(
    reset: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    choice, seen = _Choice(1.0), []
    monkeypatch.setattr(_Request, "cleanup_run_fn", lambda request: seen.append([*reset]))
    held = Contest(None)
    held.enter(choice)
    choice.benchmark(torch.ones(2), out=torch.ones(2))
    assert (seen[-1], held.graphs) == ([1.0], {})


def test_a_choice_that_fails_leaves_the_graphs_of_others(reset: list[float]) -> None:
    """Inductor passes over a config of Triton's that does not fit, and the others still race."""
    held = Contest(0.05)
    good, broken = _entered(held, _Choice(1.0), _Choice(1.0))
    broken.error = lambda: RuntimeError("injected")
    good.benchmark(torch.ones(2), out=torch.ones(2))
    with pytest.raises(RuntimeError, match="injected"):
        broken.benchmark(torch.ones(2), out=torch.ones(2))
    assert reset == []
    assert ({*held.graphs}, good.bmreq.unloaded, broken.bmreq.unloaded) == ({good}, 0, 1)


def test_without_memory_for_copies_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    a, out = torch.ones(4), torch.ones(4)
    made = cuda_graph._copy

    def copy(tensor: torch.Tensor, number: int) -> torch.Tensor:
        if number > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return made(tensor, number)

    monkeypatch.setattr(cuda_graph, "_copy", copy)
    assert cuda_graph._operand_sets([a, out], l2=32) == [[a, out]]
    assert a not in cuda_graph._copies


def test_what_fails_is_the_callers_and_noted_nowhere() -> None:
    calls = []
    with pytest.raises(ZeroDivisionError), cuda_graph._noted(calls):
        _stock(lambda a, out: 1 / 0)(torch.ones(2), out=torch.ones(2))
    assert calls == []
    assert "benchmark" not in vars(benchmarker)


@pytest.mark.parametrize(
    ("megabytes", "count"), [(1000, 1), (240, 1), (239, 2), (60, 4), (5, 40), (0, 40)]
)
def test_sets_exceed_the_cache_four_times(megabytes: int, count: int) -> None:
    assert set_count(megabytes << 20, 60 << 20) == count


def test_sets_lie_apart_as_their_tensors_lie() -> None:
    whole = torch.arange(64.0)
    view = whole[8:].as_strided((4, 5), (1, 8), 9)
    row = torch.arange(5.0).expand(4, 5)
    first, *others = cuda_graph._operand_sets([view, row], l2=276)
    assert len(others) == 3
    assert first[0] is view
    for a, b in others:
        assert (a.stride(), a.storage_offset(), b.stride()) == ((1, 8), 9, (0, 1))
        assert torch.equal(a, view)
        assert torch.equal(b, row)
    storages = {tensor.untyped_storage().data_ptr() for one in (first, *others) for tensor in one}
    assert len(storages) == 8


def test_copies_are_allocated_on_the_callers_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of the side stream would serve nothing but the next benchmark of this thread."""
    streams: list[object] = ["the caller's"]
    copied_on: list[object] = []

    @contextmanager
    def on(stream: object) -> Iterator[None]:
        streams.append(stream)
        yield
        streams.pop()

    def operand_sets(tensors: list[torch.Tensor], l2: int) -> list[list[torch.Tensor]]:
        copied_on.append(streams[-1])
        return [tensors]

    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", MagicMock())
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(cuda_graph, "stream", lambda device: "the side stream")
    monkeypatch.setattr(cuda_graph, "l2_bytes", lambda device: 1)
    monkeypatch.setattr(cuda_graph, "_operand_sets", operand_sets)
    timed_on: list[object] = []

    def stock(*inputs: torch.Tensor, out: torch.Tensor) -> float:
        timed_on.append(streams[-1])
        return 1.0

    assert cuda_graph.benchmark(stock, torch.ones(2), out=torch.ones(2)) == 1.0
    assert (copied_on, timed_on) == (["the caller's"], ["the side stream"])


def test_copies_are_made_once_and_go_with_their_tensor() -> None:
    tensor = torch.ones(4)
    copy = cuda_graph._copy(tensor, 2)
    assert cuda_graph._copy(tensor, 2) is copy
    alive = weakref.ref(copy)
    del copy
    gc.collect()
    assert alive() is not None
    del tensor
    gc.collect()
    assert alive() is None


class _Request:
    """Unloads its kernel after each benchmark, as Inductor's do."""

    def __init__(self) -> None:
        self.kernel: Callable | None = None
        self.unloaded = 0

    def benchmark(self, a: torch.Tensor, out: torch.Tensor) -> float:
        self.kernel = torch.neg

        def run() -> None:
            assert self.kernel
            self.kernel(a, out=out)

        try:
            return benchmarker.benchmark(run, device="cpu")
        finally:
            self.cleanup_run_fn()

    def cleanup_run_fn(self) -> None:
        self.kernel, self.unloaded = None, self.unloaded + 1


@pytest.mark.parametrize(
    ("backends", "options", "timed"),
    [
        ("ATEN,TRITON,TILECAST", {}, True),
        ("TILECAST", {}, True),
        ("ATEN,TRITON,TILECAST", {"autotune_in_subproc": True}, False),
        ("ATEN,TRITON,TILECAST", {"k": 1025}, True),  # which tilecast does not cover
    ],
)
def test_all_choices_are_timed_in_graphs(
    hook: list[KernelSpec], backends: str, options: dict[str, Any], timed: bool
) -> None:
    k = options.pop("k", 1024)
    with lowering(), config.patch(max_autotune_gemm_backends=backends, **options):
        install(k=3)
        a, b = node("a", [64, k]), node("b", [k, 4096], [1, k])
        choices = lowered(torch.ops.aten.mm, a, b)
    assert choices
    assert {"benchmark" in vars(choice) for choice in choices} == {timed}


ELSEWHERE = ("autotune_in_subproc", "pipeline_max_autotune_gemm")
IN_GRAPHS = "autotune_cudagraph_benchmarking"


@pytest.mark.parametrize(
    "setting", [*ELSEWHERE, *([IN_GRAPHS] if torch_version() >= (2, 15) else [])]
)
def test_what_inductor_benchmarks_elsewhere_or_in_graphs_is_left_to_it(setting: str) -> None:
    assert benchmarks_calls_here([])
    with config.patch(setting, True):
        assert not benchmarks_calls_here([])
    cutlass = CUTLASSTemplateCaller.__new__(CUTLASSTemplateCaller)
    assert not benchmarks_calls_here([cutlass])
