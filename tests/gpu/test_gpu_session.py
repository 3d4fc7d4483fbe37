"""Timing on a GPU: plausible, repeatable, and not stopped by a kernel that does not end."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch

from tilecast.data_collection.gpu.environment import cards, describe, gpu_states
from tilecast.data_collection.timing import gpu_session
from tilecast.data_collection.timing.gpu_session import GpuSession, wait
from tilecast.data_collection.timing.protocol import KernelFailure
from tilecast.data_collection.timing.tensors import empty_out, random_inputs
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import spec_for
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

if TYPE_CHECKING:
    from compiled_kernels import Kernels

PROBLEM = GemmProblem(512, 4096, 4096)
ONE_SECOND = 2_000_000_000
"""Clock cycles; a little more than a second at 1.98 GHz."""


@pytest.fixture(scope="module")
def announcements() -> list[KernelSpec | None]:
    return []


@pytest.fixture(scope="module")
def session(kernels: Kernels, announcements: list[KernelSpec | None]) -> GpuSession:
    return GpuSession(kernels.objects, 0, announcements.append)


@pytest.fixture
def announced(announcements: list[KernelSpec | None]) -> list[KernelSpec | None]:
    """What the session has announced in this test."""
    announcements.clear()
    return announcements


def _medians(times: list[list[float]]) -> list[float]:
    return [statistics.median(rounds) for rounds in times]


@pytest.mark.alone
def test_times_are_those_of_the_hardware_and_repeat(kernels: Kernels, session: GpuSession) -> None:
    entrants = [*kernels.configs[:3], None]
    bench = session.bench(PROBLEM, careful=False)
    burst = bench.time(entrants, "burst", 6)
    sustained = bench.time(entrants, "sustained", 6)
    assert [len(rounds) for rounds in burst + sustained] == [6] * 8
    # 17.4 us at the data sheet's peak rate.
    assert all(17 < time < 1000 for rounds in burst + sustained for time in rounds)
    for cool, busy in zip(_medians(burst), _medians(sustained), strict=True):
        assert 1 / 1.5 < busy / cool < 1.5
    for regime, first in (("burst", burst), ("sustained", sustained)):
        again = _medians(bench.time(entrants, regime, 6))
        assert again == pytest.approx(_medians(first), rel=0.1)


def test_nothing_that_was_read_before_is_left_in_the_l2(session: GpuSession) -> None:
    numbers, sums = torch.randn(4096, 1536, device="cuda"), torch.empty(4096, device="cuda")
    read = partial(torch.sum, numbers, 1, out=sums)  # 24 MiB, two fifths of the L2

    def microseconds(between: Callable[[], object]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(ONE_SECOND // 5_000)  # the host is ahead
        read()
        between()
        start.record()
        read()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3

    def median(between: Callable[[], object]) -> float:
        return statistics.median(microseconds(between) for _ in range(30))

    nothing, once_more = median(lambda: None), median(read)
    assert nothing == pytest.approx(once_more, rel=0.1)
    assert median(session.clean_l2) > 1.15 * nothing


def test_finalists_are_timed_on_eight_sets_of_operands_and_the_rest_on_one_graph(
    kernels: Kernels, session: GpuSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = GemmProblem(4096, 8192, 8192)  # 750 us: a graph launches it once
    bench = session.bench(large, careful=False)
    met: list[int] = []

    def launch(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        met.append(a.data_ptr())
        torch.mm(a, b, out=out)

    monkeypatch.setattr(session, "_kernel", lambda spec: launch)
    config = kernels.configs[0]
    for rounds, graphs in ((8, 8), (3, 3)):
        met.clear()
        assert [len(times) for times in bench.time([config], "burst", rounds)] == [rounds]
        first, *captured = met  # a first launch comes before those in the graphs
        assert len(captured) == len(set(captured)) == graphs
        assert first == captured[0]


def test_careful_times_are_the_same_and_every_replay_is_announced(
    kernels: Kernels, session: GpuSession, announced: list[KernelSpec | None]
) -> None:
    entrants = [kernels.configs[0], None]
    usual = _medians(session.bench(PROBLEM, careful=False).time(entrants, "burst", 5))
    # Once each, before its first launch.
    specs = [spec_for(kernels.configs[0], PROBLEM)]
    assert [spec for spec in announced if spec] == specs
    announced.clear()
    careful = session.bench(PROBLEM, careful=True).time(entrants, "burst", 5)
    assert _medians(careful) == pytest.approx(usual, rel=0.1)
    assert announced.count(specs[0]) == 6


@pytest.mark.alone
def test_slow_entrant_is_given_up(kernels: Kernels, session: GpuSession) -> None:
    # The smallest tile multiplies mostly what others have loaded already: far from the best here.
    g = kernels.geometry()
    sizes = list(zip(g.tile_m * g.tile_n, g.stages, strict=True))
    slow = kernels.configs[sizes.index(min(sizes))]
    fast = kernels.configs[0]
    bench = session.bench(GemmProblem(2048, 4096, 4096), careful=False)
    everything = _medians(bench.time([fast, slow], "sustained", 4))
    assert everything[1] > 1.2 * everything[0]
    screened = bench.screen([fast, slow, None], 4, give_up=(1.1,))
    # Its first time is known once its second or third round has begun.
    assert len(screened[0]) == len(screened[2]) == 4
    assert len(screened[1]) in (1, 2, 3)
    # A kernel that is ten times as slow leaves the card cooler than the one that shows its level.
    ratio = everything[1] / everything[0]
    assert _medians(screened)[1] / _medians(screened)[0] == pytest.approx(ratio, rel=0.2)


def test_check_accepts_right_results_and_tells_wrong_ones(
    kernels: Kernels,
    session: GpuSession,
    announced: list[KernelSpec | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    specs = [*(KernelSpec(c, LINEAR_BF16) for c in kernels.configs), *kernels.others]
    specs += kernels.batched
    assert [session.check(spec) for spec in specs] == [None] * len(specs)
    assert [spec for spec in announced if spec] == specs

    def tile_left_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        torch.matmul(a, b, out=out)
        out[1984:2048, 128:152] = 0  # of the large problem only: 7e-5 of it

    def nothing(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        pass

    for launch, place, value in (
        (tile_left_out, "[1984:2048, 128:152]", "0"),
        (nothing, "[0:2056, 0:10008]", "nan"),
    ):
        monkeypatch.setattr(session, "_kernel", lambda spec, launch=launch: launch)
        found = session.check(specs[0])
        assert found is not None
        assert f"wrong elements within {place}, the first {value} instead of " in found
        assert found.endswith(", on 2056x10008x520")


@pytest.mark.parametrize("extents", [(1000, 2056, 4104), (512, 4096, 4096), (200, 4096, 1032)])
def test_kernels_are_right_as_they_are_used(
    kernels: Kernels, session: GpuSession, extents: tuple[int, int, int]
) -> None:
    problem = GemmProblem(*extents)
    bench = session.bench(problem, careful=False)
    configs = kernels.configs
    bench.time(configs, "sustained", 1)
    session.chained.clear()
    bench.check(configs)
    assert len(session.chained) == len(configs)


def test_a_kernel_that_is_wrong_on_the_timed_problem_is_named(
    kernels: Kernels, session: GpuSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = session.bench(PROBLEM, careful=False)
    config = kernels.configs[0]
    bench.time([config], "sustained", 1)

    def tile_left_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        torch.matmul(a, b, out=out)
        out[128:192, 256:384] = 0

    monkeypatch.setattr(session, "_kernel", lambda spec: tile_left_out)
    with pytest.raises(
        KernelFailure, match=r"within \[128:192, 256:384\].* that were timed"
    ) as failure:
        bench.check([config])
    assert failure.value.culprit == spec_for(config, PROBLEM)


def test_operands_are_random_and_stored_as_asked() -> None:
    operands = GemmOperands.parse("fp16:crc>fp32")
    problem = GemmProblem(64, 128, 256, 3, operands)
    (a, b), (another, _) = random_inputs(problem), random_inputs(problem)
    out = empty_out(problem)
    for tensor, shape, strides, dtype in (
        (a, (3, 64, 256), (64 * 256, 1, 64), torch.float16),
        (b, (3, 256, 128), (256 * 128, 128, 1), torch.float16),
        (out, (3, 64, 128), (64 * 128, 1, 64), torch.float32),
    ):
        assert (tuple(tensor.shape), tensor.stride(), tensor.dtype) == (shape, strides, dtype)
    assert not torch.equal(a, another)
    assert a.float().mean().abs().item() < 0.05
    assert a.float().std().item() == pytest.approx(1, abs=0.05)


def test_waiting_ends_when_a_kernel_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_session, "HANG_SECONDS", 0.2)
    spec = KernelSpec(QuackConfig(64, 64, 64), LINEAR_BF16)
    done = torch.cuda.Event()
    torch.cuda._sleep(ONE_SECOND)
    done.record()
    start = time.perf_counter()
    with pytest.raises(KernelFailure, match=r"hung: not done after 0\.2 s") as caught:
        wait(done, spec)
    assert 0.2 <= time.perf_counter() - start < 0.6
    assert caught.value.culprit == spec
    torch.cuda.synchronize()
    wait(done, spec)


def test_kernel_that_is_not_compiled_is_told(session: GpuSession) -> None:
    absent = QuackConfig(64, 256, 64, stages=2)
    with pytest.raises(TilecastError, match="is not compiled"):
        session.bench(PROBLEM, careful=False).time([absent], "burst", 1)


def test_memory_of_results_in_graphs_that_are_gone_is_had_again(session: GpuSession) -> None:
    # PyTorch allocates the result, half a gigabyte, in each graph.
    operands = GemmOperands.parse("bf16:crr:k-groups")
    bench = session.bench(GemmProblem(4096, 4096, 1024, 16, operands), careful=False)
    reserved = []
    for _ in range(4):
        bench.time([None], "burst", gpu_session.MIN_SETS)
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[3] < 1.1 * reserved[1]


def test_environment_says_what_was_measured_on(session: GpuSession) -> None:
    states = gpu_states([session.card])
    assert [state["uuid_hash"] for state in states] == [session.card]
    assert cards((0,), hardware(states[0]["name"])) == [session.card]
    assert all("uuid" not in state for state in states)
    assert all(float(state["power.limit"]) > 0 for state in states)
    facts = describe([session.card])
    assert [state["index"] for state in facts["gpus"]] == [states[0]["index"]]  # type: ignore[index]
    assert facts["cuda"] == torch.version.cuda
    assert facts["versions"]["torch"]  # type: ignore[index]
