"""Tilecast's choices under Inductor's C++ wrapper: what is generated for them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hook_graph import batched, biased_linear, choices_of, grouped, linear, symbolic
from processes import python
from torch._inductor.kernel_inputs import MMKernelInputs

from tilecast.inductor_hook import install
from tilecast.inductor_hook.offer import cpp_wrapper
from tilecast.inductor_hook.select import selection
from tilecast.kernels.build.builder import ObjectBuilder


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


@pytest.mark.parametrize("untried", [False, True])
def test_inductors_first_pass_calls_it_from_python(
    cpp_graph: Any, monkeypatch: pytest.MonkeyPatch, untried: bool
) -> None:
    """Where Triton's kernels are tuned in one, before the C++ is written."""
    monkeypatch.setattr(selection, "untried", lambda settings, gpu: untried)
    install(k=1)
    (choice,) = choices_of(biased_linear(), "addmm")
    call = choice.output_node().data.data
    cpp_graph.cpp_wrapper = False
    cpp_graph.init_wrapper_code()
    call.codegen(cpp_graph.wrapper_code)
    (config,), out = choice.choice.configs, call.get_name()
    assert cpp_graph.wrapper_code.lines[-1] == (
        f"torch.ops.tilecast.launch.default(a, b, {out}, [bias], ['{config.name}'], "
        f"'bf16:rcr:bias', [], 1.0, 1.0, {untried})"
    )


def test_a_models_folder_is_spelled_as_cpp_reads_it(cpp_graph: Any, another_model: Path) -> None:
    folder = another_model.with_name('an "odd\\name"')
    another_model.rename(folder)
    install(k=1, model=folder)
    (choice,) = choices_of(linear(symbolic()), "mm")
    assert '/an \\"odd\\\\name\\""' in _written(cpp_graph, choice)


def test_the_operator_needs_no_installation_and_no_inductor() -> None:
    """A graph of Inductor's cache may be all that a process has of us."""
    code = f"""
{cpp_wrapper.IMPORT}
import sys, torch
print(torch.ops.tilecast.launch.default._schema.name)
print(*sys.modules)
"""
    process = python(code)
    name, modules = process.stdout.splitlines()
    assert name == "tilecast::launch"
    loaded = {"cutlass", "torch._inductor", "tilecast.inductor_hook.installation"}
    assert loaded & set(modules.split()) == set()
