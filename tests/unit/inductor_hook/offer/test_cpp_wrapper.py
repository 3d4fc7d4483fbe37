"""Our choices under Inductor's C++ wrapper: what is generated, compiled and called."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hook_graph import (
    batched,
    biased_linear,
    check_handed,
    choices_of,
    grouped,
    linear,
    lowering,
)
from torch._dynamo.source import ConstantSource
from torch._dynamo.utils import counters
from torch._inductor import config, graph
from torch._inductor.kernel_inputs import KernelInputs, MMKernelInputs
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tilecast.heuristics.hardware import hardware
from tilecast.inductor_hook import install, installed
from tilecast.inductor_hook.offer import cpp_wrapper
from tilecast.inductor_hook.run import cpp_operator, in_torch, static
from tilecast.inductor_hook.select import selection
from tilecast.kernels.build.builder import ObjectBuilder
from tilecast.kernels.spec import KernelSpec

M, N, K = 48, 264, 72


@pytest.fixture
def compiled(
    hook: list[KernelSpec], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[Any, str, list[KernelSpec]]]]:
    """Compiles a function with a C++ wrapper, and calls it; the CPU passes for a GPU.

    Gives the results, the code and the kernels that were launched, which torch stands in for.
    """
    launched: list[KernelSpec] = []

    def load(spec: KernelSpec, device: int) -> Callable[..., None]:
        def kernel(*tensors: torch.Tensor) -> None:
            launched.append(spec)
            check_handed(spec, *tensors)
            in_torch.in_torch(spec.operands)(*tensors)

        return kernel

    monkeypatch.setattr(static, "loaded_kernel", load)
    cpp_operator._named.cache_clear()
    monkeypatch.setattr(ObjectBuilder, "wait", lambda builder, spec: None)
    monkeypatch.setattr(selection, "hardware_of", lambda device, settings: hardware("H200"))
    monkeypatch.setattr(graph, "should_assume_input_aligned", lambda example: True)
    monkeypatch.setattr(KernelInputs, "device_type", "cuda")

    def run(
        function: Callable,
        *operands: torch.Tensor,
        fuse: bool = False,
        model: Path | None = None,
    ) -> tuple[Any, str, list[KernelSpec]]:
        torch._dynamo.reset()
        with (
            installed(k=1, model=model, fuse=fuse),
            fresh_cache(),
            config.patch(
                max_autotune=True, max_autotune_gemm_backends="TILECAST", cpp_wrapper=True
            ),
        ):
            results, codes = run_and_get_code(torch.compile(function, fullgraph=True), *operands)
        return results, "\n".join(codes), launched

    yield run
    cpp_operator._named.cache_clear()


def _bf16(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16()


def _near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Within a rounding to bf16: what torch adds in one step, we round before."""
    difference = torch.linalg.vector_norm(found.double() - expected.double())
    return bool(difference < 4e-3 * torch.linalg.vector_norm(expected.double()))


