"""What the handler adds to Inductor's choices, what it leaves alone, and what caches see of it."""

from __future__ import annotations

import ast
import operator
import pickle
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from hook_graph import (
    batched,
    biased_linear,
    choices_of,
    linear,
    lowered,
    names_of,
    node,
    ours_of,
    settled,
    source_of,
    symbolic,
    warnings_told,
)
from processes import python
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.codecache import compiled_fx_graph_hash
from torch._inductor.ir import FixedLayout, StorageBox, TensorBox
from torch._inductor.kernel import bmm, mm
from torch._inductor.kernel.mm_plus_mm import tuned_mm_plus_mm
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.lowering import to_dtype
from torch._inductor.select_algorithm import (
    ExternKernelCaller,
    get_algorithm_selector_cache,
    realize_inputs,
)
from torch._inductor.utils import fresh_cache
from torch._inductor.virtualized import V

from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import install, installed, telemetry, uninstall
from tilecast.inductor_hook import settings as settings_module
from tilecast.inductor_hook.offer import template as hook_template
from tilecast.inductor_hook.offer.template import (
    FAILED_MS,
    TilecastTemplate,
)
from tilecast.inductor_hook.patch.torch_versions import torch_version
from tilecast.inductor_hook.settings import Settings, cache_key
from tilecast.inductor_hook.timing import decide as hook_timings
from tilecast.inductor_hook.timing.choice_benchmark import benchmarked, time_as_it_runs
from tilecast.kernels.build.builder import ObjectBuilder
from tilecast.kernels.candidates import candidates
from tilecast.kernels.objects import keys
from tilecast.kernels.spec import KernelSpec
from tilecast.models.runtime.learned import load_heuristic

H200 = hardware("H200")
M, N, K = 512, 4096, 4096
aten = torch.ops.aten


def _handler() -> Any:
    """The choices handler of this thread."""
    return V.choices


WITH_BIAS = GemmProblem(M, N, K, 1, GemmOperands.parse("bf16:rcr:bias"))
"""What `biased_linear` asks for."""


def _first(problem: GemmProblem, count: int, power: str = "robust") -> list[str]:
    heuristic = load_heuristic(H200, problem.operands, power)
    ranking = heuristic.rank(problem, candidates(problem, H200), limit=count)
    return [config.name for config in ranking]


def _names(choices: list[Any]) -> list[str]:
    return [choice.choice.configs[0].name for choice in ours_of(choices)]


@pytest.mark.parametrize(("stored", "text"), [([1, K], "bf16:rcr"), ([N, 1], "bf16:rrr")])
def test_a_computed_operand_lies_as_its_kernel_reads_it(
    graph: Any, stored: list[int], text: str
) -> None:
    """Inductor decides how it lies when it has lowered the graph, and guesses until then."""
    install(k=1)
    weight = TensorBox(StorageBox(node("weight", [K, N], stored, dtype=torch.int8)))
    b = realize_inputs(to_dtype(weight, torch.bfloat16))
    (ours,) = ours_of(choices_of(MMKernelInputs([node("a", [M, K]), b]), "mm"))
    assert ours.choice.matmul.hint.operands.text == text
    (buffer,) = V.graph.buffers
    buffer.decide_layout()
    assert [*buffer.get_stride()] == stored


@pytest.mark.parametrize("count", [2, 5, 8])
@pytest.mark.parametrize("power", ["burst", "sustained", "robust"])
def test_the_first_k_of_the_model_in_its_order(
    graph: Any, hook: list[KernelSpec], count: int, power: str
) -> None:
    install(k=count, power=power)
    choices = choices_of(linear(M, N, K), "mm")
    expected = _first(GemmProblem(M, N, K), count, power)
    assert _names(choices) == expected
    assert [choice.name for choice in choices] == [f"tilecast_{name}" for name in expected]
    assert [spec.config.name for spec in hook] == expected
    assert counters["tilecast"]["problems"] == 1


def test_auto_takes_from_one_to_eight(graph: Any) -> None:
    install(k="auto")
    for m in (1, 64, 3000):
        problem = GemmProblem(m, N, K)
        names = _names(choices_of(linear(m, N, K), "mm"))
        assert 1 <= len(names) <= 8
        assert names == _first(problem, len(names))


