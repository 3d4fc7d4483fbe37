"""Reads a product from Inductor's IR, or says why no tilecast kernel covers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from tilecast.heuristics.dtypes import dtype_of_torch
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import (
    EPILOGUES,
    K_GROUPS,
    MATRIX,
    ROW,
    SCALES,
    GemmOperands,
    TensorSpec,
)
from tilecast.heuristics.problem import ALIGNMENT_BYTES, GemmProblem
from tilecast.inductor_hook.describe.layout import Stored, adding, ends_groups, padded, scaling
from tilecast.inductor_hook.describe.matmul import LARGEST_BATCH, LARGEST_M, Matmul, NotCovered
from tilecast.inductor_hook.describe.product import GROUPS_OF, OPERATORS

_BOTH = {"column-scales": "out-row-scales", "fp32-column-scales": "row-scales"}
"""What operands call scales of columns beside which rows have some in fp32."""


def _check_kind(kernel_inputs: Any) -> None:
    """Refuse a product that no tilecast kernel can do, whatever its sizes and strides."""
    from torch._inductor.virtualized import V

    if kernel_inputs.device_type != "cuda":
        raise NotCovered(f"device {kernel_inputs.device_type}")
    if V.graph.cpp_wrapper and V.graph.aot_mode:
        raise NotCovered("AOTInductor: its packages run without Python, which launches the kernel")
    a, b = kernel_inputs.mat1mat2()
    for node in (a, b):
        if node.get_dtype().itemsize > 2:
            raise NotCovered(f"an operand is {node.get_dtype()}; allowed: 8 and 16 bits")


def read(
    kernel_inputs: Any,
    op: str,
    fast: bool | None = None,
    fused: Sequence[str] | None = None,
    epilogue: Sequence[str] = (),
) -> Matmul:
    """Read a product from Inductor's ``MMKernelInputs`` and the operator's name.

    Unless a kernel is ruled out, this fixes the layouts of the operands that the graph computes.

    Args:
        kernel_inputs: what is multiplied.
        op: Inductor's name of the operator.
        fast: ``use_fast_accum`` of a ``scaled_mm``; None where it is not known.
        fused: names of the inputs, of a product that is fused with what stands around it.
        epilogue: steps of its epilogue behind a bias.

    Raises:
        NotCovered: no tilecast kernel does it.
    """
    from torch._inductor.virtualized import V

    if op not in OPERATORS and not fused:
        raise NotCovered(f"operator {op}")
    _check_kind(kernel_inputs)
    _decide_layouts(kernel_inputs)
    nodes = kernel_inputs.nodes()
    given = dict(zip(fused or OPERATORS[op].inputs, nodes, strict=False))
    inputs = tuple(given)
    a, b = given["A"], given["B"]
    out = kernel_inputs.output_layout(flexible=False)
    names = [node.get_name() for node in nodes]
    if len(set(names)) < len(names):
        # Inductor's benchmark hands over each buffer once.
        raise NotCovered("two operands are views of one buffer")
    for name, node in (("A", a), ("B", b)):
        _check_alignment(name, node, V.graph)

    *batch, rows, depth = a.get_size()
    columns = b.get_size()[-1]
    sizes = V.graph.sizevars
    alpha, beta = _factors(kernel_inputs, op)
    try:
        of_a, of_b = (stored(given[name].get_layout()).spec(name, sizes) for name in ("A", "B"))
        written, any_rows = _written(out, columns, sizes)
        operands = GemmOperands.product(of_a, of_b, written)
        if "offsets" in given:
            operands = operands.grouped(GROUPS_OF[len(a.get_size()), len(b.get_size())])
            batch = out.size[:1] if operands.groups == K_GROUPS else b.get_size()[:1]
            _check_groups(given["offsets"], batch[0], rows, any_rows, sizes)
        if "scale_b" in given:
            operands = _scaled(operands, given, out, fast, bool(fused))
        if "bias" in given:
            product = (*out.size[:-1], columns)
            kind = _kind(given["bias"], product, out.dtype, written.major, V.graph)
            operands = operands.then(*_adding(op, kind, alpha, beta))
            if kind == MATRIX:
                inputs = tuple("c" if name == "bias" else name for name in inputs)
        for step in epilogue:
            operands = operands.then(step)
            for extra in EPILOGUES[step].extras:
                kind = _kind(given[extra.name], out.size, out.dtype, written.major, V.graph)
                if kind != extra.kind:
                    raise NotCovered(f"{extra.name} is not stored as {step} wants it")
        n = _fixed("n", columns)
        if any_rows and operands.gate:
            raise NotCovered("out is not aligned, and no kernel with a gate stores such rows")
        hint = GemmProblem(
            _hint(rows, sizes, 1024),
            padded(n, out.dtype.itemsize) if any_rows else n,
            _fixed("k", depth),
            _hint(batch[0], sizes, 16) if batch else 1,
            operands,
        )
    except TilecastError as error:
        raise NotCovered(str(error)) from error
    m_range = _bounds(rows, sizes.shape_env, LARGEST_M)
    batch_range = _bounds(batch[0], sizes.shape_env, LARGEST_BATCH) if batch else None
    if m_range and "col" in (operands.a.major, operands.out.major):
        raise NotCovered("m is symbolic and contiguous: its alignment is not known")
    batched = bool(batch) and not operands.groups
    return Matmul(hint, batched, m_range, batch_range, alpha, beta, inputs, any_rows)


def _check_groups(ends: Any, groups: Any, rows: Any, any_rows: bool, sizes: Any) -> None:
    """Refuse groups that no kernel takes: threads store none."""
    _fixed("the number of groups", groups)
    # No model decides for each call.
    _fixed("the number of rows", rows)
    if any_rows or not ends_groups(stored(ends.get_layout()), groups, sizes):
        raise NotCovered("groups whose ends or rows no kernel takes")


def _adds(op: str) -> bool:
    """Whether an operator adds anything that broadcasts; the others add a row at most."""
    return op in OPERATORS and OPERATORS[op].adds


def _adding(op: str, kind: str | None, alpha: float, beta: float) -> tuple[str, ...]:
    """The steps that add a bias of a `_kind`."""
    if kind != ROW and not _adds(op):
        raise NotCovered("the bias is no row of out's dtype")
    steps = adding(kind, alpha, beta)
    if not steps:
        raise NotCovered(f"no kernel adds such a bias with alpha={alpha} and beta={beta}")
    return steps


def _scaled(
    operands: GemmOperands,
    given: Mapping[str, Any],
    out: Any,
    fast: bool | None,
    fused: bool,
) -> GemmOperands:
    """The operands with their scales: those of ``scaled_mm``, or of what is fused.

    Raises:
        NotCovered: no kernel scales so.
        TilecastError: the same.
    """
    from torch._inductor.virtualized import V

    sizes, (*_, rows, columns) = V.graph.sizevars, out.size
    if fused:
        name = _scaling_columns(given["scale_b"], out)
        if "scale_a" in given:
            _check_column(given["scale_a"], rows, sizes)
            name = _BOTH[name]
        return operands.scaled(name, True)
    if fast is None:
        raise NotCovered("use_fast_accum is not known")
    scales = [stored(given[name].get_layout()) for name in ("scale_a", "scale_b")]
    k = given["A"].get_size()[-1]
    groups = given["B"].get_size()[0] if operands.groups else None
    return operands.scaled(scaling(scales, rows, columns, k, groups, sizes), fast)


def _decide_layouts(kernel_inputs: Any) -> None:
    """Have Inductor fix the strides of computed operands: until then they are a guess."""
    from torch._inductor.ir import FlexibleLayout
    from torch._inductor.virtualized import V

    for node in kernel_inputs.nodes():
        if isinstance(node.get_layout(), FlexibleLayout):
            buffer: Any = V.graph.get_buffer(node.get_name())
            buffer.decide_layout()


def _written(out: Any, columns: Any, sizes: Any) -> tuple[TensorSpec, bool]:
    """How a kernel stores the result, and whether its threads have to.

    Raises:
        TilecastError: TMA stores no such strides, and not because of the rows' length.
    """
    try:
        return stored(out).spec("out", sizes), False
    except TilecastError:
        if not (_is_fixed(columns) and out.is_contiguous()):
            raise
        return TensorSpec(dtype_of_torch(out.dtype), "row"), True


def stored(layout: Any) -> Stored:
    """How a tensor of one of Inductor's layouts is stored."""
    start = layout.offset * layout.dtype.itemsize
    return Stored(layout.size, layout.stride, layout.dtype, start)


