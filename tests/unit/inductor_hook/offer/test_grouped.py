"""Grouped products in a graph: tilecast's choices beside Inductor's, and which ones get none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hook_graph import (
    Clock,
    grouped,
    lowered,
    lowering,
    names_of,
    node,
    scale,
    source_of,
    traced,
)
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.kernel import mm_grouped

from tilecast.heuristics.hardware import hardware
from tilecast.inductor_hook import install, uninstall
from tilecast.inductor_hook.offer.grouped import with_tilecast
from tilecast.inductor_hook.offer.precompile import start_compiling
from tilecast.inductor_hook.offer.template import TilecastCaller
from tilecast.inductor_hook.patch.torch_versions import GROUPED
from tilecast.inductor_hook.settings import active
from tilecast.kernels.candidates import candidates
from tilecast.kernels.spec import KernelSpec

COMPETING = "ATEN,TILECAST"
G, M, N, K = 8, 512, 2048, 1024
H200 = hardware("H200")
aten = torch.ops.aten


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Inductor benchmarks such products as it lowers them."""
    return Clock.started(monkeypatch, ours=1.0, without=2.0)


def _choices(*operands: Any, **options: Any) -> list[Any]:
    a, b, ends = operands or grouped()
    return lowered(aten._grouped_mm.default, a, b, ends, **options)


def test_five_candidates_stand_beside_what_pytorch_has(graph: Any, hook: list[KernelSpec]) -> None:
    install(k=5)
    aten_one, *found = _choices()
    assert aten_one.name == "_grouped_mm"
    assert len(found) == 5
    specs = [spec for choice in found for spec in choice.choice.specs]
    assert specs == hook
    assert {(spec.operands.text, spec.batched) for spec in specs} == {
        ("bf16:rcr:row-groups", False)
    }
    problem = found[0].choice.matmul.hint
    assert str(problem) == f"{G}x{M}x{N}x{K}"
    assert {spec.config for spec in specs} <= set(candidates(problem, H200))
    assert [*found[0].layout.size] == [M, N]
    assert counters["tilecast"]["problems"] == 1
    source = source_of(found[0])
    assert "'bf16:rcr:row-groups', batched=False" in source
    assert "matmul(A, B, " in source and ", offsets)" in source


FP8 = "e4m3:rcr>bf16@fp32:row-groups+row-scales"


def _scaled(*scales: Any, ends: Any = None, n: int = N, **options: Any) -> list[Any]:
    a, b, its_ends = grouped(n=n, dtype=torch.float8_e4m3fn)
    scales = scales or (scale("scale_a", M), scale("scale_b", G, n))
    return lowered(aten._scaled_grouped_mm.default, a, b, *scales, ends or its_ends, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [({}, FP8), ({"use_fast_accum": True, "out_dtype": torch.bfloat16}, FP8.replace("@fp32", ""))],
    ids=["exact", "fast"],
)
def test_groups_in_fp8_have_scales_and_are_timed_alike(
    graph: Any, clock: Clock, options: dict[str, Any], text: str
) -> None:
    install(k=5)
    aten_one, *found = _scaled(**options)
    assert aten_one.name == "_scaled_grouped_mm"
    assert [choice.choice.matmul.hint.operands.text for choice in found] == [text] * 5
    assert ", offsets, scale_a.view(-1), scale_b)" in source_of(found[0])
    ends = clock.makers[4](node("here", [G], dtype=torch.int32, device="cpu"))
    assert (ends.shape, ends[-1].item()) == ((G,), M)


def test_other_scales_of_groups_are_pytorchs_and_none_is_chosen_without_a_benchmark(
    graph: Any,
) -> None:
    alone = ["_scaled_grouped_mm"]
    install(k=5)
    assert names_of(_scaled(scale("one", 1), scale("other", 1))) == alone
    assert names_of(_scaled(scale("one", M), scale("other", G, 1))) == alone
    assert names_of(_scaled(ends=node("int64", [G], dtype=torch.int64))) == alone
    install(k=1)
    assert names_of(_scaled()) == alone


def test_all_are_timed_with_rows_that_are_spread_as_the_collectors_are(
    graph: Any, clock: Clock
) -> None:
    install(k=5)
    operands = grouped(groups=128, m=64)
    on_cpu = node("here", [128], dtype=torch.int32, device="cpu")
    before = torch.get_rng_state()
    _choices(*operands)
    ends = clock.makers[2](on_cpu)
    assert torch.equal(clock.makers[2](on_cpu), ends)
    assert torch.equal(torch.get_rng_state(), before)
    assert (ends.dtype, ends.shape, ends[-1].item()) == (torch.int32, (128,), 64)
    # Inductor would have eight rows in each of eight groups.
    counts = ends.diff(prepend=ends.new_zeros(1))
    assert 20 < (counts > 0).sum() < 60