def test_every_operator_has_its_choices(graph: Any, hook: list[KernelSpec]) -> None:
    install(k=3)
    assert _names(choices_of(biased_linear(M, N, K), "addmm")) == _first(WITH_BIAS, 3)
    expected = _first(GemmProblem(M, 128, K, 4), 3)
    assert _names(choices_of(batched(M, 128, K, 4), "bmm")) == expected
    assert [spec.batched for spec in hook] == [False] * 3 + [True] * 3


def test_the_only_choice_of_k_1_costs_no_other(graph: Any) -> None:
    def generator() -> Iterator[Any]:
        raise AssertionError("generated a stock choice")
        yield

    install(k=1)
    (choice,) = choices_of(linear(M, N, K), "mm", [mm.aten_mm, mm.mm_template])
    assert choice.name == f"tilecast_{_first(GemmProblem(M, N, K), 1)[0]}"
    templates: dict[str, Any] = {"aten": generator(), "triton": generator()}
    found = V.choices._finalize_template_configs(templates, linear(), [mm.aten_mm], "mm")
    assert len(found) == 1


def _remaining(choices: list[Any]) -> list[Any]:
    for function in get_algorithm_selector_cache().preprocessing_fns:
        choices = function(choices)
    return choices


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("op", ["mm", "addmm", "bmm"])
def test_k_1_asks_aten_too_where_the_library_may_win(
    graph: Any, hook: list[KernelSpec], leaving_model: Path, op: str, deterministic: bool
) -> None:
    """Both are benchmarked, without Triton's; ATen's alone is left where no time may decide."""
    inputs, templates = {
        "mm": (linear(M, N, K), [mm.aten_mm, mm.mm_template]),
        "addmm": (biased_linear(M, N, K), [mm.aten_addmm, mm.mm_template]),
        "bmm": (batched(M, 128, K), [bmm.aten_bmm, bmm.bmm_template]),
    }[op]
    install(k=1, model=leaving_model)
    backends = "ATEN,TRITON,TILECAST"
    with config.patch(max_autotune_gemm_backends=backends, deterministic=deterministic):
        choices = choices_of(inputs, op, templates)
        assert [choice.name for choice in choices if choice not in ours_of(choices)] == [op]
        assert _remaining(choices) == choices
    assert len(ours_of(choices)) == len(hook) == (not deterministic)
    assert counters["tilecast"][f"fell back to ATen: {op}"] == deterministic
    assert counters["tilecast"][f"not covered: {op}"] == 0


@pytest.mark.parametrize(
    ("rows", "columns", "k"),
    [(16, 50260, K), (2048, 50257, 256), (4, 50257, K), (16, 1001, 256), (4, 1001, 256)],
)
def test_k_1_takes_rows_that_tma_does_not_store(
    graph: Any, leaving_model: Path, rows: int, columns: int, k: int
) -> None:
    """What is no multiple of 16 bytes costs the library, too."""
    install(k=1, model=leaving_model)
    templates = [mm.aten_mm, mm.mm_template]
    with config.patch(max_autotune_gemm_backends="ATEN,TRITON,TILECAST"):
        (choice,) = choices_of(linear(rows, columns, k), "mm", templates)
    assert choice.choice.matmul.any_rows
    assert [spec.any_rows for spec in choice.choice.specs] == [True]
    assert "batched=False, any_rows=True" in source_of(choice)
    # Its time is not that of its config: nothing is learned from it.
    assert not choice.choice.is_one_kernel


def test_a_linear_layer_that_is_left_is_lowered_to_aten(
    graph: Any, hook: list[KernelSpec], leaving_model: Path
) -> None:
    """Through Inductor's own lowering, which asks ATen for an addmm apart."""
    install(k=1, model=leaving_model)
    with config.patch(max_autotune_gemm_backends="ATEN,TILECAST", deterministic=True):
        choices = lowered(aten.addmm, node("bias", [N]), *linear(M, N, K).nodes())
    assert choices
    assert ours_of(choices) == []
    assert hook == []


