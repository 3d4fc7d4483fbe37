"""What the handler adds to Inductor's choices, what it leaves alone, and what caches see of it."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.codecache import compiled_fx_graph_hash
from torch._inductor.kernel import bmm, mm
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import ShapeEnv

sys.path.insert(0, str(Path(__file__).parent))

from hook_graph import batched, biased_linear, choices_of, linear, lowering, node, source_of

from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import LINEAR_BF16, GemmProblem
from tilecast.inductor_hook import install, installed, uninstall
from tilecast.inductor_hook.template import TilecastCaller
from tilecast.inductor_hook.versions import is_last_call, torch_version
from tilecast.kernels.cutlass_sm90.space import candidates
from tilecast.kernels.spec import KernelSpec
from tilecast.models.learned import load_heuristic

H200 = hardware("H200")
M, N, K = 512, 4096, 4096


@pytest.fixture
def graph(hook: list[KernelSpec]) -> Iterator[Any]:
    with lowering() as graph:
        yield graph


@pytest.fixture
def symbols(hook: list[KernelSpec]) -> Iterator[ShapeEnv]:
    symbols = ShapeEnv()
    with lowering(symbols):
        yield symbols


def _symbolic_m(symbols: ShapeEnv, hint: int = 17) -> Any:
    from torch._dynamo.source import ConstantSource

    return symbols.create_symbol(hint, ConstantSource("m"))


def _handler() -> Any:
    """The choices handler of this thread."""
    return V.choices


def _ours(choices: list[Any]) -> list[TilecastCaller]:
    return [choice for choice in choices if isinstance(choice, TilecastCaller)]


def _first(problem: GemmProblem, count: int, power: str = "robust") -> list[str]:
    heuristic = load_heuristic(H200, problem.operands, power)
    ranking = heuristic.rank(problem, candidates(problem, H200), limit=count)
    return [config.name for config in ranking]


def _names(choices: list[Any]) -> list[str]:
    return [choice.choice.configs[0].name for choice in _ours(choices)]


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
    assert _names(choices_of(biased_linear(M, N, K), "addmm")) == _first(GemmProblem(M, N, K), 3)
    expected = _first(GemmProblem(M, 128, K, 4), 3)
    assert _names(choices_of(batched(M, 128, K, 4), "bmm")) == expected
    assert [spec.batched for spec in hook] == [False] * 3 + [True] * 3


def test_descriptions_say_time_and_model(graph: Any) -> None:
    install(k=2)
    problem = GemmProblem(M, N, K)
    predictions = load_heuristic(H200, LINEAR_BF16).predict(problem, candidates(problem, H200))
    for choice, prediction in zip(choices_of(linear(M, N, K), "mm"), predictions, strict=False):
        time = f"predicted {prediction.microseconds / 1000:.4f} ms"
        assert choice.description == f"{time}, model {choice.choice.model}"


@pytest.mark.parametrize(
    ("op", "inputs", "template"),
    [
        ("mm", lambda: linear(), mm.aten_mm),
        ("bmm", lambda: batched(), bmm.aten_bmm),
    ],
)
def test_stock_choices_stay_in_front(graph: Any, op: str, inputs: Any, template: Any) -> None:
    install(k=3)
    choices = choices_of(inputs(), op, [template])
    assert choices[0].name == op
    assert _ours(choices) == choices[1:]
    assert len(choices) == 4


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


def test_k_1_leaves_what_is_not_covered_to_the_others(graph: Any) -> None:
    install(k=1)
    choices = choices_of(linear(n=1001), "mm", [mm.aten_mm])
    assert [choice.name for choice in choices] == ["mm"]
    assert counters["tilecast"]["not covered: mm"] == 1


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
        assert len(_ours(choices_of(linear(), "mm"))) == 2


@pytest.mark.parametrize(
    ("op", "inputs", "name"),
    [
        ("mm", lambda: linear(n=1001), "mm"),
        ("bmm", lambda: batched(n=33), "bmm"),
        ("addmm", lambda: biased_linear(n=1001), "addmm"),
        ("mm", lambda: linear(dtype=torch.float32), "mm"),
    ],
)
def test_aten_steps_in_where_tilecast_is_alone(graph: Any, op: str, inputs: Any, name: str) -> None:
    install(k=3)
    with config.patch(max_autotune_gemm_backends="TILECAST"):
        assert [choice.name for choice in choices_of(inputs(), op)] == [name]
        assert len(_ours(choices_of(linear(), "mm"))) == 3
    # Others were asked for and have nothing: that is theirs to say.
    assert choices_of(inputs(), op) == []


def test_aten_steps_in_with_a_wider_output(graph: Any) -> None:
    install(k=3)
    a, b = linear(n=1001).nodes()
    with config.patch(max_autotune_gemm_backends="TILECAST"):
        inputs = MMKernelInputs([a, b], out_dtype=torch.float32)
        (choice,) = choices_of(inputs, "mm")
    assert choice.name == "mm_dtype"
    assert choice.layout.dtype == torch.float32


def test_a_graph_of_uncovered_products_compiles_with_tilecast_alone(hook: list[KernelSpec]) -> None:
    """On the CPU, where nothing is covered."""
    from torch._inductor.utils import fresh_cache

    a, b = torch.randn(8, 16), torch.randn(16, 24)
    with (
        installed(k=3),
        fresh_cache(),
        config.patch(max_autotune=True, max_autotune_gemm_backends="TILECAST"),
    ):
        product = torch.compile(lambda a, b: a @ b, fullgraph=True)(a, b)
    torch.testing.assert_close(product, a @ b)
    assert counters["tilecast"]["not covered: mm"] >= 1


@pytest.mark.skipif(torch_version() < (2, 12), reason="asks once")
@pytest.mark.parametrize("count", [1, 3])
def test_early_calls_for_addmm_add_nothing(graph: Any, count: int) -> None:
    """ATen's choices are asked for first, then those of a contiguous copy; the bias differs."""
    install(k=count)
    narrow = MMKernelInputs(
        [node("bias", [N], [1]), *linear(M, N, K).nodes()], scalars={"alpha": 1, "beta": 1}
    )
    early = [
        choice
        for templates in ([mm.aten_addmm], [mm.addmm_contiguous_subgraph_template])
        for choice in choices_of(narrow, "addmm", templates)
    ]
    assert _ours(early) == []
    assert bool(early) == (count > 1)
    last = V.choices._finalize_template_configs(
        {}, biased_linear(M, N, K), [mm.mm_template], "addmm"
    )
    assert len(last) == count
    assert len(_ours(choices_of(biased_linear(M, N, K), "addmm"))) == count


