"""What is read out of a graph: which multiplication it is, or why it gets no choice of ours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from hook_graph import batched, biased_linear, grouped, int_linear, linear, lowering, node
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.virtualized import V
from torch.export import Dim, export

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.describe.from_ir import read
from tilecast.inductor_hook.describe.layout import major
from tilecast.inductor_hook.describe.matmul import Matmul, NotCovered
from tilecast.inductor_hook.describe.product import OPERATORS

M, N, K = 512, 4096, 1024
ADDMM = OPERATORS["addmm"].inputs


@pytest.fixture
def graph() -> Iterator[Any]:
    with lowering() as graph:
        yield graph


def _mm(a: Any, b: Any, **options: Any) -> MMKernelInputs:
    return MMKernelInputs([a, b], **options)


@pytest.mark.parametrize(
    ("a_stride", "b_stride", "layout"),
    [
        ((K, 1), (1, K), "rcr"),
        ((K, 1), (N, 1), "rrr"),
        ((1, M), (1, K), "ccr"),
        ((3 * K, 1), (1, 2 * K), "rcr"),
        ((K + 8, 1), (1, K + 8), "rcr"),
    ],
)
def test_mm(graph: Any, a_stride: tuple, b_stride: tuple, layout: str) -> None:
    inputs = _mm(node("a", [M, K], a_stride), node("b", [K, N], b_stride))
    hint = GemmProblem(M, N, K, 1, GemmOperands.parse(f"bf16:{layout}"))
    assert read(inputs, "mm") == Matmul(hint, batched=False)


def test_bmm(graph: Any) -> None:
    hint = GemmProblem(M, 128, K, 4)
    assert read(batched(M, 128, K, batch=4), "bmm") == Matmul(hint, batched=True)
    assert read(batched(M, 128, K, batch=1), "bmm").hint.batch == 1
    assert read(batched(M, 128, K, batch=1), "bmm").batched


def _addmm(m: Any = M, **bias: Any) -> MMKernelInputs:
    inputs = [node("bias", **bias), *linear(m, N, K).nodes()]
    return MMKernelInputs(inputs, scalars={"alpha": 1, "beta": 1})


ROWS: dict[str, Callable[[], MMKernelInputs]] = {
    "(n,)": lambda: _addmm(size=[N]),
    "(1, n)": lambda: _addmm(size=[1, N]),
    "(1, n) of wider rows": lambda: _addmm(size=[1, N], stride=[2 * N, 1]),
    "expanded": lambda: _addmm(size=[M, N], stride=[0, 1]),
    "expanded and 4 bytes in": lambda: _addmm(size=[M, N], stride=[0, 1], offset=2),
    "m = 1": lambda: _addmm(1, size=[1, N]),
}


@pytest.mark.parametrize("kind", ROWS)
def test_a_bias_of_one_row_is_fused(graph: Any, kind: str) -> None:
    found = read(ROWS[kind](), "addmm")
    m = 1 if kind == "m = 1" else M
    hint = GemmProblem(m, N, K, 1, GemmOperands.parse("bf16:rcr:bias"))
    assert found == Matmul(hint, False, inputs=ADDMM)


def _unaligned_bias() -> MMKernelInputs:
    V.graph.unaligned_buffers.add("bias")
    return _addmm(size=[M, N], stride=[0, 1])


MATRICES: dict[str, Callable[[], MMKernelInputs]] = {
    "contiguous": lambda: _addmm(size=[M, N]),
    "of wider rows": lambda: _addmm(size=[M, N], stride=[2 * N, 1]),
    "16 bytes in": lambda: _addmm(size=[M, N], stride=[N + 8, 1], offset=8),
}


@pytest.mark.parametrize("kind", MATRICES)
def test_a_matrix_stored_as_the_result_is_fused(graph: Any, kind: str) -> None:
    hint = GemmProblem(M, N, K, 1, GemmOperands.parse("bf16:rcr:c"))
    assert read(MATRICES[kind](), "addmm") == Matmul(hint, False, inputs=("c", "A", "B"))


BATCHES: dict[str, tuple[list[int], str]] = {
    "a matrix each": ([M * 128, 128, 1], "c"),
    "one matrix for all": ([0, 128, 1], "c"),
    "interleaved": ([128, 512, 1], "c"),
    "a row for all": ([0, 0, 1], "bias"),
}
"""Strides of what is added to a batch of products (m, 128), and the step that does it."""


@pytest.mark.parametrize("kind", BATCHES)
def test_what_is_added_to_a_batch(graph: Any, kind: str) -> None:
    stride, step = BATCHES[kind]
    inputs = [node("inp", [4, M, 128], stride), *batched(M, 128, K).nodes()]
    found = read(MMKernelInputs(inputs, scalars={"alpha": 1, "beta": 1}), "baddbmm")
    assert found.hint == GemmProblem(M, 128, K, 4, GemmOperands.parse(f"bf16:rcr:{step}"))
    assert found.batched


ADDED: dict[str, Callable[[], MMKernelInputs]] = {
    "a matrix of no 16 bytes a row": lambda: _addmm(size=[M, N], stride=[N + 1, 1]),
    "a matrix 8 bytes in": lambda: _addmm(size=[M, N], offset=4),
    "a matrix along m": lambda: _addmm(size=[M, N], stride=[1, M]),
    "a column": lambda: _addmm(size=[M, N], stride=[1, 0]),
    "a number": lambda: _addmm(size=[M, N], stride=[0, 0]),
    "a number as a row": lambda: _addmm(size=[1]),
    "no dimension": lambda: _addmm(size=[]),
    "every second element": lambda: _addmm(size=[M, N], stride=[0, 2]),
    "another dtype": lambda: _addmm(size=[M, N], stride=[0, 1], dtype=torch.float32),
    "2 bytes in": lambda: _addmm(size=[M, N], stride=[0, 1], offset=1),
    "an unaligned buffer": _unaligned_bias,
    "a row with alpha": lambda: biased_linear(alpha=2.5),
    "a row with beta": lambda: biased_linear(beta=0.5),
    "beta 0": lambda: biased_linear(beta=0),
    "a row that ends at 2 bytes": lambda: biased_linear(n=1001),
}


@pytest.mark.parametrize("kind", ADDED)
def test_any_other_bias_is_not_covered(graph: Any, kind: str) -> None:
    with pytest.raises(NotCovered, match="no kernel adds such a bias with alpha=.* and beta="):
        read(ADDED[kind](), "addmm")


def test_float16_and_wider_output(graph: Any) -> None:
    half = read(linear(M, N, K, dtype=torch.float16), "mm")
    assert half.hint.operands == GemmOperands.parse("fp16:rcr")
    a, b = linear(M, N, K).nodes()
    widened = read(_mm(a, b, out_dtype=torch.float32), "mm")
    assert widened.hint.operands == GemmOperands.parse("bf16:rcr>fp32")


def _two(a: dict[str, Any] | None = None, b: dict[str, Any] | None = None) -> MMKernelInputs:
    left: dict[str, Any] = {"size": [M, K], "stride": [K, 1]} | (a or {})
    right: dict[str, Any] = {"size": [K, N], "stride": [1, K]} | (b or {})
    return _mm(node("a", **left), node("b", **right))


def _unaligned() -> MMKernelInputs:
    inputs = _two()
    V.graph.unaligned_buffers.add("b")
    return inputs


def _of_groups(nodes: list[Any]) -> MMKernelInputs:
    return MMKernelInputs(nodes, mat1_idx=0, mat2_idx=1)


REFUSALS: list[tuple[Callable[[], MMKernelInputs], str, str]] = [
    (lambda: batched(), "grouped_mm_v2", "operator grouped_mm_v2"),
    (lambda: _of_groups(grouped(n=2044)), "grouped_mm", "groups whose ends or rows no kernel"),
    (
        lambda: _of_groups([*grouped()[:2], node("int64", [8], dtype=torch.int64)]),
        *("grouped_mm", "groups whose ends or rows no kernel"),
    ),
    (lambda: linear(device="cpu"), "mm", "device cpu"),
    (lambda: _mm(node("x", [M, K]), node("x", [K, N], [1, K])), "mm", "views of one buffer"),
    (lambda: linear(dtype=torch.float32), "mm", "is torch.float32; allowed: 8 and 16 bits"),
    (lambda: _two(a={"offset": 4}), "mm", "A does not start at a multiple of 16 bytes"),
    (lambda: _two(b={"offset": 1}), "mm", "B does not start at a multiple of 16 bytes"),
    (_unaligned, "mm", "B does not start at a multiple of 16 bytes"),
    (lambda: _two(a={"stride": [0, 1]}), "mm", "A has strides .*of 8, 0 for a batch alone"),
    (lambda: _two(b={"stride": [1, 0]}), "mm", "B has strides .*of 8, 0 for a batch alone"),
    (lambda: _two(a={"stride": [K + 1, 1]}), "mm", "A has strides .*multiples of 8"),
    (lambda: _two(a={"stride": [2 * K, 2]}), "mm", "A has strides .*allowed: 1 along rows or col"),
    (lambda: _mm(node("a", [M, 100]), node("b", [100, N], [1, 104])), "mm", "A has strides"),
    (lambda: linear(k=1001), "mm", "A has strides .*multiples of 8"),
    (lambda: _mm(node("a", [M, K]), node("b", [K, 1001])), "mm", "B has strides .*multiples of 8"),
    (lambda: linear(m=0), "mm", "m=0 is out of range"),
    (lambda: linear(k=0), "mm", "stride"),
    (lambda: batched(batch=0), "bmm", "batch=0 is out of range"),
    (lambda: biased_linear(alpha=math.inf), "addmm", "factor inf is no finite number"),
]


@pytest.mark.parametrize(("inputs", "op", "reason"), REFUSALS, ids=[r[2] for r in REFUSALS])
def test_what_is_not_covered_says_why(
    graph: Any, inputs: Callable[[], MMKernelInputs], op: str, reason: str
) -> None:
    with pytest.raises(NotCovered, match=reason) as refusal:
        read(inputs(), op)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("n", "dtype", "longer"), [(1001, torch.bfloat16, 1008), (50257, torch.float16, 50264)]
)
def test_rows_that_tma_does_not_store(graph: Any, n: int, dtype: torch.dtype, longer: int) -> None:
    found = read(linear(n=n, dtype=dtype), "mm")
    assert (found.hint.n, found.any_rows) == (longer, True)
    assert found.hint.operands.text == f"{'bf16' if dtype is torch.bfloat16 else 'fp16'}:rcr"
    found = read(batched(n=n), "bmm")
    assert (found.hint.n, found.hint.batch, found.any_rows) == (longer, 4, True)
    assert not read(linear(n=longer, dtype=dtype), "mm").any_rows


def test_rows_of_int32_and_their_scales(graph: Any) -> None:
    """In int32 four of them are 16 bytes, not eight."""
    found = read(int_linear(n=1002), "int_mm")
    assert (found.hint.n, found.any_rows) == (1004, True)


def test_a_bias_is_fused_where_its_row_ends_at_4_bytes(graph: Any) -> None:
    found = read(biased_linear(n=1002), "addmm")
    assert (found.hint.n, found.any_rows) == (1008, True)
    assert found.hint.operands.epilogue == ("bias",)


def test_an_aligned_offset_is_covered(graph: Any) -> None:
    """As slices of a fused QKV weight have it."""
    inputs = _two(a={"offset": 8 * K, "stride": [3 * K, 1]}, b={"offset": 16})
    assert read(inputs, "mm").hint == GemmProblem(M, N, K)


def test_a_batch_that_is_expanded_is_covered(graph: Any) -> None:
    a, b = node("a", [4, M, K], [0, K, 1]), node("b", [4, K, N], [K * N, 1, K])
    assert read(_mm(a, b), "bmm").hint == GemmProblem(M, N, K, 4)


def test_aotinductor_is_refused(graph: Any) -> None:
    graph.cpp_wrapper = graph.aot_mode = True
    with pytest.raises(NotCovered, match="AOTInductor: its packages run without Python"):
        read(_two(), "mm")
    graph.aot_mode = False
    assert read(_two(), "mm").hint == GemmProblem(M, N, K)


class Product(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


@contextmanager
def _symbolic(
    a: torch.Tensor, b: torch.Tensor, dynamic: tuple[dict | None, dict | None]
) -> Iterator[MMKernelInputs]:
    """The operands of an exported product, with the symbols that torch.export gives them."""
    program = export(Product(), (a, b), dynamic_shapes=dynamic)
    values = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"]

    def expressions(extents: Any) -> list[Any]:
        return [e.node.expr if isinstance(e, torch.SymInt) else e for e in extents]

    with lowering(values[0].fake_mode.shape_env):
        a_node, b_node = (
            node(name, expressions(value.shape), expressions(value.stride()))
            for name, value in zip("ab", values, strict=True)
        )
        yield _mm(a_node, b_node)


def _bf16(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def test_a_symbolic_m_has_a_range_and_a_sweep_over_it() -> None:
    dynamic = ({0: Dim("m", min=3, max=200)}, None)
    with _symbolic(_bf16(17, 64), _bf16(32, 64).T, dynamic) as inputs:
        found = read(inputs, "mm")
        assert found == Matmul(GemmProblem(17, 32, 64), False, (3, 200))
        extents = [problem.m for problem in found.sweep()]
        assert extents == [3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 200]
        assert {(p.n, p.k, p.operands) for p in found.sweep()} == {(32, 64, found.hint.operands)}


def test_a_large_least_m_is_swept_by_one_problem() -> None:
    found = Matmul(GemmProblem(20000, 32, 64), False, (20000, 40000))
    assert [problem.m for problem in found.sweep()] == [16384]


def test_a_symbolic_batch_has_a_range_and_a_sweep_over_it() -> None:
    batch = {0: Dim("batch", min=3, max=40)}
    with _symbolic(_bf16(4, 16, 64), _bf16(4, 32, 64).mT, (batch, batch)) as inputs:
        found = read(inputs, "bmm")
        assert found == Matmul(GemmProblem(16, 32, 64, 4), True, batch_range=(3, 40))
        assert found.dynamic
        batches = [problem.batch for problem in found.sweep()]
        assert batches == [3, 4, 6, 8, 12, 16, 24, 32, 40]
        assert {replace(problem, batch=4) for problem in found.sweep()} == {found.hint}


def test_a_symbolic_batch_and_m_are_swept_by_powers_of_two() -> None:
    batch, rows = Dim("batch", min=2, max=10), Dim("m", min=5, max=16)
    dynamic = ({0: batch, 1: rows}, {0: batch})
    with _symbolic(_bf16(4, 16, 64), _bf16(4, 32, 64).mT, dynamic) as inputs:
        found = read(inputs, "bmm")
        extents = [(problem.batch, problem.m) for problem in found.sweep()]
    assert extents == list(itertools.product((2, 4, 8, 10), (5, 8, 16)))


@pytest.mark.parametrize(
    ("a", "b", "dynamic", "reason"),
    [
        # Of a symbolic n the kernel needs to know that it is a multiple of 8, which none says.
        (_bf16(16, 64), _bf16(64, 32), (None, {1: Dim("n", min=8, max=64)}), "B has strides"),
        (_bf16(16, 64), _bf16(32, 64).T, (None, {1: Dim("n", min=8, max=64)}), "out has strides"),
        (
            _bf16(16, 64),
            _bf16(32, 64).T,
            (None, {1: 8 * Dim("n8", min=1, max=8)}),  # type: ignore[operator]
            "n is symbolic",
        ),
        (
            _bf16(64, 16).T,
            _bf16(32, 64).T,
            ({0: 8 * Dim("m8", min=1, max=8)}, None),  # type: ignore[operator]
            "m is symbolic and contiguous",
        ),
        (
            _bf16(16, 64),
            _bf16(32, 64).T,
            ({1: 8 * Dim("k8", min=1, max=32)}, {0: 8 * Dim("k8", min=1, max=32)}),  # type: ignore[operator]
            "k is symbolic",
        ),
    ],
    ids=["n of a row-major B", "n", "a multiple as n", "m of a col-major A", "k"],
)
def test_other_symbolic_extents_are_not_covered(
    a: torch.Tensor, b: torch.Tensor, dynamic: tuple, reason: str
) -> None:
    with _symbolic(a, b, dynamic) as inputs, pytest.raises(NotCovered, match=reason):
        read(inputs, "mm" if a.ndim == 2 else "bmm")


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [((1, 64), (0, 1), "row"), ((64, 1), (1, 0), "col"), ((4, 1, 64), (64, 0, 1), "row")],
)
def test_the_stride_of_a_single_row_or_column_may_be_none(
    shape: tuple[int, ...], strides: tuple[int, ...], expected: str
) -> None:
    """Inductor's is 0 where it is a view: an extent of 1 is in no index."""
    assert major("A", shape, strides, 2) == expected
    with pytest.raises(TilecastError, match="A has strides"):
        major("A", tuple(max(extent, 2) for extent in shape), strides, 2)


def test_operands_that_no_kernel_or_model_is_for_are_read_all_the_same(graph: Any) -> None:
    """Whoever is asked about them says what there is for them."""
    assert read(linear(dtype=torch.int8), "mm").hint.operands.text == "int8:rcr"
    mixed = _two(b={"dtype": torch.float16})
    assert read(mixed, "mm").hint.operands.text == "bf16xfp16:rcr"
