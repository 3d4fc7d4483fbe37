"""Grouped products on a GPU: right for every spread of rows or k, and blind to other groups."""

from __future__ import annotations

import random
from typing import cast

import pytest
import torch
from compiled_kernels import compiled

from tilecast.data_collection.timing.correctness import wrong_elements
from tilecast.data_collection.timing.gpu_session import GpuSession
from tilecast.data_collection.timing.tensors import (
    group_ends,
    poisoned_out,
    random_inputs,
    reference,
)
from tilecast.data_collection.timing.torch_reference import torch_launch
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import space
from tilecast.kernels.launch import Launch, load_kernel
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

TEXTS = (
    "bf16:rcr:row-groups",
    "bf16:rrr:row-groups",
    "fp16:rcr:row-groups+silu",
    "bf16:rcr:row-groups+silu-mul",
    "e4m3:rcr>bf16:row-groups+row-scales",
    "e4m3:rcr>bf16@fp32:row-groups+row-scales+silu",
)
ALONG_K = ("bf16:crr:k-groups", "fp16:crr:k-groups")
ALL = (*TEXTS, *ALONG_K)
BF16, BF16_ALONG_K = GemmOperands.parse(TEXTS[0]), GemmOperands.parse(ALONG_K[0])
FP8, FP8_EXACT = GemmOperands.parse(TEXTS[4]), GemmOperands.parse(TEXTS[5].removesuffix("+silu"))
N, K = 272, 208  # which no tile divides
COUNTS = {
    "one group": [300],
    "all in the first": [513, 0, 0],
    "all in the last": [0, 0, 513],
    "one row each": [1] * 9,
    "one row in all": [0, 0, 1, 0],
    "none in the middle": [129, 0, 0, 1, 65, 0, 700, 3],
    "larger than tiles": [1000, 257, 2, 1025],
    "as many as a warp looks at": [5] * 31,
    "one more than that": [7] * 32,
    "and one more": [0] * 31 + [40, 1],
    "twice as many": [3] * 62 + [64],
    "64 groups": [*range(64)],
    "512 groups": [(7 * i) % 5 for i in range(512)],
    "the last of 512": [0] * 511 + [200],
}
"""Rows, or the k, of each group."""


Loaded = dict[GemmOperands, dict[KernelSpec, Launch]]


def kernels(operands: GemmOperands) -> list[KernelSpec]:
    """One for each tile height, cluster, schedule, raster and number of CTAs on an SM."""
    shown = {}
    configs = list(cast("tuple[QuackConfig, ...]", space(operands, hardware("H200")).configs))
    random.Random(0).shuffle(configs)
    for config in configs:
        if config.tile_m * config.tile_n >= 64 * 64:
            shown[config.cluster_m, config.cluster_n] = config
            shown[config.tile_m, config.schedule] = config
            shown[config.raster, config.ctas_per_sm, config.schedule] = config
    return [KernelSpec(config, operands) for config in sorted(set(shown.values()))]


@pytest.fixture(scope="module")
def objects() -> ObjectCache:
    return compiled(spec for text in ALL for spec in kernels(GemmOperands.parse(text)))


@pytest.fixture(scope="module")
def loaded(objects: ObjectCache) -> Loaded:
    return {
        operands: {spec: load_kernel(spec, objects) for spec in kernels(operands)}
        for operands in map(GemmOperands.parse, ALL)
    }


def ends_of(counts: list[int]) -> torch.Tensor:
    return torch.tensor(counts, device="cuda").cumsum(0).int()


@pytest.mark.parametrize("text", ALL)
def test_the_check_of_the_collector_finds_every_kernel_right(
    objects: ObjectCache, text: str
) -> None:
    session = GpuSession(objects, 0, lambda spec: None)
    specs = kernels(GemmOperands.parse(text))
    assert len(specs) >= 12
    assert {str(spec): found for spec in specs if (found := session.check(spec))} == {}


@pytest.mark.parametrize("spread", COUNTS)
def test_every_kernel_is_right_for_every_spread_and_writes_nothing_behind_the_last_group(
    loaded: Loaded, spread: str
) -> None:
    counts = COUNTS[spread]
    rows, behind, wrong = sum(counts), 70, {}
    for operands in map(GemmOperands.parse, TEXTS):
        problem = GemmProblem(rows + behind, N, K, len(counts), operands)
        a, b, _, *scales = random_inputs(problem)
        ends = ends_of(counts)
        if scales:  # of rows and matrices that nothing multiplies
            scales[0][rows:] = torch.nan
            scales[1][ends.diff(prepend=ends.new_zeros(1)) == 0] = torch.nan
        right = reference(problem, (a, b, ends, *scales))
        for spec, kernel in loaded[operands].items():
            out = poisoned_out(problem)
            kernel(a, b, out, ends, *scales)
            found = wrong_elements(out[:rows], right[:rows], problem)
            if found or not bool(out[rows:].isnan().all()):
                wrong[str(spec)] = found or "rows behind the last group are written"
    assert wrong == {}