@pytest.mark.parametrize("of", [torch.bfloat16, torch.float8_e4m3fn], ids=["bf16", "fp8"])
def test_a_graph_begins_to_compile_the_same_kernels(
    hook: list[KernelSpec], asked: None, of: torch.dtype
) -> None:
    scales = [((M,), torch.float32), ((G, N), torch.float32)] * (of != torch.bfloat16)
    operator = aten._scaled_grouped_mm if scales else F.grouped_mm
    install(k=5)
    made = traced(
        lambda a, w, ends, *scales: operator(a, w.mT, *scales, offs=ends),
        [((M, K), of), ((G, N, K), of), ((G,), torch.int32), *scales],
    )
    settings = active()
    assert settings
    start_compiling(made, settings)
    begun = [*hook]
    assert len(begun) == 5
    with lowering(), config.patch(max_autotune_gemm_backends=COMPETING):
        _, *ours = _scaled() if scales else _choices()
    assert begun == [spec for one in ours for spec in one.choice.specs]


def _autotuner() -> Any:
    return vars(mm_grouped)[GROUPED.name]


def test_without_tilecast_choices_are_inductors_own(graph: Any) -> None:
    stock = _autotuner()
    install(k=5)
    assert _autotuner() is not stock
    with config.patch(max_autotune_gemm_backends="ATEN"):
        assert names_of(_choices()) == ["_grouped_mm"]
    uninstall()
    assert _autotuner() is stock
    assert names_of(_choices()) == ["_grouped_mm"]


def test_a_model_that_was_trained_on_no_groups_chooses_none_without_a_benchmark(
    graph: Any, model_of: Any
) -> None:
    install(k=1, model=model_of("bf16:rcr"))
    assert names_of(_choices()) == ["_grouped_mm"]
    assert counters["tilecast"]["not covered: grouped_mm"] == 1
    install(k=1, model=model_of("bf16:rcr:row-groups"))
    (only,) = _choices()
    assert isinstance(only, TilecastCaller)


def test_where_the_model_is_not_sure_its_first_kernel_is_timed_beside_atens(
    graph: Any, model_of: Any
) -> None:
    install(k=1, model=model_of("bf16:rcr:row-groups", leaves=True))
    aten_one, first = _choices()
    assert (aten_one.name, type(first)) == ("_grouped_mm", TilecastCaller)
    with config.patch(max_autotune_gemm_backends="TILECAST"):
        assert names_of(_choices()) == [first.name]
    # No time may decide here.
    operands = grouped()
    with config.patch(deterministic=True):
        assert with_tilecast("grouped_mm", [object(), aten_one], operands, first.layout, {}) == (
            [aten_one],
            {},
        )


def test_all_that_compete_have_the_same_bits_where_rows_are_to_keep_theirs(graph: Any) -> None:
    install(invariant=True)
    assert all(isinstance(choice, TilecastCaller) for choice in _choices())


@pytest.mark.parametrize(
    "kind",
    ["ends in int64", "wide", "columns no multiple of 8", "rows symbolic"],
)
def test_other_groups_are_pytorchs(graph: Any, kind: str) -> None:
    install(k=5)
    a, b, ends = grouped()
    if kind == "ends in int64":
        ends = node("ends", [G], dtype=torch.int64)
    elif kind == "wide":
        a, b, ends = grouped(dtype=torch.float32)
    elif kind == "columns no multiple of 8":
        a, b, ends = grouped(n=2044)
    else:
        a, b, ends = grouped(m=graph.sizevars.shape_env.create_unbacked_symint().node.expr)
    assert names_of(_choices(a, b, ends)) == ["_grouped_mm"]


def test_groups_along_k_have_choices(graph: Any, clock: Clock) -> None:
    install(k=5)
    ends = node("ends", [G], dtype=torch.int32)
    along_k = node("a", [64, M], [1, 64]), node("b", [M, N])
    aten_one, *found = lowered(aten._grouped_mm.default, *along_k, ends)
    assert (aten_one.name, len(found)) == ("_grouped_mm", 5)
    problem = found[0].choice.matmul.hint
    assert (str(problem), problem.operands.text) == (f"{G}x64x{N}x{M}", "bf16:crr:k-groups")
    assert [*found[0].layout.size] == [G, 64, N]
    assert {choice.choice.configs[0] for choice in found} <= set(candidates(problem, H200))
    ends = clock.makers[2](node("here", [G], dtype=torch.int32, device="cpu"))
    assert ends[-1].item() == M


def test_the_shipped_model_chooses_for_groups_along_k_without_a_benchmark(graph: Any) -> None:
    install(k=1)
    # A layer of Mixtral and a step of 8,192 tokens: far from PyTorch's time.
    ends = node("ends", [8], dtype=torch.int32)
    along_k = node("a", [4096, 16384], [1, 4096]), node("b", [16384, 14336])
    (only,) = lowered(aten._grouped_mm.default, *along_k, ends)
    assert isinstance(only, TilecastCaller)
    problem = only.choice.matmul.hint
    assert (str(problem), problem.operands.text) == ("8x4096x14336x16384", "bf16:crr:k-groups")
    assert "not covered: grouped_mm" not in counters["tilecast"]


def test_groups_along_k_of_other_majors_and_batches_are_pytorchs(graph: Any) -> None:
    install(k=5)
    ends = node("ends", [G], dtype=torch.int32)
    along_k = node("a", [64, M]), node("b", [M, N])
    assert names_of(lowered(aten._grouped_mm.default, *along_k, ends)) == ["_grouped_mm"]
    batch = node("c", [G, 64, K]), node("d", [G, K, N])
    assert names_of(lowered(aten._grouped_mm.default, *batch)) == ["_grouped_mm"]