@pytest.mark.parametrize(
    ("count", "backends", "stock"),
    [
        (2, "ATEN,TILECAST", ["mm"]),
        ("auto", "ATEN,TILECAST", ["mm"]),
        (1, "TILECAST", []),
        (1, "TRITON,TILECAST", []),
    ],
)
def test_a_model_that_prefers_the_library_offers_kernels_with_a_benchmark_or_without_aten(
    graph: Any, leaving_model: Path, count: int | str, backends: str, stock: list[str]
) -> None:
    install(k=count, model=leaving_model)
    with config.patch(max_autotune_gemm_backends=backends):
        choices = choices_of(linear(M, N, K), "mm", [mm.aten_mm])
    ours = ours_of(choices)
    assert names_of(choices) == stock + names_of(ours)
    assert _names(choices)[:1] == _first(GemmProblem(M, N, K), 1)


def test_a_symbolic_m_that_the_library_wins_throughout_is_left(
    graph: Any, hook: list[KernelSpec], leaving_model: Path
) -> None:
    install(k=1, model=leaving_model)
    choices = choices_of(linear(symbolic(), N, K), "mm", [mm.aten_mm])
    assert [choice.name for choice in choices] == ["mm"]
    assert hook == []
    install(k=3, model=leaving_model)
    choices = choices_of(linear(symbolic(), N, K), "mm", [mm.aten_mm])
    (ours,) = ours_of(choices)
    assert len(ours.choice.configs) == 1


@pytest.mark.parametrize(
    "setting",
    [
        {"max_autotune": False, "max_autotune_gemm": False},
        {"max_autotune_gemm_backends": "ATEN,TRITON"},
    ],
    ids=["no autotuning", "not among the backends"],
)
@pytest.mark.parametrize("count", [1, 3])
def test_nothing_is_added_unasked(
    graph: Any, hook: list[KernelSpec], setting: dict[str, Any], count: int
) -> None:
    install(k=count)
    with config.patch(setting):
        choices = choices_of(linear(), "mm", [mm.aten_mm])
    assert [choice.name for choice in choices] == ["mm"]
    assert hook == []


def test_max_autotune_gemm_is_enough(graph: Any) -> None:
    install(k=2)
    with config.patch(max_autotune=False, max_autotune_gemm=True):
        assert len(ours_of(choices_of(linear(), "mm"))) == 2


UNCOVERED: dict[str, tuple[Any, Callable[[], Sequence[Any]], dict[str, Any]]] = {
    "mm": (aten.mm, lambda: linear(k=1001).nodes(), {}),
    "mm in fp32": (aten.mm, lambda: linear(dtype=torch.float32).nodes(), {}),
    "mm_dtype": (aten.mm, lambda: linear(k=1001).nodes(), {"out_dtype": torch.float32}),
    "bmm": (aten.bmm, lambda: batched(k=33).nodes(), {}),
    "baddbmm": (aten.baddbmm, lambda: [node("c", [4, 512, 128]), *batched(k=33).nodes()], {}),
    "addmm": (aten.addmm, lambda: [node("c", [N]), *linear(k=1001).nodes()], {}),
    "_int_mm": (aten._int_mm, lambda: linear(k=1001, dtype=torch.int8).nodes(), {}),
    "_mm_plus_mm": (tuned_mm_plus_mm, lambda: [*linear().nodes(), *linear().nodes()], {}),
}
"""Operators, operands that we do not cover, and other arguments."""


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("backends", ["TILECAST", "TRITON, tilecast"])
@pytest.mark.parametrize("case", UNCOVERED)
def test_aten_steps_in_where_nobody_else_has_a_choice(
    graph: Any, backends: str, case: str, count: int
) -> None:
    """Triton is for other GPUs than the one that is not there."""
    op, operands, options = UNCOVERED[case]

    def atens() -> bool:
        # PyTorch 2.11 has an addmm for biases that are vectors, too, and calls both ATen's.
        found = names_of(lowered(op, *operands(), **options))
        return {*found} - {"bias_addmm"} == {case.split()[0]}

    with installed(k=count), config.patch(max_autotune_gemm_backends=backends):
        assert atens()
        ours = lowered(aten.mm, *linear().nodes())
        assert len(ours_of(ours)) == len(ours) == count, "ATEN is not named"
    # The net stays: naming us is harmless in every thread that has not heard of it.
    with config.patch(max_autotune_gemm_backends=backends):
        assert atens()
    with config.patch(max_autotune_gemm_backends="TRITON"):
        assert lowered(op, *operands(), **options) == [], "theirs to say"


