"""Compiled kernels on a GPU: right results for any extents, strides, stream and device state."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import invariance
import pytest
import torch
from compiled_kernels import compiled
from on_gpu.launches import launch_on_streams, replayed_chain
from on_gpu.tensors import product_error

from tilecast.data_collection.timing.tensors import poisoned_out, random_inputs
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.launch import load_kernel
from tilecast.kernels.occupancy import max_active_clusters
from tilecast.kernels.quack_sm90.space import AXES
from tilecast.kernels.spec import KernelSpec

if TYPE_CHECKING:
    from compiled_kernels import Kernels

RAGGED = ((1, 264, 200), (37, 1112, 1032), (300, 520, 8), (1000, 2056, 4104))
"""m, n, k that no tile divides; one row; a k below one stage; several waves."""
TOLERANCE = 5e-3
"""Rounding float32 to bf16 costs 2^-9 = 0.2% at most; a wrong element costs far more."""


def _operands(m: int, n: int, k: int, batch: int = 1, operands: GemmOperands = LINEAR_BF16):
    """A, B and an out full of what no product is."""
    problem = GemmProblem(m, n, k, batch, operands)
    a, b = random_inputs(problem)
    return a, b, poisoned_out(problem)


def test_the_spread_shows_every_kind_of_kernel(kernels: Kernels) -> None:
    g = kernels.geometry()
    assert len(g) >= 16
    assert set(g.swap_ab) == {False, True}
    assert set(g.ctas_per_sm) == {1, 2}
    assert set(g.warp_groups) >= {1, 2}
    assert set(zip(g.cluster_m, g.cluster_n, strict=True)) == set(AXES.clusters)
    assert set(g.tile_n) >= set(AXES.tile_n)


@pytest.mark.parametrize("extents", RAGGED, ids=str)
def test_every_config_is_right_on_ragged_problems(
    kernels: Kernels, extents: tuple[int, int, int]
) -> None:
    a, b, _ = _operands(*extents)
    wrong = {}
    for config in (*kernels.configs, *kernels.offered):
        out = torch.full(extents[:2], math.nan, dtype=torch.bfloat16, device="cuda")
        kernels.load(KernelSpec(config, LINEAR_BF16))(a, b, out)
        error = product_error(out, a, b)
        if not error <= TOLERANCE:
            wrong[config.name] = error
    assert wrong == {}


def test_other_dtypes_and_majors(kernels: Kernels) -> None:
    for spec in kernels.others:
        a, b, out = _operands(136, 272, 528, operands=spec.operands)
        kernels.load(spec)(a, b, out)
        assert out.dtype == getattr(torch, spec.operands.out.dtype.torch)
        assert product_error(out, a, b) <= TOLERANCE, spec.operands


def test_batches_are_kept_apart(kernels: Kernels) -> None:
    for spec in kernels.batched:
        a, b, out = _operands(77, 200, 136, batch=5)
        kernels.load(spec)(a, b, out)
        for i in range(5):
            assert product_error(out[i], a[i], b[i]) <= TOLERANCE, (spec.config, i)


def test_one_matrix_serves_a_whole_batch(kernels: Kernels) -> None:
    for spec in kernels.batched:
        a, b, out = _operands(77, 200, 136, batch=5)
        for left, right in ((a[:1].expand_as(a), b), (a, b[:1].expand_as(b))):
            out.fill_(math.nan)
            kernels.load(spec)(left, right, out)
            assert product_error(out, left, right) <= TOLERANCE, spec.config


def test_views_with_strides_and_offsets_touch_nothing_else(kernels: Kernels) -> None:
    m, n, k = 129, 264, 200
    whole_a = torch.randn(m + 5, k + 24, dtype=torch.bfloat16, device="cuda")
    whole_b = torch.randn(n + 7, k + 40, dtype=torch.bfloat16, device="cuda")
    a, b = whole_a[3 : 3 + m, 8 : 8 + k], whole_b[7:, 16 : 16 + k].T
    for position, config in enumerate(kernels.configs):
        whole_out = torch.full((m + 4, n + 16), 7.0, dtype=torch.bfloat16, device="cuda")
        out = whole_out[2 : 2 + m, 8 : 8 + n]
        kernels.config(position)(a, b, out)
        assert product_error(out, a, b) <= TOLERANCE, config
        out.fill_(7.0)
        assert bool((whole_out == 7.0).all()), config


@pytest.mark.parametrize("extents", [(1, 13, 200), (37, 1111, 1032), (300, 522, 8)], ids=str)
def test_rows_begin_anywhere_and_nothing_else_is_touched(
    kernels: Kernels, extents: tuple[int, int, int]
) -> None:
    m, n, k = extents
    wrong = {}
    for spec in kernels.any_rows:
        batch = 3 if spec.batched else 1
        longest = GemmProblem(-(-m // 16) * 16, -(-n // 16) * 16, -(-k // 16) * 16, batch)
        a, b = random_inputs(replace(longest, operands=spec.operands))
        a, b = a[..., :m, :], b[..., :n]
        dtype = getattr(torch, spec.operands.out.dtype.torch)
        along = (n, 1) if spec.operands.out.major == "row" else (1, m)
        strides = (m * n, *along)[-a.ndim :]
        whole = torch.full((batch * m * n + 2,), 7, dtype=dtype, device="cuda")
        out = whole.as_strided((*a.shape[:-1], n), strides, 1)
        kernels.load(spec)(a, b, out)
        error = product_error(out, a, b)
        if not (error <= TOLERANCE and whole[0] == whole[-1] == 7):
            wrong[spec] = error
    assert wrong == {}


@pytest.mark.parametrize("what", ["dtype", "extents", "rank", "majors"])
def test_operands_that_the_kernel_was_not_compiled_for_are_refused(
    kernels: Kernels, what: str
) -> None:
    a, b, out = _operands(64, 64, 64)
    bad = {"dtype": a.half(), "extents": a[:, :56], "rank": a[None], "majors": a.T.contiguous().T}
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        kernels.config(0)(bad[what], b, out)
    torch.cuda.synchronize()
    assert bool(out.isnan().all())


def test_launches_on_the_current_stream_behind_what_is_queued_there(kernels: Kernels) -> None:
    a, b, out = _operands(256, 512, 1024)
    late = torch.zeros_like(a)
    kernel = kernels.config(0)
    kernel(late, b, out)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        # 0.1 s at 2 GHz: a launch on any other stream would read the zeros.
        torch.cuda._sleep(200_000_000)
        late.copy_(a)
        kernel(late, b, out)
        torch.cuda.current_stream().synchronize()
    assert product_error(out, a, b) <= TOLERANCE


def test_graph_replays_with_new_values(kernels: Kernels) -> None:
    for position in (0, len(kernels.configs) // 2, len(kernels.configs) - 1):
        a, b, out = _operands(200, 520, 264)
        kernel = kernels.config(position)
        kernel(a, b, out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernel(a, b, out)
        for _ in range(3):
            a.normal_()
            out.fill_(math.nan)
            graph.replay()
            assert product_error(out, a, b) <= TOLERANCE, kernels.configs[position]


def test_results_repeat_bit_for_bit(kernels: Kernels) -> None:
    a, b, out = _operands(1000, 2056, 520)
    for position, config in enumerate(kernels.configs):
        kernel = kernels.config(position)
        kernel(a, b, out)
        again = torch.empty_like(out)
        for _ in range(5):
            kernel(a, b, again)
            assert torch.equal(out, again), config


def test_a_chain_reads_what_the_kernel_before_it_wrote(kernels: Kernels) -> None:
    """In a graph, where a kernel may begin while the one before it ends."""
    a, b, _ = _operands(40, 1024, 1024)
    b /= 32
    steps = [torch.full((40, 1024), math.nan, dtype=a.dtype, device="cuda") for _ in range(12)]
    for position, config in enumerate(kernels.configs):
        for left, out in replayed_chain(kernels.config(position), a, b, steps, 10):
            assert product_error(out, left, b) <= TOLERANCE, config


def test_two_streams_do_not_meet(kernels: Kernels) -> None:
    work = [(torch.cuda.Stream(), *_operands(200, 1112, 4104)) for _ in range(2)]
    for position, config in enumerate(kernels.configs):
        launch_on_streams(kernels.config(position), work)
        for _, a, b, out in work:
            assert product_error(out, a, b) <= TOLERANCE, config


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_second_device_computes_the_same(kernels: Kernels) -> None:
    a, b, out = _operands(300, 1112, 1032)
    for position in range(0, len(kernels.configs), 7):
        spec = KernelSpec(kernels.configs[position], LINEAR_BF16)
        kernels.config(position)(a, b, out)
        with torch.cuda.device(1):
            there = torch.empty_like(out, device="cuda:1")
            load_kernel(spec, kernels.objects, 1)(a.to("cuda:1"), b.to("cuda:1"), there)
            assert torch.equal(there.cpu(), out.cpu()), spec


def test_active_clusters_are_what_the_multiprocessors_hold(kernels: Kernels) -> None:
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    assert max_active_clusters(1) == multiprocessors
    # A graphics processing cluster of 16 or 18 SMs may leave up to three of them over.
    for size in (2, 4):
        assert 0.75 * multiprocessors / size <= max_active_clusters(size) <= multiprocessors / size


def test_kernel_may_be_loaded_twice(kernels: Kernels) -> None:
    spec = KernelSpec(kernels.configs[0], LINEAR_BF16)
    for _ in range(2):
        a, b, out = _operands(64, 72, 80)
        load_kernel(spec, kernels.objects)(a, b, out)
        assert product_error(out, a, b) <= TOLERANCE


@pytest.fixture(scope="module")
def drawn() -> dict[str, dict[KernelSpec, bool]]:
    """Compiled kernels of each kind that break no `INVARIANT` rule."""
    found = {name: invariance.drawn(kind, 5, 0) for name, kind in invariance.KINDS.items()}
    compiled(spec for kernels in found.values() for spec in kernels)
    return found


@pytest.mark.parametrize("name", invariance.KINDS)
def test_no_bit_of_a_row_depends_on_its_batch_or_its_kernel(
    drawn: dict[str, dict[KernelSpec, bool]], name: str
) -> None:
    """A sample; ``benchmarks/kernels/invariance.py`` draws more kernels and more batches."""
    row = invariance.compared(invariance.KINDS[name], drawn[name], 300)
    assert {one["group"] for one in row["kernels"]} == {0}
    assert [one["differing"] for one in row["kernels"]] == [0] * len(drawn[name])
    assert sum(one["rows"] for one in row["kernels"]) > 10_000