def test_every_kind_of_product_is_called_from_cpp(
    compiled: Callable, model_of: Callable[..., Path]
) -> None:
    """Views of operands, a row that a kernel adds, a batch, a matrix that a kernel adds with its
    factors, rows that TMA does not store, groups of rows; all in one graph, as its compiler takes
    ten seconds."""

    def function(
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor,
        c: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        d: torch.Tensor,
        odd: torch.Tensor,
        ends: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        hidden = F.linear(x[:, 8:], w[8:], bias)
        return (
            torch.relu(hidden) @ w[8:],
            torch.bmm(a, b.mT),
            torch.addmm(d, c, w[8:].T, alpha=0.5, beta=3),
            c @ odd.T,
            F.grouped_mm(c, b.mT, offs=ends),
        )

    shapes = ((M, K + 8), (N + 8, K), (N,), (M, K), (3, M, K), (3, N, K), (M, N), (N + 1, K))
    operands = [*(_bf16(*shape) for shape in shapes), torch.tensor([5, 5, M], dtype=torch.int32)]
    texts = "bf16:rcr bf16:rrr bf16:rcr:bias bf16:rcr:c bf16:rcr:row-groups"
    results, code, launched = compiled(function, *operands, model=model_of(texts))
    assert [(spec.operands.text, spec.batched, spec.any_rows) for spec in launched] == [
        ("bf16:rcr:bias", False, False),
        ("bf16:rrr", False, False),
        ("bf16:rcr", True, False),
        ("bf16:rcr:alpha+beta-c", False, False),
        ("bf16:rcr", False, True),
        ("bf16:rcr:row-groups", False, False),
    ]
    for found, expected in zip(results, function(*operands), strict=True):
        assert _near(found, expected)
    assert counters["tilecast"] == {"problems": 6}
    assert all(f'"{spec.config.name}"' in code for spec in launched)
    assert cpp_wrapper.IMPORT in code.split("cpp_wrapper_src")[0].splitlines()


@pytest.fixture
def cpp_graph(graph: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A graph on a GPU that gets a C++ wrapper."""
    monkeypatch.setattr(ObjectBuilder, "wait", lambda builder, spec: None)
    graph.cpp_wrapper = True
    graph.device_types.add("cuda")
    graph.device_type = "cuda"
    return graph


def _written(graph: Any, choice: Any) -> str:
    """What is generated for the call of a choice."""
    call = choice.output_node().data.data
    graph.init_wrapper_code()
    call.codegen(graph.wrapper_code)
    return "\n".join(map(str, graph.wrapper_code.lines))


PRODUCTS: dict[str, tuple[Callable[[], Any], str]] = {
    "mm": (linear, "mm"),
    "bmm": (batched, "bmm"),
    "a row": (biased_linear, "addmm"),
    "groups": (lambda: MMKernelInputs(grouped(), mat1_idx=0, mat2_idx=1), "grouped_mm"),
}
"""Products, and what Inductor calls them."""


@pytest.mark.parametrize("kind", PRODUCTS)
def test_a_gpu_graph_calls_the_operator_with_the_kernel_by_name(cpp_graph: Any, kind: str) -> None:
    inputs, op = PRODUCTS[kind]
    install(k=3)
    choices = choices_of(inputs(), op)
    assert len(choices) == 3
    for choice in choices:
        code = _written(cpp_graph, choice)
        operands = choice.choice.matmul.hint.operands.text
        for text in (choice.choice.configs[0].name, operands):
            assert code.count(f'"{text}"') == 1
        names = [node.get_name() for node in choice.input_nodes]
        assert all(re.search(rf"\({name}(\.get\(\))?\)", code) for name in names)
        assert re.search(r'"(tilecast::launch|torch\.ops\.tilecast\.launch\.default)"', code)


def test_inductors_first_pass_calls_it_from_python(cpp_graph: Any) -> None:
    """Where Triton's kernels are tuned in one, before the C++ is written."""
    install(k=1)
    (choice,) = choices_of(biased_linear(), "addmm")
    call = choice.output_node().data.data
    cpp_graph.cpp_wrapper = False
    cpp_graph.init_wrapper_code()
    call.codegen(cpp_graph.wrapper_code)
    (config,), out = choice.choice.configs, call.get_name()
    assert cpp_graph.wrapper_code.lines[-1] == (
        f"torch.ops.tilecast.launch.default(a, b, {out}, [bias], ['{config.name}'], "
        "'bf16:rcr:bias', [], 1.0, 1.0)"
    )


def test_a_models_folder_is_spelled_as_cpp_reads_it(hook: Any, another_model: Path) -> None:
    folder = another_model.with_name('an "odd\\name"')
    another_model.rename(folder)
    symbols = ShapeEnv()
    m = symbols.create_symbol(17, ConstantSource("m"))
    with lowering(symbols) as graph:
        graph.cpp_wrapper = True
        graph.device_types.add("cuda")
        graph.device_type = "cuda"
        install(k=1, model=folder)
        (choice,) = choices_of(linear(m), "mm")
        code = _written(graph, choice)
    assert '/an \\"odd\\\\name\\""' in code


def test_the_operator_needs_no_installation_and_no_inductor() -> None:
    """A graph of Inductor's cache may be all that a process has of us."""
    code = f"""
{cpp_wrapper.IMPORT}
import sys, torch
print(torch.ops.tilecast.launch.default._schema.name)
print(*sys.modules)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    name, modules = process.stdout.splitlines()
    assert name == "tilecast::launch"
    loaded = {"cutlass", "torch._inductor", "tilecast.inductor_hook.installation"}
    assert loaded & set(modules.split()) == set()
