"""Which choice a graph takes: the first at k = 1, else the fastest that is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from on_gpu import layers
from on_gpu.hook import this_gpu
from on_gpu.tensors import Function, K, M, N, bf16
from torch._dynamo.utils import counters
from torch._inductor import config

from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.select.selection import first
from tilecast.inductor_hook.settings import Settings
from tilecast.inductor_hook.timing import cuda_graph, decide, power_limit


def test_k_1_benchmarks_nothing(close: Callable[..., str]) -> None:
    for function, operands in (
        (layers.linear, (bf16(M, K), bf16(N, K))),
        (layers.BIASED["of nn.Linear"][0], (bf16(N), bf16(M, K), bf16(N, K))),
    ):
        code = close(function, *operands, k=1, backends="ATEN,TRITON,TILECAST")
        assert counters["inductor"]["select_algorithm_autotune"] == 0
        assert code.count("StaticMatmul.named") == 1


@pytest.mark.parametrize("deterministic", [False, True])
def test_k_1_times_aten_where_it_may_win(close: Callable[..., str], deterministic: bool) -> None:
    gpu = this_gpu()
    extents = ((m, 4096, k) for m in (4096, 1024, 256) for k in (4096, 1024, 8192))
    m, n, k = next(it for it in extents if first(Settings(k=1), GemmProblem(*it), gpu).deferred)
    operands = bf16(m, k), bf16(n, k)
    for backends, aten in (("ATEN,TRITON,TILECAST", True), ("TILECAST", False)):
        with config.patch(deterministic=deterministic):
            code = close(layers.linear, *operands, k=1, backends=backends)
        timed = aten and not deterministic
        assert counters["inductor"]["select_algorithm_autotune"] == timed
        won = not aten or (timed and counters["tilecast"]["won"])
        assert code.count("StaticMatmul.named") == won


def test_stock_choices_compete(close: Callable[..., str]) -> None:
    close(layers.linear, bf16(M, K), bf16(N, K), backends="ATEN,TILECAST")
    assert counters["inductor"]["select_algorithm_autotune"] == 1
    assert counters["tilecast"]["won"] + counters["tilecast"]["lost"] == 1


COMPETING: dict[str, tuple[Function, Callable[[], tuple[torch.Tensor, ...]]]] = {
    "mm": (layers.linear, lambda: (bf16(M, K), bf16(N, K))),
    # For which Inductor also offers to split k into a batch.
    "long k": (layers.linear, lambda: (bf16(64, 8192), bf16(64, 8192))),
    "addmm": (layers.added("c"), lambda: (bf16(N), bf16(M, K), bf16(N, K))),
    "bmm": (layers.stacked, lambda: (bf16(4, M, K), bf16(4, 264, K))),
    "activation": (lambda x, w: torch.relu(x @ w.T), lambda: (bf16(M, K), bf16(N, K))),
    "int8": (layers.int_mm, lambda: layers.as_in_torch("int8:rcr>int32")),
    "fp8": (layers.scaled_mm(True), lambda: layers.as_in_torch("e4m3:rcr>bf16:row-scales")),
    "int8 weight": (layers.weight_only(""), lambda: (*layers.weight_only_operands("", M),)),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", COMPETING)
@pytest.mark.parametrize("backends", ["ATEN,TRITON,TILECAST", "TILECAST"])
def test_what_is_benchmarked_is_benchmarked_in_graphs(
    compiled: Callable, monkeypatch: pytest.MonkeyPatch, kind: str, backends: str
) -> None:
    from torch._inductor import select_algorithm

    function, operands = COMPETING[kind]
    in_graphs: list[float] = []
    told: list[float] = []
    in_a_graph = cuda_graph._milliseconds

    def noted(calls: Any) -> float:
        in_graphs.append(in_a_graph(calls))
        return in_graphs[-1]

    monkeypatch.setattr(cuda_graph, "_milliseconds", noted)
    monkeypatch.setattr(decide, "at_the_limit", lambda *_: {})
    select_algorithm.add_feedback_saver(lambda found, *_: told.extend(found.values()))
    try:
        compiled(function, *operands(), backends=backends)
    finally:
        select_algorithm.clear_feedback_savers()
    assert len(in_graphs) > 2
    assert all(5e-4 < taken < 1 for taken in in_graphs)
    assert {taken for taken in told if taken < 1e3} <= set(in_graphs)


@torch.no_grad()
@pytest.mark.alone
@pytest.mark.parametrize("backends", ["ATEN,TILECAST", "ATEN,TRITON,TILECAST"])
def test_choices_near_the_fastest_race_at_the_power_limit(
    close: Callable[..., str], monkeypatch: pytest.MonkeyPatch, backends: str
) -> None:
    """Where those of a large product are slower than on a cool card, and of a small one none is."""
    told: list[tuple[dict[Any, float], dict[Any, float]]] = []
    at_the_limit = power_limit.at_the_limit

    def noted(timings: dict[Any, float], *rest: Any) -> dict[Any, float]:
        cool = dict(timings)
        told.append((cool, at_the_limit(timings, *rest)))
        return told[-1][1]

    races: list[list[float]] = []
    race = power_limit.race

    def raced(graphs: Any, device: int) -> list[float]:
        limited = race(graphs, device)
        cool = [captured.milliseconds for captured in graphs]
        races.append([time / before for time, before in zip(limited, cool, strict=True)])
        return limited

    monkeypatch.setattr(decide, "at_the_limit", noted)
    monkeypatch.setattr(power_limit, "race", raced)
    for rows, racing in ((4096, True), (16, False)):
        close(layers.linear, bf16(rows, 4096), bf16(4096, 4096), backends=backends)
        assert len(told) == racing
        for cool, raised in told:
            assert len(raised) > 1
            assert all(raised[choice] >= cool[choice] for choice in raised)
            assert min(raised.values()) <= 1.05 * min(cool.values())
        told.clear()
    (slower,) = races
    assert [ratio for ratio in slower if not 1.02 < ratio < 1.5] == []
