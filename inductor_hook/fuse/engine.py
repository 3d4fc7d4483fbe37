"""The pass over each graph: kernels start to compile, and products are fused where that is faster.

Inductor fuses nothing into a CuteDSL template. So the pass puts one node in place of each match of
a form, and what becomes of the node is decided when it is lowered: one tilecast kernel, if that is
faster than what it would replace, or the very nodes that it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.ir import Layout, TensorBox, is_storage_and_layout
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.lowering import lowerings, to_dtype
from torch._inductor.select_algorithm import realize_inputs
from torch._inductor.virtualized import V
from torch.fx import Graph

from tilecast.heuristics.operands import COLUMN, MATRIX, ROW, Extra
from tilecast.inductor_hook import telemetry
from tilecast.inductor_hook.fuse.activation import activations
from tilecast.inductor_hook.fuse.form import Form, Fused, Replaced
from tilecast.inductor_hook.fuse.fx import aten
from tilecast.inductor_hook.fuse.int8 import quantized_products
from tilecast.inductor_hook.fuse.masks import drop_masks
from tilecast.inductor_hook.handlers import bind
from tilecast.inductor_hook.offer import precompile
from tilecast.inductor_hook.offer.grouped import makers
from tilecast.inductor_hook.offer.offer import FUSED, fused_choices
from tilecast.inductor_hook.patch.torch_versions import autotuned
from tilecast.inductor_hook.settings import asked

FORMS: dict[str, Form] = {"products of int8": quantized_products, "activations": activations}
"""By the name in messages, in the order in which they are looked for: an activation behind a
product of int8 stays."""


class GraphPass:
    """What Inductor applies to each graph behind its own patterns."""

    def apply(self, graph: Graph) -> None:
        """Start to compile, and where fusing is asked for, put fused nodes into the graph.

        Whatever goes wrong is one warning, and the rest of the graph stays as it is.
        """
        settings = asked()
        if not settings:
            return
        then = "kernels compile when they are asked for"
        _try("starting to compile kernels", then, precompile.start_compiling, graph, settings)
        if not settings.fuse or _bare_products_are_wanted():
            return
        _try("looking for masks that mask nothing", "they stay", drop_masks, graph)
        for name, matches in FORMS.items():
            _try(f"looking for {name}", "none is fused", _fuse, graph, matches)


def _try(what: str, then: str, act: Callable[..., None], *arguments: Any) -> None:
    try:
        act(*arguments)
    except Exception as error:
        telemetry.warn_once(what, error, then)


def _fuse(graph: Graph, matches: Form) -> None:
    """Put one node in place of each match of a form that may be moved."""
    for match in matches(graph):
        if match.movable:
            match.replace(FusedProduct(match.fused, match.alone()))


def _bare_products_are_wanted() -> bool:
    """Whether a later pass looks for products, or roundings are to be those of eager code.

    Tensor parallelism in the background and what overlaps communication with computation know
    PyTorch's operators alone; a fused kernel rounds once, behind all that it does.
    """
    overlapped = getattr(config, "aten_distributed_optimizations", None)
    return bool(
        config._micro_pipeline_tp
        or config.reorder_for_compute_comm_overlap
        or getattr(overlapped, "enable_overlap_scheduling", False)
        or config.emulate_precision_casts
    )


PASS = GraphPass()


class FusedProduct:
    """What Inductor calls for a node in place of a product and what is fused with it."""

    _inductor_lowering_function = True

    def __init__(self, fused: Fused, alone: Graph):
        """Take what a kernel does, and the nodes of the same operands that it would replace."""
        self.fused, self.alone = fused, alone
        # What a graph is printed as, which is compared between processes.
        self.__name__ = f"tilecast_{fused.name.replace(' ', '_').replace('-', '_')}"
        self.__module__ = __name__

    def __repr__(self) -> str:
        """The same in every process."""
        return f"{self.__module__}.{self.__name__}"

    def __call__(self, *operands: TensorBox) -> TensorBox:
        """Lower the node."""
        found = self._by_one_kernel(operands)
        if found is None:
            telemetry.count(f"not fused: {self.fused.name}")
            return _lowered(self.alone, operands)
        telemetry.count(f"fused: {self.fused.name}")
        telemetry.count("problems")
        return found

    def _inductor_lowering_output_metadata_fn(
        self, a: torch.Tensor, b: torch.Tensor, *extras: torch.Tensor
    ) -> torch.Tensor:
        """An empty result: since 2.14 Inductor asks for it anew where operands have changed."""
        n = b.shape[-2 if self.fused.transposed else -1] // self.fused.columns_for_one
        return a.new_empty(*a.shape[:-1], n, dtype=self.fused.out)

    def _by_one_kernel(self, operands: Sequence[TensorBox]) -> TensorBox | None:
        """The result of a fused kernel; None where that does not pay, or fails."""
        try:
            result = self._fastest(_kernel_inputs(self.fused, operands))
            if result is None:
                return None
            *rows, _ = operands[0].get_size()
            return lowerings[aten.reshape](result, [*rows, result.get_size()[1]])
        except Exception as error:
            telemetry.warn_once(f"fusing {self.fused.name}", error)
            return None

    def _fastest(self, inputs: MMKernelInputs) -> TensorBox | None:
        """The result of the best fused kernel, if its time decides for it."""
        settings = asked()
        # Models have seen no gate, and at k = 1 nothing is benchmarked.
        if not settings or (settings.k == 1 and self.fused.columns_for_one > 1):
            return None
        names = ("A", "B", *(extra.name for extra in self.fused.extras))
        choices = fused_choices(settings, inputs, names, self.fused.epilogue)
        if not choices:
            return None
        if settings.k == 1:
            (first,) = choices
            return first.output_node() if first.await_kernels() else None
        bind(V.choices)  # for times to be passed on: nothing in here asks for the handler
        nodes, layout = inputs.nodes(), inputs.output_layout(flexible=False)
        matmul = choices[0].choice.matmul
        stand_ins = self.fused.baseline(Replaced(settings, self.alone, nodes, layout, matmul.hint))
        if not stand_ins:
            return None
        # tilecast's last: they compile meanwhile.
        return autotuned(FUSED, [*stand_ins, *choices], nodes, layout, makers(matmul))


def _lowered(graph: Graph, operands: Sequence[TensorBox]) -> TensorBox:
    """The last node of a graph, lowered by Inductor."""
    inputs, env = iter(operands), V.graph.env
    for node in graph.nodes:
        env[node] = next(inputs) if node.op == "placeholder" else V.graph.run_node(node)
    *_, last = graph.nodes
    return env[last]


def _kernel_inputs(fused: Fused, operands: Sequence[TensorBox]) -> MMKernelInputs:
    """What a kernel reads, in memory: A (m, k), B (k, n) and the extras."""
    a, b, *values = operands
    a = lowerings[aten.reshape](a, [-1, a.get_size()[-1]])
    if fused.transposed:
        b = lowerings[aten.permute](b, [1, 0])
    n = b.get_size()[-1]
    extras = [_stored(extra, value, n) for extra, value in zip(fused.extras, values, strict=True)]
    nodes = realize_inputs(a, b, *extras)
    return _Inputs(nodes, fused)


class _Inputs(MMKernelInputs):
    """What a fused kernel reads, and what it writes, which may have less columns than B."""

    def __init__(self, nodes: Sequence[Any], fused: Fused):
        super().__init__([*nodes], out_dtype=fused.out, mat1_idx=0, mat2_idx=1)
        self._columns_for_one = fused.columns_for_one

    def output_layout(self, flexible: bool = True) -> Layout:
        """Where the result lies: contiguous."""
        whole = super().output_layout(flexible)
        *rows, n = whole.size
        size = [*rows, n // self._columns_for_one]
        return type(whole)(whole.device, whole.dtype, size)


def _stored(extra: Extra, value: TensorBox, n: Any) -> TensorBox:
    """An extra in the shape and type that a kernel reads."""
    if extra.kind in (ROW, MATRIX):
        return lowerings[aten.reshape](value, [n] if extra.kind == ROW else [-1, n])
    there = value.get_dtype() == torch.float32 and is_storage_and_layout(value)
    if extra.kind != COLUMN or there:
        return value
    # In a buffer of their own, which nothing reads where nothing is fused.
    return to_dtype(value, torch.float32, copy=True)
