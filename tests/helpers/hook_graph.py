"""Multiplications as Inductor holds them while it lowers a graph; no tensor is made."""

from __future__ import annotations

import logging
import runpy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._inductor import config, ir, utils
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes import post_grad
from torch._inductor.graph import GraphLowering
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.lowering import lowerings
from torch._inductor.select_algorithm import (
    AlgorithmSelectorCache,
    NoValidChoicesError,
    get_algorithm_selector_cache,
)
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tilecast.inductor_hook.fuse.engine import FusedProduct
from tilecast.inductor_hook.fuse.form import Match
from tilecast.inductor_hook.offer.template import TilecastCaller


@contextmanager
def lowering(symbols: ShapeEnv | None = None) -> Iterator[GraphLowering]:
    """Inside, a graph is being lowered for ``mode="max-autotune"``."""
    module = torch.fx.symbolic_trace(lambda a, b: a @ b)
    graph = GraphLowering(module, shape_env=symbols)
    graph.current_node = next(iter(module.graph.nodes))  # 2.15 asks for its notes
    with V.set_graph_handler(graph), config.patch(max_autotune=True):
        yield graph


def node(
    name: str,
    size: Sequence[Any],
    stride: Sequence[Any] | None = None,
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda:0",
    offset: Any = 0,
) -> ir.InputBuffer:
    """An input of the graph; contiguous when no strides are given."""
    if stride is None:
        stride = ir.FlexibleLayout.contiguous_strides(list(size))
    layout = ir.FixedLayout(torch.device(device), dtype, list(size), list(stride), offset)
    buffer = ir.InputBuffer(name=name, layout=layout)
    V.graph.graph_inputs[name] = ir.TensorBox(ir.StorageBox(buffer))
    V.graph.name_to_buffer[name] = buffer
    return buffer


def symbolic(name: str = "m", hint: int = 17) -> Any:
    """A symbolic extent of the graph that is being lowered."""
    return V.graph.sizevars.shape_env.create_symbol(hint, ConstantSource(name))


def linear(m: Any = 512, n: int = 4096, k: int = 4096, **kind: Any) -> MMKernelInputs:
    """``x @ weight.T``."""
    return MMKernelInputs([node("a", [m, k], [k, 1], **kind), node("b", [k, n], [1, k], **kind)])


def biased_linear(
    m: Any = 512, n: int = 4096, k: int = 4096, alpha: float = 1, beta: float = 1
) -> MMKernelInputs:
    """``addmm`` with a bias of n numbers, expanded as Inductor expands it."""
    bias = node("bias", [m, n], [0, 1])
    return MMKernelInputs([bias, *linear(m, n, k).nodes()], scalars={"alpha": alpha, "beta": beta})


def int_linear(m: Any = 512, n: int = 4096, k: int = 4096) -> MMKernelInputs:
    """``_int_mm`` of int8."""
    return MMKernelInputs(linear(m, n, k, dtype=torch.int8).nodes(), out_dtype=torch.int32)


def scaled_linear(
    m: Any = 512,
    n: int = 4096,
    k: int = 4096,
    *more: ir.InputBuffer,
    scales: Sequence[ir.InputBuffer] = (),
    dtype: torch.dtype = torch.float8_e4m3fn,
    out_dtype: torch.dtype = torch.bfloat16,
) -> MMKernelInputs:
    """``_scaled_mm``, scaled by rows where no other scales are given; more is a bias."""
    scales = scales or [scale("scale_a", m, 1), scale("scale_b", 1, n)]
    nodes = [*linear(m, n, k, dtype=dtype).nodes(), *scales, *more]
    return MMKernelInputs(nodes, mat1_idx=0, mat2_idx=1, out_dtype=out_dtype)


def scale(name: str, *size: Any, **kind: Any) -> ir.InputBuffer:
    """A scale in float32."""
    return node(name, size, **{"dtype": torch.float32, **kind})


def batched(m: Any = 512, n: int = 128, k: int = 4096, batch: Any = 4) -> MMKernelInputs:
    """``bmm`` of A by B^T."""
    return MMKernelInputs([node("a", [batch, m, k]), node("b", [batch, k, n], [n * k, 1, k])])


def grouped(m: Any = 512, n: int = 2048, k: int = 1024, groups: int = 8, **kind: Any) -> list[Any]:
    """A, the matrices of the groups of its rows, and where these end."""
    weights = node("b", [groups, k, n], [n * k, 1, k], **kind)
    return [node("a", [m, k], **kind), weights, node("ends", [groups], dtype=torch.int32)]


def traced(
    function: Callable[..., Any],
    operands: Sequence[tuple[Sequence[int], torch.dtype]],
    device: str = "cuda",
) -> Graph:
    """The graph of a function as Inductor decomposes it, of tensors without values."""
    with FakeTensorMode(), torch.no_grad():
        tensors = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in operands]
        module = make_fx(function, decomposition_table=select_decomp_table())(*tensors)
    module.graph.eliminate_dead_code()
    return module.graph


def run(graph: Graph, *operands: torch.Tensor) -> torch.Tensor:
    """The value of a graph's output, or of its last node."""
    if not graph.find_nodes(op="output"):
        graph.output(list(graph.nodes)[-1])
    return GraphModule({}, graph)(*operands)