def _check_column(node: Any, m: Any, sizes: Any) -> None:
    extents, dtype = node.get_size(), node.get_dtype()
    is_column = (
        len(extents) == 2
        and all(map(sizes.statically_known_equals, extents, (m, 1)))
        and dtype.itemsize == 4
        and dtype.is_floating_point
        and node.get_layout().is_contiguous()
    )
    if not is_column:
        raise NotCovered(f"scales {tuple(extents)} of {dtype} are no column in fp32")


def _scaling_columns(node: Any, out: Any) -> str:
    """The name in operand texts of a row of scales."""
    from torch._inductor.virtualized import V

    dtype = node.get_dtype()
    name = "column-scales" if dtype == out.dtype else f"{dtype_of_torch(dtype)}-column-scales"
    if name not in SCALES or _kind(node, out.size, dtype, "row", V.graph) != ROW:
        raise NotCovered(f"scales {tuple(node.get_size())} of {dtype} are no row")
    return name


def _kind(node: Any, shape: Sequence[Any], dtype: Any, along: str, graph: Any) -> str | None:
    """`Stored.added_as` of an operand in a graph."""
    if node.get_name() in graph.unaligned_buffers:
        return None
    return stored(node.get_layout()).added_as(shape, dtype, along, graph.sizevars)