def test_last_calls() -> None:
    early = torch_version() < (2, 12)
    assert is_last_call("mm", [mm.aten_mm])
    assert is_last_call("bmm", [])
    assert is_last_call("addmm", [])
    assert is_last_call("addmm", [mm.mm_template])
    assert is_last_call("addmm", [mm.aten_addmm, mm.mm_template])
    assert is_last_call("addmm", [mm.aten_addmm]) == early


def test_a_symbolic_m_gets_one_choice_with_a_config_for_every_m(
    symbols: ShapeEnv, hook: list[KernelSpec]
) -> None:
    install(k=3)
    (choice,) = choices_of(linear(_symbolic_m(symbols), N, K), "mm")
    names = [config.name for config in choice.choice.configs]
    assert len(names) == len(set(names)) > 3
    for m in (2, 16, 192, 1024, 16384):
        assert _first(GemmProblem(m, N, K), 1)[0] in names
    assert choice.name == "tilecast_dynamic"
    assert [spec.config.name for spec in hook] == names


def test_operands_that_share_memory_are_refused_or_benchmarked(graph: Any) -> None:
    """``x + x @ w`` becomes ``addmm(x, x, w)``; Inductor benchmarks it with x passed once."""
    install(k=1)
    x, w, out = (torch.zeros(K, K, dtype=torch.bfloat16) for _ in range(3))
    x_node = node("x", [K, K])
    inputs = MMKernelInputs(
        [x_node, x_node, node("w", [K, K], [1, K])], scalars={"alpha": 1, "beta": 1}
    )
    for choice in choices_of(inputs, "addmm"):
        assert callable(choice.bmreq.make_run_fn(x, w.T, out=out))


def test_another_layout_is_ranked_but_not_without_a_benchmark(graph: Any) -> None:
    """The shipped model has not seen a row-major B."""
    for count, expected in ((3, 3), (1, 0)):
        install(k=count)
        inputs = MMKernelInputs([node("a", [M, K]), node("b", [K, N])])
        choices = choices_of(inputs, "mm", [mm.aten_mm])
        assert len(_ours(choices)) == expected
        assert choices[0].name == "mm"


def _settled(choices: list[Any], *milliseconds: float) -> list[Any]:
    """The choices by their time, as Inductor sees them after its benchmark."""
    from torch._inductor.select_algorithm import get_algorithm_selector_cache

    timings = dict(zip(choices, milliseconds, strict=True))
    saver: Any  # 2.15 passes on more than 2.11
    for saver in get_algorithm_selector_cache().feedback_saver_fns:
        saver(timings, "mm", [], {}, None)
    return sorted(timings, key=lambda choice: timings[choice])


def test_the_model_decides_between_equals(graph: Any) -> None:
    install(k=3)
    choices = choices_of(linear(), "mm", [mm.aten_mm])
    aten, first, second, third = choices
    assert _settled(choices, 2, 1.004, 1, 1.002)[0] is first
    assert _settled(choices, 2, 1.01, 1.004, 1)[0] is second
    assert _settled(choices, 2, 1.1, 1.2, 1)[0] is third
    assert _settled(choices, 2, 1, 1.004, 1.1) == [first, second, third, aten]
    assert _settled(choices, 0.999, 1.004, 1, 1.1)[0] is aten
    assert counters["tilecast"]["won"] == 4
    assert counters["tilecast"]["lost"] == 1
    assert _settled([aten], 1.0) == [aten]


