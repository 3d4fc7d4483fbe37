"""A split of k through memory on a GPU: right for every k, in graphs, and behind other kernels."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from compiled_kernels import compiled
from on_gpu.launches import launch_on_streams, replayed_chain
from on_gpu.tensors import error

from tilecast.data_collection.timing.gpu_session import GpuSession
from tilecast.data_collection.timing.tensors import applied, poisoned_out, random_inputs
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import COLUMN, LINEAR_BF16, ROW, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import broken_rules
from tilecast.kernels.families import parse_config
from tilecast.kernels.launch import load_kernel
from tilecast.kernels.objects.cache import ObjectCache
from tilecast.kernels.spec import KernelSpec

H200 = hardware("H200")
CONFIGS = (
    "memory_128x192x64_c2x1x5_s4_coop_o1_rm8",
    "memory_64x16x64_c1x1x8_s12_coop_o1_rm8",
    "memory_swap_64x48x64_c1x1x8_s12_coop_o1_rm8",
    "memory_swap_128x64x64_c1x2x3_s8_coop_o1_rm8",
    "memory_256x128x64_c1x2x3_s4_coop_o1_rm8",
    "memory_192x128x64_c1x2x6_s4_coop_o1_rm8",
    "memory_192x256x64_c1x1x2_s3_coop_o1_rm8",
    "memory_128x208x64_c2x1x7_s4_coop_o1_rm8",
    "memory_swap_256x96x64_c1x1x4_s4_coop_o1_rm8",
)
"""For bf16 as ``torch.nn.Linear`` stores it."""
OTHERS = (
    ("bf16:rcc", "memory_128x128x64_c2x1x7_s6_coop_o1_rm8"),
    ("bf16:crr", "memory_128x64x64_c1x1x8_s8_coop_o1_rm8"),
    ("fp16:rrr>fp32", "memory_192x128x64_c1x2x6_s4_coop_o1_rm8"),
    ("bf16:rcr:bias+gelu", "memory_256x128x64_c1x2x3_s4_coop_o1_rm8"),
    ("bf16:rcr:alpha+bias", "memory_swap_64x48x64_c1x1x8_s12_coop_o1_rm8"),
    ("fp16:rcc:bias+relu", "memory_swap_128x64x64_c1x2x3_s8_coop_o1_rm8"),
    ("e4m3:rcr>bf16", "memory_64x64x128_c1x1x4_s12_coop_o1_rm8"),
    ("e4m3:rcr>bf16:row-scales+bias", "memory_128x224x128_c2x1x4_s4_coop_o1_rm8"),
    ("e5m2:rcr>fp16@fp32:tensor-scales", "memory_swap_128x64x128_c1x1x8_s8_coop_o1_rm8"),
)
EXTENTS = (
    *((1, 264, 2056), (37, 1112, 1032), (300, 520, 4104), (174, 312, 28880), (196, 2064, 4096)),
    # Fewer stages than parts: some of these are empty.
    *((40, 72, 8), (64, 80, 64), (200, 264, 136), (130, 200, 320)),
)
TOLERANCE, OF_FP8 = 5e-3, 2e-2
"""Rounding to bf16 costs 2^-9 = 0.2% at most; a wrong element costs far more. Tensor cores keep 13
bits of sums of fp8 behind the point."""


def specs() -> dict[str, KernelSpec]:
    found = [KernelSpec(parse_config(name), LINEAR_BF16) for name in CONFIGS]
    found += [KernelSpec(parse_config(name), GemmOperands.parse(text)) for text, name in OTHERS]
    found += [replace(spec, batched=True) for spec in found[::2]]
    found += [replace(spec, any_rows=True) for spec in found[::3]]
    named = {f"{one}{' batch' * one.batched}{' any rows' * one.any_rows}": one for one in found}
    assert len(named) == len(found)
    return named


SPECS = specs()
PLAIN = list(SPECS.values())[: len(CONFIGS)]


@pytest.fixture(scope="module")
def objects() -> ObjectCache:
    return compiled(SPECS.values())


def expected(problem: GemmProblem, inputs: tuple) -> torch.Tensor:
    """The result in float64."""
    a, b, *values = inputs
    operands = problem.operands
    given = {
        extra.name: value.double() if isinstance(value, torch.Tensor) else value
        for extra, value in zip(operands.extras, values, strict=True)
    }
    result = a.double() @ b.double()
    if operands.scales:
        result = result * given["scale_a"].view(-1, 1) * given["scale_b"]
    for step in operands.epilogue:
        result = applied(step, result, given)
    return result


def test_they_are_of_the_space() -> None:
    for spec in SPECS.values():
        assert not list(broken_rules(spec.config, spec.operands, H200)), spec


def drawn(problem: GemmProblem, any_rows: bool) -> tuple[tuple, torch.Tensor, torch.Tensor]:
    """Inputs, an out full of NaN, and what that lies in, with one element more at either end.

    With ``any_rows`` out is shorter by one along what is contiguous, and has no gaps.
    """
    a, b, *extras = random_inputs(problem)
    m, n, row_major = problem.m, problem.n, problem.operands.out.major == "row"
    if any_rows:
        m, n = (m, n - 1) if row_major else (m - 1, n)
    a, b = a[..., :m, :], b[..., :n]
    shortened = {ROW: slice(n), COLUMN: slice(m)}
    kinds = (extra.kind for extra in problem.operands.extras)
    extras = [
        one[shortened[kind]] if kind in shortened else one
        for kind, one in zip(kinds, extras, strict=True)
    ]
    # Sixteen bytes in front, or one element.
    before = 1 if any_rows else 8
    dtype = getattr(torch, problem.operands.out.dtype.torch)
    whole = torch.full((before + problem.batch * m * n + 1,), math.nan, dtype=dtype, device="cuda")
    strides = (m * n, *((n, 1) if row_major else (1, m)))[-a.ndim :]
    return (a, b, *extras), whole.as_strided((*a.shape[:-1], n), strides, before), whole


@pytest.mark.parametrize("name", SPECS)
def test_every_kind_is_right_on_ragged_problems(objects: ObjectCache, name: str) -> None:
    """Also by the check that a collection makes."""
    torch.manual_seed(0)
    spec, wrong = SPECS[name], {}
    operands, launch = spec.operands, load_kernel(spec, objects)
    most = OF_FP8 if operands.a.dtype.bits == 8 else TOLERANCE
    step = 16 if operands.a.dtype.bits == 8 else 8
    for m, n, k in EXTENTS:
        if "col" in (operands.a.major, operands.out.major):
            m = math.ceil(m / step) * step
        n, k = math.ceil(n / step) * step, math.ceil(k / step) * step
        k += operands.layout == "crr"  # no stride is along k
        problem = GemmProblem(m, n, k, 3 if spec.batched else 1, operands)
        inputs, out, whole = drawn(problem, spec.any_rows)
        launch(*inputs[:2], out, *inputs[2:])
        found = error(out, expected(problem, inputs))
        untouched = int(whole.isnan().sum()) == whole.numel() - out.numel()
        if not (found <= most and untouched):
            wrong[m, n, k] = found, untouched
    assert wrong == {}
    assert not GpuSession(objects, 0, lambda spec: None).check(spec)


@pytest.mark.parametrize("spec", PLAIN, ids=str)
def test_a_graph_replays_and_results_repeat_bit_for_bit(
    objects: ObjectCache, spec: KernelSpec
) -> None:
    problem = GemmProblem(200, 520, 4104)
    a, b = random_inputs(problem)
    out, again = poisoned_out(problem), poisoned_out(problem)
    launch = load_kernel(spec, objects)
    launch(a, b, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(a, b, out)
        launch(a, b, again)
    for _ in range(3):
        a.normal_()
        out.fill_(math.nan)
        again.fill_(math.nan)
        graph.replay()
        assert error(out, expected(problem, (a, b))) <= TOLERANCE
        assert torch.equal(out, again)


@pytest.mark.parametrize("k", [1024, 64])
@pytest.mark.parametrize("spec", PLAIN, ids=str)
def test_a_chain_reads_what_the_kernel_before_it_wrote(
    objects: ObjectCache, spec: KernelSpec, k: int
) -> None:
    """In a graph, where a kernel may begin while the one before it ends, in the same room.

    With a k of one stage all parts but the first are empty, and store zeros without a load.
    """
    problem = GemmProblem(40, k, k)
    a, b = random_inputs(problem)
    b /= k**0.5
    steps = [poisoned_out(problem) for _ in range(12)]
    for left, out in replayed_chain(load_kernel(spec, objects), a, b, steps, 20):
        assert error(out, expected(problem, (left, b))) <= TOLERANCE


def test_two_streams_have_rooms_of_their_own(objects: ObjectCache) -> None:
    problem = GemmProblem(200, 1112, 4104)
    work = [(torch.cuda.Stream(), *random_inputs(problem), poisoned_out(problem)) for _ in range(2)]
    right = [expected(problem, (a, b)) for _, a, b, _ in work]
    for spec in PLAIN:
        launch_on_streams(load_kernel(spec, objects), work)
        for (*_, out), reference in zip(work, right, strict=True):
            assert error(out, reference) <= TOLERANCE, spec