@pytest.mark.skipif(torch_version() < (2, 12), reason="asks once")
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("backends", ["TILECAST", "ATEN,TILECAST"])
def test_addmm_asks_for_atens_choices_first(graph: Any, count: int, backends: str) -> None:
    """With the bias as it is, while ours expect it expanded."""
    install(k=count)
    with config.patch(max_autotune_gemm_backends=backends):
        choices = lowered(aten.addmm, node("bias", [N]), *linear(M, N, K).nodes())
    assert _names(choices) == _first(WITH_BIAS, count)
    others = ["addmm"] if count > 1 and "ATEN" in backends else []
    assert names_of(choices[: len(choices) - count])[:1] == others


@pytest.mark.parametrize(
    ("which", "extents"),
    [
        ("m", [(2, 1), (16, 1), (192, 1), (1024, 1), (16384, 1)]),
        ("batch", [(M, 2), (M, 16), (M, 192), (M, 1024)]),
        ("m batch", [(2, 2), (16, 512), (1024, 8)]),
    ],
)
def test_a_symbolic_extent_gets_one_choice_with_a_config_for_every_value(
    graph: Any, hook: list[KernelSpec], which: str, extents: list[tuple[int, int]]
) -> None:
    install(k=3)
    m = symbolic("m") if "m" in which.split() else M
    if batch := "batch" in which:
        inputs = batched(m, 128, K, symbolic("batch", 4))
    else:
        inputs = linear(m, 128, K)
    (choice,) = choices_of(inputs, "bmm" if batch else "mm")
    names = [config.name for config in choice.choice.configs]
    assert len(names) == len(set(names)) > 3
    for rows, count in extents:
        assert _first(GemmProblem(rows, 128, K, count), 1)[0] in names
    assert choice.name == "tilecast_dynamic"
    assert "DynamicMatmul.named" in source_of(choice)
    assert [spec.config.name for spec in hook] == names
    assert {spec.batched for spec in hook} == {batch}


def test_a_symbolic_extent_follows_no_file_of_choices(graph: Any, tmp_path: Path) -> None:
    problem, path = GemmProblem(16, 128, K), tmp_path / "choices.csv"
    named = list(candidates(problem, H200))[-1]
    path.write_text(f"m,n,k,config\n16,128,{K},{named}\n")
    inputs, found = linear(symbolic(), 128, K), []
    for choices in (None, path):
        install(k=3, choices=choices)
        found += [choice.choice.configs for choice in choices_of(inputs, "mm")]
    assert found[0] == found[1]
    assert named not in found[1]


def test_another_layout_is_ranked_but_not_without_a_benchmark(graph: Any) -> None:
    """The shipped model has not seen a column-major A with a column-major B."""
    for count, expected in ((3, 3), (1, 0)):
        install(k=count)
        inputs = MMKernelInputs([node("a", [M, K], [1, M]), node("b", [K, N], [1, K])])
        choices = choices_of(inputs, "mm", [mm.aten_mm])
        assert len(ours_of(choices)) == expected
        assert choices[0].name == "mm"


def test_the_model_decides_between_equals(graph: Any) -> None:
    install(k=3)
    choices = choices_of(linear(), "mm", [mm.aten_mm])
    aten, first, second, third = choices
    assert settled(choices, 2, 1.004, 1, 1.002)[0] is first
    assert settled(choices, 2, 1.01, 1.004, 1)[0] is second
    assert settled(choices, 2, 1.1, 1.2, 1)[0] is third
    assert settled(choices, 2, 1, 1.004, 1.1) == [first, second, third, aten]
    assert settled(choices, 0.999, 1.004, 1, 1.1)[0] is aten
    assert counters["tilecast"]["won"] == 4
    assert counters["tilecast"]["lost"] == 1
    assert settled([aten], 1.0) == [aten]