@pytest.mark.parametrize("spread", COUNTS)
def test_every_kernel_is_right_for_every_spread_of_k_and_reads_nothing_behind_the_last_group(
    loaded: Loaded, spread: str
) -> None:
    counts = COUNTS[spread]
    k, behind, wrong = sum(counts), 70, {}
    for operands in map(GemmOperands.parse, ALONG_K):
        problem = GemmProblem(136, N, k + behind, len(counts), operands)
        a, b, _ = random_inputs(problem)
        a[:, k:], b[k:] = torch.nan, torch.nan
        ends = ends_of(counts)
        right = reference(problem, (a, b, ends))
        for spec, kernel in loaded[operands].items():
            out = poisoned_out(problem)
            kernel(a, b, out, ends)
            if found := wrong_elements(out, right, problem):
                wrong[str(spec)] = found
    assert wrong == {}


def test_a_product_along_k_has_the_same_bits_wherever_it_begins_and_whatever_the_others_hold(
    loaded: Loaded,
) -> None:
    """Another kernel adds up the same, too."""
    problem = GemmProblem(136, N, 300, 1, BF16_ALONG_K)
    rows, columns, _ = random_inputs(problem)
    seen = []
    for counts, place in (([300], 0), ([7, 300, 100], 1), ([0, 64, 3, 300], 3)):
        a, b, _ = random_inputs(GemmProblem(136, N, sum(counts), len(counts), BF16_ALONG_K))
        start = sum(counts[:place])
        a[:, start : start + 300], b[start : start + 300] = rows, columns
        for kernel in loaded[BF16_ALONG_K].values():
            out = torch.full((len(counts), 136, N), torch.nan, dtype=a.dtype, device="cuda")
            kernel(a, b, out, ends_of(counts))
            seen.append(out[place].clone())
    assert len(seen) >= 30
    assert all(torch.equal(one, seen[0]) for one in seen)


def test_graphs_read_where_groups_along_k_end_from_the_kernel_in_front(
    loaded: Loaded,
) -> None:
    problem = GemmProblem(136, N, 900, 40, BF16_ALONG_K)
    a, b, _ = random_inputs(problem)
    counts = torch.zeros(40, dtype=torch.int32, device="cuda")
    ends = torch.empty_like(counts)
    for spec, kernel in loaded[BF16_ALONG_K].items():
        out = poisoned_out(problem)
        kernel(a, b, out, ends_of([0] * 40))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.cumsum(counts, 0, dtype=torch.int32, out=ends)
            kernel(a, b, out, ends)
        for _ in range(3):
            drawn = group_ends(900, 40)
            counts.copy_(drawn.diff(prepend=drawn.new_zeros(1)))
            out.fill_(torch.nan)
            graph.replay()
            assert torch.equal(ends.cpu(), drawn)
            assert wrong_elements(out, reference(problem, (a, b, ends)), problem) is None, spec


def test_views_with_strides_and_offsets_touch_nothing_else(
    loaded: Loaded,
) -> None:
    counts = [0, 70, 1, 129]
    problem = GemmProblem(200, N, K, 4, BF16)
    _, whole_b, _ = random_inputs(GemmProblem(200, N + 8, K + 16, 5, BF16))
    whole_a = torch.randn(205, K + 24, dtype=torch.bfloat16, device="cuda")
    a, b, ends = whole_a[3:203, 8 : 8 + K], whole_b[1:, 16:, 8:], ends_of(counts)
    right = reference(problem, (a, b, ends))
    for spec, kernel in loaded[BF16].items():
        whole_out = torch.full((204, N + 16), 7.0, dtype=torch.bfloat16, device="cuda")
        out = whole_out[2:202, 8 : 8 + N]
        kernel(a, b, out, ends)
        assert wrong_elements(out, right, problem) is None, spec
        out.fill_(7.0)
        assert bool((whole_out == 7.0).all()), spec


def test_rows_of_a_group_have_the_same_bits_whatever_the_other_groups_hold(
    loaded: Loaded,
) -> None:
    """And the same in every kernel: there is one order in which each adds up."""
    weight = torch.randn(N, K, dtype=torch.bfloat16, device="cuda").T
    rows = torch.randn(37, K, dtype=torch.bfloat16, device="cuda")
    seen = []
    for counts, place in (([37], 0), ([5, 37, 100], 1), ([0, 700, 3, 37], 3), ([37] + [1] * 70, 0)):
        problem = GemmProblem(sum(counts), N, K, len(counts), BF16)
        a, b, _ = random_inputs(problem)
        start = sum(counts[:place])
        a[start : start + 37], b[place] = rows, weight
        for kernel in loaded[BF16].values():
            out = poisoned_out(problem)
            kernel(a, b, out, ends_of(counts))
            seen.append(out[start : start + 37].clone())
    assert len(seen) >= 40
    assert all(torch.equal(one, seen[0]) for one in seen)