def test_a_sole_choice_stays_alone_whatever_other_backends_add(graph: Any) -> None:
    from torch._inductor.select_algorithm import get_algorithm_selector_cache

    def remaining(choices: list[Any]) -> list[Any]:
        for function in get_algorithm_selector_cache().preprocessing_fns:
            choices = function(choices)
        return choices

    install(k=1)
    (sole,) = choices_of(linear(), "mm", [mm.aten_mm])
    (aten,) = choices_of(linear(n=1001), "mm", [mm.aten_mm])
    assert remaining([aten, sole]) == [sole]
    assert remaining([aten]) == [aten]
    install(k=2)
    ours = choices_of(linear(), "mm")
    assert remaining([aten, *ours]) == [aten, *ours]


def _imported(source: str) -> set[str]:
    names = set()
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.Import):
            names |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            names.add(statement.module or "")
    return names


def test_generated_modules_need_no_installation(symbols: ShapeEnv, tmp_path: Path) -> None:
    """Each is imported by an interpreter that has seen nothing of the hook."""
    install(k=1)
    sources = [
        source_of(choices_of(inputs, op)[0])
        for inputs, op in (
            (linear(), "mm"),
            (biased_linear(alpha=0.5), "addmm"),
            (batched(), "bmm"),
            (linear(_symbolic_m(symbols)), "mm"),
        )
    ]
    paths = []
    for position, source in enumerate(sources):
        assert _imported(source) == {"torch", "tilecast.inductor_hook.launcher"}
        paths.append(tmp_path / f"generated_{position}.py")
        paths[-1].write_text(source)
    code = f"""
import runpy, sys
kernels = [runpy.run_path(path)["matmul"] for path in {list(map(str, paths))}]
print(*(type(kernel).__name__ for kernel in kernels))
print(*sys.modules)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    kinds, modules = process.stdout.splitlines()
    assert kinds.split() == ["StaticMatmul"] * 3 + ["DynamicMatmul"]
    loaded = set(modules.split())
    assert loaded & {"cutlass", "torch._inductor", "tilecast.inductor_hook.installation"} == set()


def test_the_source_names_what_it_runs(symbols: ShapeEnv) -> None:
    install(k=1)
    (choice,) = choices_of(batched(M, 128, K, 4), "bmm")
    (spec,) = choice.choice.specs
    for text in (repr(spec.config.name), "'rcr'", "batched=True", "arch='sm_90a'"):
        assert text in source_of(choice)
    (biased,) = choices_of(biased_linear(alpha=0.5), "addmm")
    assert "add_bias(out_ptr0, bias, 0.5, 1)" in source_of(biased)
    (dynamic,) = choices_of(linear(_symbolic_m(symbols), N, K), "mm")
    for spec in dynamic.choice.specs:
        assert repr(spec.config.name) in source_of(dynamic)


def _graph_key() -> str:
    graph = torch.fx.symbolic_trace(lambda a, b: a @ b)
    return compiled_fx_graph_hash(graph, [], {}, [])[0]


def test_another_model_makes_other_sources_and_keys(graph: Any, another_model: Path) -> None:
    seen = []
    for model in (None, another_model):
        install(k=1, model=model)
        (choice,) = choices_of(linear(), "mm")
        assert choice.choice.model in source_of(choice)
        assert choice.choice.model in choice.hash_key()
        assert choice.choice.model in _handler().uuid()
        seen.append((choice.choice.configs, choice.choice.model, choice.hash_key(), _graph_key()))
    (configs, *shipped), (same_configs, *other) = seen
    assert configs == same_configs
    assert all(a != b for a, b in zip(shipped, other, strict=True))


def test_a_model_trained_anew_in_its_folder_is_another(graph: Any, another_model: Path) -> None:
    manifest = another_model / "manifest.json"
    install(k=1, model=another_model)
    before = _handler().uuid()
    shipped = Path(sys.modules["tilecast.models.artifact"].SHIPPED, "H200-bfloat16-rcr")
    manifest.write_text((shipped / "manifest.json").read_text())
    install(k=1, model=another_model)
    assert _handler().uuid() != before


def test_keys_of_choices_tell_them_apart(symbols: ShapeEnv) -> None:
    install(k=5)
    choices = [
        *choices_of(linear(), "mm"),
        *choices_of(biased_linear(), "addmm"),
        *choices_of(biased_linear(alpha=2), "addmm"),
        *choices_of(batched(), "bmm"),
        *choices_of(linear(_symbolic_m(symbols)), "mm"),
    ]
    assert len({choice.hash_key() for choice in choices}) == len(choices) == 21


def test_a_compiled_graph_is_kept_under_settings_and_model(
    hook: list[KernelSpec], another_model: Path
) -> None:
    keys = {"stock": _graph_key()}
    for name, options in {
        "k=3": {"k": 3},
        "k=5": {"k": 5},
        "auto": {"k": "auto"},
        "burst": {"k": 3, "power": "burst"},
        "model": {"k": 3, "model": another_model},
    }.items():
        with installed(**options):
            keys[name] = _graph_key()
            assert _graph_key() == keys[name]
    assert len(set(keys.values())) == len(keys)
    assert _graph_key() == keys["stock"]


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