def test_what_a_cat_reads_is_left_to_choices_that_write_in_place(graph: Any) -> None:
    """A choice of ours would cost the copy of all of them."""
    module = torch.fx.symbolic_trace(lambda a, b: torch.ops.aten.cat.default([a @ b, a]))
    product = module.graph.find_nodes(op="call_function", target=operator.matmul)[0]
    install(k=3)
    others, graph.current_node = graph.current_node, product
    assert names_of(choices_of(linear(), "mm", [mm.aten_mm])) == ["mm"]
    install(k=3, invariant=True)  # where a copy is what the same bits cost
    assert len(ours_of(choices_of(linear(), "mm", [mm.aten_mm]))) == 3
    install(k=3)
    graph.current_node = others
    assert len(choices_of(linear(), "mm", [mm.aten_mm])) == 4


def test_threads_that_are_first_together_make_one_template(
    graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, together = hook_template.template(), Barrier(4)
    del type(kept).all_templates[kept.name]
    hook_template._template.cache_clear()
    slow = TilecastTemplate.__init__

    def make(*arguments: Any, **options: Any) -> None:
        time.sleep(0.1)
        slow(*arguments, **options)

    def ask(_: int) -> Any:
        together.wait(60)
        return hook_template.template()

    monkeypatch.setattr(TilecastTemplate, "__init__", make)
    with ThreadPoolExecutor(4) as threads:
        assert len(set(map(id, threads.map(ask, range(4))))) == 1


def test_a_forced_choice_stays_alone_whatever_other_backends_add(graph: Any) -> None:
    install(k=1)
    (forced,) = choices_of(linear(), "mm", [mm.aten_mm])
    (aten,) = choices_of(linear(k=1001), "mm", [mm.aten_mm])
    assert _remaining([aten, forced]) == [forced]
    assert _remaining([aten]) == [aten]
    install(k=2)
    ours = choices_of(linear(), "mm")
    assert _remaining([aten, *ours]) == [aten, *ours]


def _imported(source: str) -> set[str]:
    names = set()
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.Import):
            names |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            names.add(statement.module or "")
    return names


def test_generated_modules_need_no_installation(graph: Any, tmp_path: Path) -> None:
    """Each is imported by an interpreter that has seen nothing of the hook."""
    install(k=2)
    sources = [
        source_of(choices_of(inputs, op)[0])
        for inputs, op in (
            (linear(), "mm"),
            (biased_linear(), "addmm"),
            (batched(), "bmm"),
            (linear(symbolic()), "mm"),
        )
    ]
    paths = []
    for position, source in enumerate(sources):
        imported = _imported(source)
        assert "torch" in imported
        assert all(n == "torch" or n.startswith("tilecast.inductor_hook.run.") for n in imported)
        paths.append(tmp_path / f"generated_{position}.py")
        paths[-1].write_text(source)
    code = f"""
import runpy, sys
kernels = [runpy.run_path(path)["matmul"] for path in {list(map(str, paths))}]
print(*(type(kernel).__name__ for kernel in kernels))
print(*sys.modules)
"""
    process = python(code)
    kinds, modules = process.stdout.splitlines()
    assert kinds.split() == ["StaticMatmul"] * 3 + ["DynamicMatmul"]
    loaded = set(modules.split())
    assert loaded & {"cutlass", "torch._inductor", "tilecast.inductor_hook.installation"} == set()


@pytest.mark.parametrize("shape", [[N], [1, N]], ids=str)
def test_a_bias_of_one_row_goes_to_the_kernel(
    graph: Any, hook: list[KernelSpec], shape: list[int]
) -> None:
    """As Inductor's own lowering hands it over."""
    install(k=2)
    choices = ours_of(lowered(aten.addmm, node("bias", shape), *linear(M, N, K).nodes()))
    problem = GemmProblem(M, N, K, operands=GemmOperands.parse("bf16:rcr:bias"))
    assert _names(choices) == _first(problem, 2)
    assert {spec.operands for spec in hook} == {problem.operands}
    for choice in choices:
        source = source_of(choice)
        assert "matmul(A, B, out_ptr0, row(bias))" in source
        assert "'bf16:rcr:bias'" in source