def test_graphs_read_where_groups_end_at_each_replay_from_the_kernel_in_front(
    loaded: Loaded,
) -> None:
    """A chain as of a layer of experts: ends are made by a kernel, and two products follow."""
    problem = GemmProblem(300, N, K, 40, BF16)
    second = GemmProblem(300, K, N, 40, BF16)
    a, b, _ = random_inputs(problem)
    _, c, _ = random_inputs(second)
    counts = torch.zeros(40, dtype=torch.int32, device="cuda")
    ends = torch.empty_like(counts)
    for spec, kernel in loaded[BF16].items():
        middle, out = poisoned_out(problem), poisoned_out(second)
        kernel(a, b, middle, ends_of([0] * 40))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.cumsum(counts, 0, dtype=torch.int32, out=ends)
            kernel(a, b, middle, ends)
            kernel(middle, c, out, ends)
        for _ in range(3):
            drawn = group_ends(300, 40)
            counts.copy_(drawn.diff(prepend=drawn.new_zeros(1)))
            middle.fill_(torch.nan)
            out.fill_(torch.nan)
            graph.replay()
            assert torch.equal(ends.cpu(), drawn)
            right = reference(problem, (a, b, ends))
            assert wrong_elements(middle, right, problem) is None, spec
            right = reference(second, (middle, c, ends))
            scale = right.abs().max()
            difference = (out.float() - right).abs().max() / scale
            assert difference < 1e-2, spec


def test_graphs_read_scales_and_where_groups_end_from_the_kernel_in_front(
    loaded: Loaded,
) -> None:
    problem = GemmProblem(300, N, K, 40, FP8)
    a, b, ends, *scales = random_inputs(problem)
    for spec, kernel in loaded[FP8].items():
        out, given = poisoned_out(problem), [ends.clone(), *map(torch.clone, scales)]
        drawn = [torch.zeros_like(one) for one in given]
        kernel(a, b, out, *given)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for one, new in zip(given, drawn, strict=True):
                one.copy_(new)
            kernel(a, b, out, *given)
        for _ in range(3):
            _, _, *extras = random_inputs(problem)
            for one, new in zip(drawn, extras, strict=True):
                one.copy_(new)
            for one in (*given[1:], out):
                one.fill_(torch.nan)
            graph.replay()
            right = reference(problem, (a, b, *extras))
            assert wrong_elements(out, right, problem) is None, spec


def test_scales_of_groups_may_lie_in_longer_rows(loaded: Loaded) -> None:
    problem = GemmProblem(200, N, K, 4, FP8)
    a, b, ends, scale_a, scale_b = random_inputs(problem)
    longer = torch.full((4, N + 3), torch.nan, device="cuda")[:, 1 : N + 1].copy_(scale_b)
    right = reference(problem, (a, b, ends, scale_a, scale_b))
    for spec, kernel in loaded[FP8].items():
        out = poisoned_out(problem)
        kernel(a, b, out, ends, scale_a, longer)
        assert wrong_elements(out, right, problem) is None, spec


def test_two_streams_do_not_meet(loaded: Loaded) -> None:
    problem = GemmProblem(900, 1112, 1032, 12, BF16)
    work = [(torch.cuda.Stream(), *random_inputs(problem), poisoned_out(problem)) for _ in "ab"]
    for spec, kernel in loaded[BF16].items():
        for *_, out in work:
            out.fill_(torch.nan)
        torch.cuda.synchronize()
        for _ in range(5):
            for stream, a, b, ends, out in work:
                with torch.cuda.stream(stream):
                    kernel(a, b, out, ends)
        torch.cuda.synchronize()
        for _, a, b, ends, out in work:
            right = reference(problem, (a, b, ends))
            assert wrong_elements(out, right, problem) is None, spec


@pytest.mark.parametrize("operands", [BF16, BF16_ALONG_K, FP8, FP8_EXACT], ids=str)
def test_pytorch_computes_the_same(operands: GemmOperands) -> None:
    problem = GemmProblem(704, N, K, 9, operands)
    a, b, *extras = random_inputs(problem)
    assert problem.in_library
    out = poisoned_out(problem)
    torch_launch(operands)(a, b, out, *extras)
    assert wrong_elements(out, reference(problem, (a, b, *extras)), problem) is None