def applied_to(graph: Graph) -> list[Any]:
    """The nodes that our pass puts into a graph, as Inductor applies it."""
    before = set(graph.nodes)
    for one in post_grad.pass_patterns[3:]:
        one.apply(graph)
    return [node for node in graph.nodes if node not in before]


def our_choice(result: Any) -> TilecastCaller:
    """The choice of ours that a lowered product is."""
    buffer = result.data.data
    assert isinstance(buffer, ir.CuteDSLTemplateBuffer)
    return buffer.make_kernel_render.__self__  # type: ignore[union-attr]


def fused_choice(match: Match, operands: Sequence[Any]) -> TilecastCaller | None:
    """The choice that does a match by one kernel, if any does; of inputs or what is computed."""
    boxes = [
        one if isinstance(one, ir.TensorBox) else ir.TensorBox(ir.StorageBox(one))
        for one in operands
    ]
    result = FusedProduct(match.fused, match.alone())._by_one_kernel(boxes)
    return None if result is None else our_choice(result)


def choices_of(inputs: MMKernelInputs, op: str, templates: Sequence[Any] = ()) -> list[Any]:
    """What the handler in use would benchmark."""
    return V.choices.get_template_configs(inputs, list(templates), op)


def lowered(op: Any, *operands: ir.InputBuffer, **options: Any) -> list[Any]:
    """What Inductor's own lowering of an operator would benchmark in the end.

    Args:
        op: a function of ``torch.ops.aten``, or the lowering itself.
        operands: its tensors.
        options: its other arguments.
    """
    seen: list[Any] = []

    def see(choices: list[Any]) -> list[Any]:
        seen.extend(choices)
        return choices

    lower: Any = lowerings.get(op, op)
    _ = V.choices  # with the first handler of a thread, ours sees the choices; before `see` does
    functions = get_algorithm_selector_cache().preprocessing_fns
    functions.append(see)
    try:
        # No GPU is there whose size could be asked.
        with mock.patch.object(utils, "is_big_gpu", lambda device: False):
            lower(*(ir.TensorBox(ir.StorageBox(node)) for node in operands), **options)
    except NoValidChoicesError:
        assert seen == []
    finally:
        functions.remove(see)
    return seen


def settled(choices: Sequence[Any], *milliseconds: float) -> list[Any]:
    """The choices by their time, as Inductor sees them after its benchmark."""
    timings = dict(zip(choices, milliseconds, strict=True))
    saver: Any  # 2.15 passes on more than 2.11
    for saver in get_algorithm_selector_cache().feedback_saver_fns:
        saver(timings, "mm", [], {}, None)
    return sorted(timings, key=lambda choice: timings[choice])


def names_of(choices: Sequence[Any]) -> list[str]:
    """What Inductor calls them."""
    return [choice.name for choice in choices]


def ours_of(choices: Sequence[Any]) -> list[TilecastCaller]:
    """Those of ours among some choices."""
    return [choice for choice in choices if isinstance(choice, TilecastCaller)]


def replaced(graph: Graph, match: Match, *values: torch.Tensor) -> Node:
    """Put a node in the place of a match, which computes of some inputs what stood there."""
    expected, operands, alone = run(graph, *values), match.operands, match.alone()

    def fused(*given: torch.Tensor) -> torch.Tensor:
        return run(alone, *given)

    match.replace(fused)
    graph.lint()
    (node,) = graph.find_nodes(op="call_function", target=fused)
    assert node.args == operands
    assert torch.equal(run(graph, *values), expected)
    return node


def main_of(choice: Any, path: Path) -> Callable[..., None]:
    """The function that a choice generates, written to a file and imported."""
    path.write_text(source_of(choice))
    return runpy.run_path(str(path))[f"{choice.bmreq.kernel_name}_main"]


def source_of(choice: Any) -> str:
    """The module that a choice of ours generates."""
    return Path(choice.bmreq.module_path).read_text()


def warnings_told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged as a warning or worse."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


class Clock:
    """Stands in for the GPU: milliseconds of fused kernels and of what they would replace."""

    def __init__(self, ours: float, without: float):
        self.ours, self.without = ours, without
        self.choices: list[Any] = []
        self.makers: dict[int, Callable[..., torch.Tensor]] = {}
        """Of operands that are not any numbers, by their place."""

    @classmethod
    def started(cls, monkeypatch: pytest.MonkeyPatch, ours: float, without: float) -> Clock:
        """One that Inductor asks whenever it would benchmark."""
        clock = cls(ours, without)
        monkeypatch.setattr(
            AlgorithmSelectorCache,
            "do_autotuning",
            lambda tuner, *rest, **kw: clock(tuner, *rest, **kw),
        )
        monkeypatch.setattr(AlgorithmSelectorCache, "make_precompile_fn", lambda *_, **__: None)
        return clock

    def __call__(self, tuner: Any, name: str, nodes: Any, layout: Any, *rest: Any, **kw: Any):
        self.choices = next(each for each in rest if isinstance(each, list))
        self.makers = next((each for each in rest if isinstance(each, dict)), {})
        timings = {
            one: self.ours if isinstance(one, TilecastCaller) else self.without
            for one in self.choices
        }
        for function in tuner.feedback_saver_fns:
            function(timings, name, nodes, self.choices, None, None)
        return timings