def _is_fixed(extent: Any) -> bool:
    return isinstance(extent, int) or extent.is_Integer


def _fixed(name: str, extent: Any) -> int:
    if not _is_fixed(extent):
        raise NotCovered(f"{name} is symbolic")
    return int(extent)


def _hint(extent: Any, sizes: Any, fallback: int) -> int:
    return int(extent if _is_fixed(extent) else sizes.optimization_hint(extent, fallback=fallback))


def _bounds(extent: Any, shapes: Any, largest: int) -> tuple[int, int] | None:
    """Least and greatest value of a symbolic extent, ``largest`` where it knows no bound."""
    from torch.utils._sympy.value_ranges import bound_sympy

    if _is_fixed(extent):
        return None
    found = bound_sympy(extent, {s: shapes.var_to_range[s] for s in extent.free_symbols})
    least = int(found.lower) if found.lower.is_Integer else 1
    most = int(found.upper) if found.upper.is_Integer else largest
    return max(least, 1), max(most, 1)


def _check_alignment(name: str, node: Any, graph: Any) -> None:
    start = stored(node.get_layout()).start
    if node.get_name() in graph.unaligned_buffers or not (
        graph.sizevars.statically_known_multiple_of(start, ALIGNMENT_BYTES)
    ):
        raise NotCovered(f"{name} does not start at a multiple of {ALIGNMENT_BYTES} bytes")


def _factors(kernel_inputs: Any, op: str) -> tuple[float, float]:
    if not _adds(op):
        return 1, 1
    factors = kernel_inputs.get_scalar("alpha"), kernel_inputs.get_scalar("beta")
    for factor in factors:
        # Others are symbolic, and generated code spells them.
        if not (isinstance(factor, int | float) and isfinite(factor)):
            raise NotCovered(f"factor {factor} is no finite number")
    return factors