@pytest.mark.parametrize("shape", [[M, N], [M, 1], [1]], ids=str)
@pytest.mark.parametrize("count", [1, 2])
def test_other_biases_are_left_to_aten(
    graph: Any, hook: list[KernelSpec], knowing_no_matrix: None, shape: list[int], count: int
) -> None:
    """A matrix too, where the model has seen no kernel that adds one."""
    install(k=count)
    with config.patch(max_autotune_gemm_backends="TILECAST"):
        choices = lowered(aten.addmm, node("bias", shape), *linear(M, N, K).nodes())
    assert set(names_of(choices)) - {"bias_addmm"} == {"addmm"}
    assert hook == []


@pytest.mark.parametrize(
    ("factors", "steps", "handed"),
    [
        ({}, "c", "c"),
        ({"alpha": 0.5}, "alpha+c", "0.5, c"),
        ({"beta": -2.5}, "beta-c", "c, -2.5"),
        ({"alpha": 2, "beta": 3}, "alpha+beta-c", "2.0, c, 3.0"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_a_matrix_goes_to_the_kernel_of_a_model_that_knows_such(
    graph: Any,
    hook: list[KernelSpec],
    model_of: Callable[..., Path],
    factors: dict[str, float],
    steps: str,
    handed: str,
    count: int,
) -> None:
    install(k=count, model=model_of("bf16:rcr bf16:rcr:c"))
    operands = [node("c", [M, N]), *linear(M, N, K).nodes()]
    choices = ours_of(lowered(aten.addmm, *operands, **factors))
    assert len(choices) == count
    for choice in choices:
        assert f"matmul(A, B, out_ptr0, {handed})" in source_of(choice)
        assert f"'bf16:rcr:{steps}'" in source_of(choice)
        assert choice.choice.is_one_kernel
    assert {spec.operands.text for spec in hook} == {f"bf16:rcr:{steps}"}


@pytest.mark.parametrize(
    ("known", "batch", "step"),
    [
        ("bf16:rcr bf16:rcr:c", [4, M, 128], "c"),
        ("bf16:rcr", [128], "bias"),
    ],
)
def test_what_is_added_to_a_batch(
    graph: Any,
    hook: list[KernelSpec],
    model_of: Callable[..., Path],
    known: str,
    batch: list[int],
    step: str,
) -> None:
    """Through Inductor's own lowering; a matrix as the model knows such kernels."""
    install(k=2, model=model_of(known))
    operands = [node("inp", batch), *batched(M, 128, K).nodes()]
    choices = ours_of(lowered(aten.baddbmm, *operands))
    assert len(choices) == 2
    handed = {"c": ", c", "bias": ", row(bias)"}[step]
    for choice in choices:
        assert f"matmul(A, B, out_ptr0{handed})" in source_of(choice)
        assert "batched=True" in source_of(choice)
    assert {(spec.operands.text, spec.batched) for spec in hook} == {(f"bf16:rcr:{step}", True)}


def _graph_key() -> str:
    graph = torch.fx.symbolic_trace(lambda a, b: a @ b)
    return compiled_fx_graph_hash(graph, [], {}, [])[0]


def test_keys_of_a_thread_that_had_one_before_see_the_hook(graph: Any) -> None:
    with ThreadPoolExecutor(1) as thread:
        before = thread.submit(_graph_key).result()
        install(k=3)
        three = thread.submit(_graph_key).result()
        install(k=1)
        one = thread.submit(_graph_key).result()
        assert len({before, three, one}) == 3
        uninstall()
        assert thread.submit(_graph_key).result() == before


def test_operands_that_are_none_of_ours_keep_their_layout_open(graph: Any) -> None:
    """Inductor may yet lay out what it computes as something else wants it."""
    install(k=1)
    for dtype, is_fixed in ((torch.float32, False), (torch.bfloat16, True)):
        stored = TensorBox(StorageBox(node("a", [M, K], dtype=torch.float16)))
        a: Any = realize_inputs(to_dtype(stored, dtype))
        b = node("b", [K, N], [1, K], dtype=dtype)
        choices_of(MMKernelInputs([a, b]), "mm")
        buffer: Any = V.graph.get_buffer(a.get_name())
        assert isinstance(buffer.layout, FixedLayout) == is_fixed


def _full_disk(*_: Any) -> NoReturn:
    raise OSError(28, "No space left on device")


def test_whatever_fails_among_choices_or_times_inductor_goes_on(
    graph: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(k=2)
    ours = choices_of(linear(M, N, K), "mm")
    strange = object()
    assert benchmarked([*ours, strange]) == [*ours, strange]
    monkeypatch.setattr(hook_timings, "_report", _full_disk)
    hook_timings.settle({one: 1.0 for one in ours}, "mm", None)
    assert [warning.split(" failed")[0] for warning in warnings_told(caplog)] == [
        "tilecast: selecting choices to benchmark",
        "tilecast: comparing times",
    ]


def test_another_model_makes_other_sources_and_keys(graph: Any, another_model: Path) -> None:
    seen = []
    for model in (None, another_model):
        install(k=2, model=model)
        choice = choices_of(linear(), "mm")[0]
        assert choice.choice.settings.digest in source_of(choice)
        assert choice.choice.settings.digest in choice.hash_key()
        assert choice.choice.settings.digest in _handler().uuid()
        seen.append(
            (choice.choice.configs, choice.choice.settings.digest, choice.hash_key(), _graph_key())
        )
    (configs, *shipped), (same_configs, *other) = seen
    assert configs == same_configs
    assert all(a != b for a, b in zip(shipped, other, strict=True))


def test_other_choices_are_benchmarked_while_ours_compile(
    graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of the graph, and a process that benchmarks for this one, find them there."""
    waited: list[KernelSpec] = []
    monkeypatch.setattr(ObjectBuilder, "wait", lambda self, spec: waited.append(spec))
    install(k=2)
    (caller, _) = ours_of(choices_of(linear(M, N, K), "mm"))
    caller.precompile()
    assert waited == []
    monkeypatch.setattr(caller, "_render", lambda: "code")
    assert caller._render_compiled() == "code"
    specs = [*caller.choice.specs]
    assert waited == specs
    for i, setting in enumerate(("autotune_in_subproc", "pipeline_max_autotune_gemm"), 2):
        with config.patch({setting: True}):
            caller.precompile()
        assert waited == specs * i


def test_keys_of_choices_tell_them_apart(graph: Any) -> None:
    install(k=5)
    choices = [
        *choices_of(linear(), "mm"),
        *choices_of(biased_linear(), "addmm"),
        *choices_of(batched(), "bmm"),
        *choices_of(linear(symbolic()), "mm"),
    ]
    assert len({choice.hash_key() for choice in choices}) == len(choices) == 16


def test_pytorch_2_11_keys_by_pickling_the_factory(
    hook: list[KernelSpec], another_model: Path
) -> None:
    pickled = set()
    for options in ({"k": 3}, {"k": 5}, {"k": 3, "model": another_model}):
        install(**options)  # type: ignore[arg-type]
        factory = config.inductor_choices_class
        pickled.add(pickle.dumps(factory))
        assert pickle.loads(pickle.dumps(factory)) == factory
        install(**options)  # type: ignore[arg-type]
        assert pickle.dumps(config.inductor_choices_class) in pickled
    assert len(pickled) == 3
    uninstall()


def test_keys_see_everything_that_a_choice_depends_on(
    graph: Any,
    monkeypatch: pytest.MonkeyPatch,
    another_model: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Of a compiled graph and of a timing: settings, the model's folder, source and compiler."""
    request.addfinalizer(keys.toolchain.cache_clear)
    folder = str(another_model)
    moved = shutil.copytree(another_model, another_model.with_name("moved"))
    settings = Settings(3, folder)
    others = [
        *(Settings(5, folder), Settings(3, folder, "burst"), Settings(3)),
        *(Settings(3, folder, rank_nvgemm=True), Settings(3, str(moved))),
        *(replace(settings, digest="0" * 16), replace(settings, fuse=False)),
        replace(settings, rank_flex_gemm=True),
    ]
    assert settings.digest == others[4].digest
    assert len({cache_key(each) for each in (settings, *others, None)}) == len(others) + 2

    seen = []
    for version in ("here", "there"):
        facts = {"family": "quack_sm90", "sources": version}
        monkeypatch.setattr(keys, "family_facts", lambda name, facts=facts: facts)
        keys.toolchain.cache_clear()
        install(k=1)
        (choice,) = choices_of(linear(), "mm")
        seen.append((cache_key(settings), choice.hash_key(), _graph_key()))
        assert choice.hash_key() == choice.hash_key()
    assert all(here != there for here, there in zip(*seen, strict=True))


def test_graphs_of_other_code_are_compiled_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def key_in(folder: Path) -> tuple[Any, ...]:
        monkeypatch.setattr(settings_module, "__file__", str(folder / "inductor_hook/settings.py"))
        settings_module._source.cache_clear()
        return cache_key(Settings(3))

    here = Path(settings_module.__file__).parents[1]
    for name in ("data_collection", "heuristics", "inductor_hook", "kernels", "models"):
        ignored = shutil.ignore_patterns("artifacts", "data")
        shutil.copytree(here / name, tmp_path / name, ignore=ignored)
    keys = [cache_key(Settings(3))]
    try:
        assert key_in(tmp_path) == keys[0]
        for changed in ("inductor_hook/fuse/activation.py", "data_collection/timing/tensors.py"):
            with (tmp_path / changed).open("a") as file:
                file.write("# mended\n")
            keys.append(key_in(tmp_path))
        assert len(set(keys)) == 3
    finally:
        settings_module._source.cache_clear()


@pytest.mark.parametrize(("extents", "patched"), [([64], True), ([1], False), ([32, 64], False)])
def test_a_row_is_timed_as_a_row(extents: list[int], patched: bool) -> None:
    choice: Any = object.__new__(ExternKernelCaller)
    timed: list[tuple[int, ...]] = []
    vars(choice).update(
        name="addmm",
        input_nodes=[SimpleNamespace(get_size=lambda: extents)],
        layout=SimpleNamespace(size=[32, 64]),
        benchmark=lambda bias, *rest, out: timed.append(tuple(bias.shape)),
    )
    time_as_it_runs(choice)
    choice.benchmark(torch.zeros(64).expand(32, 64), out=None)
    assert timed == [(64,) if patched else (32, 64)]


def test_counting_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may have begun to import Dynamo."""
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", ModuleType("torch._dynamo.utils"))
    telemetry.count("problems")


def _looked_up(choices: list[Any], *milliseconds: float) -> tuple[bool, dict[Any, float]]:
    """Whether Inductor benchmarks choices, as its autotuner does, and the times that it has then.

    Args:
        choices: the choices.
        milliseconds: what a benchmark would find.
    """
    benchmarked = []

    def benchmark(asked: list[Any]) -> dict[Any, float]:
        benchmarked.extend(asked)
        return dict(zip(asked, milliseconds, strict=True))

    tuner = get_algorithm_selector_cache()
    timings = tuner.lookup(choices, "mm", "inputs", benchmark)
    found = dict(timings)
    saver: Any  # 2.15 passes on more than 2.11
    for saver in tuner.feedback_saver_fns:
        saver(timings, "mm", [], choices, None, None)
    return bool(benchmarked), found


@pytest.mark.parametrize("failed", [FAILED_MS, float("inf")])
def test_a_kernel_that_failed_once_is_tried_again(graph: Any, failed: float) -> None:
    """A worker may have run out of memory. In a fresh cache, for two problems."""
    install(k=2)
    with fresh_cache():
        aten, first, second = choices_of(linear(), "mm", [mm.aten_mm])
        other = choices_of(linear(n=1024), "mm")
        assert _looked_up(other, 3, 4)[0]
        assert _looked_up([aten, first, second], 2, failed, 1)[0]
        benchmarked, timings = _looked_up([aten, first, second], 2, 0.5, 1)
        assert benchmarked
        assert timings[first] == 0.5
        assert not _looked_up([aten, first, second], 9, 9, 9)[0]
        assert not _looked_up(other, 9, 9)[0]
