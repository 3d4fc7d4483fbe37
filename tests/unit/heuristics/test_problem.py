"""Problems: what is refused and how it is told, and the arithmetic on extents."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import MAX_EXTENT, PROBLEM_FIELDS, GemmProblem, library_operator

LAYOUTS = [a + b + out for a in "rc" for b in "rc" for out in "rc"]
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}

extents = st.integers(1, 4096)
layouts = st.sampled_from(LAYOUTS)
out_dtypes = st.sampled_from(sorted(BYTES))


def _operands(layout: str, out_dtype: str) -> GemmOperands:
    return GemmOperands.parse(f"bf16:{layout}>{out_dtype}")


@pytest.mark.parametrize("name", ["m", "n", "k", "batch"])
@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        *((value, f"{value} is out of range") for value in (0, -1, -8, MAX_EXTENT + 1, 2**40)),
        *((value, ".* is not an integer") for value in (1.0, 1.5, "64", None, True, math.nan)),
    ],
)
def test_extent_that_is_no_integer_in_range_is_refused(
    name: str, value: object, wrong: str
) -> None:
    extents: dict = {"m": 64, "n": 64, "k": 64, name: value}
    with pytest.raises(TilecastError, match=rf"^{name}={wrong}; allowed: 1 to "):
        GemmProblem(**extents)


def test_number_of_many_digits_is_not_echoed() -> None:
    with pytest.raises(TilecastError, match="^m=a number of many digits is out of range; allowed"):
        GemmProblem(10**5000, 64, 64)


def test_largest_extent_is_accepted() -> None:
    problem = GemmProblem(MAX_EXTENT, MAX_EXTENT - 7, MAX_EXTENT - 7)
    assert problem.flops == 2 * MAX_EXTENT * (MAX_EXTENT - 7) ** 2


@given(extents, st.integers(1, 512), st.integers(1, 7), out_dtypes)
def test_row_round_trip(m: int, n8: int, batch: int, out_dtype: str) -> None:
    problem = GemmProblem(m, 8 * n8, 64, batch, _operands("rcr", out_dtype))
    row = dict(zip(PROBLEM_FIELDS, problem.row(), strict=True))
    assert row["operands"] == problem.operands.text
    assert GemmProblem.from_row(tuple(row.values())) == problem


@pytest.mark.parametrize("text", ["16x6144x4096", "3x16x6144x4096"])
def test_text_round_trip(text: str) -> None:
    assert str(GemmProblem.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "16", "16x64", "1x2x3x4x5", "16x-64x64", "16x 64x64", "axbxc", "16x64x64\n", "１6x64x64",
     "1" * 5000 + "x64x64", "16x64x64x", "\udcff"],
)  # fmt: skip
def test_what_is_no_problem_is_refused_in_one_short_line(text: str) -> None:
    with pytest.raises(TilecastError, match="is not a problem; allowed: MxNxK or BATCH") as told:
        GemmProblem.parse(text)
    assert len(str(told.value)) < 250
    assert "\n" not in str(told.value)


@given(extents, extents, extents, layouts, out_dtypes)
def test_exactly_the_contiguous_extents_must_be_multiples_of_16_bytes(
    m: int, n: int, k: int, layout: str, out_dtype: str
) -> None:
    a, b, out = layout
    contiguous = [
        (k if a == "r" else m, 2),
        (k if b == "c" else n, 2),
        (n if out == "r" else m, BYTES[out_dtype]),
    ]
    aligned = all(extent * size % 16 == 0 for extent, size in contiguous)
    operands = _operands(layout, out_dtype)
    if aligned:
        assert GemmProblem(m, n, k, operands=operands).operands is operands
    else:
        with pytest.raises(TilecastError, match="breaks the 16-byte rule of .*; pad .* to "):
            GemmProblem(m, n, k, operands=operands)


@given(extents, layouts, out_dtypes)
def test_the_padding_that_the_message_asks_for_is_enough(
    extent: int, layout: str, out_dtype: str
) -> None:
    operands = _operands(layout, out_dtype)
    extents = {"m": extent, "n": extent, "k": extent}
    for _ in range(4):
        try:
            GemmProblem(**extents, operands=operands)
            break
        except TilecastError as error:
            name, value = str(error).rsplit("pad ", 1)[1].split(" to ")
            extents[name] = int(value)
    else:
        pytest.fail(f"padding as told never ends: {extents}")


@given(extents, st.integers(1, 512), st.integers(1, 512), st.integers(1, 7), out_dtypes)
def test_flops_and_bytes(m: int, n8: int, k8: int, batch: int, out_dtype: str) -> None:
    n, k = 8 * n8, 8 * k8
    operands = _operands("rcr", out_dtype)
    problem = GemmProblem(m, n, k, batch, operands)
    assert problem.flops == sum(2 * m * n * k for _ in range(batch))
    one = 2 * (m * k + k * n) + BYTES[out_dtype] * m * n
    assert problem.min_bytes == batch * one
    assert problem.family == (n, k)


@pytest.mark.parametrize(
    ("text", "rows", "products"),
    [
        ("8x4096x64x128", 512, 8 * 4096 / 4103),
        ("8x100x64x128", 13, 8 * 100 / 107),
        ("8x3x64x128", 1, 2.4),
        ("64x64x64x128", 1, 64 * 64 / 127),
        ("9x1x64x128", 1, 1),
        ("1x5x64x128", 5, 1),
    ],
)
def test_weights_are_read_of_groups_that_are_expected_to_get_rows(
    text: str, rows: int, products: float
) -> None:
    """Each row is multiplied once, wherever it goes; half of 64 groups get none of 64 rows."""
    problem = GemmProblem.parse(text, GemmOperands.parse("bf16:rcr:row-groups"))
    assert (problem.rows, problem.products, problem.batched) == (rows, products, False)
    assert problem.flops == 2 * problem.m * 64 * 128
    rest = problem.m * 128 + problem.m * 64
    assert problem.min_bytes == 2 * (rest + products * 128 * 64)
    assert problem.stored_bytes == 2 * (rest + problem.batch * 128 * 64)
    assert str(problem) == text.removeprefix("1x")
    alone = GemmProblem.parse(text)
    assert (alone.rows, alone.products) == (alone.m, alone.batch)
    assert alone.stored_bytes == alone.min_bytes


def test_groups_along_k_are_as_many_products_and_read_a_and_b_once() -> None:
    problem = GemmProblem.parse("8x64x128x1001", GemmOperands.parse("bf16:crr:k-groups"))
    assert (problem.rows, problem.products, problem.depth, problem.dealt) == (64, 8, 126, 1001)
    assert problem.flops == 2 * 64 * 128 * 1001
    assert problem.min_bytes == 2 * (64 * 1001 + 1001 * 128 + 8 * 64 * 128) == problem.stored_bytes
    assert problem.library_call == "torch._grouped_mm" and problem.in_library
    assert problem.family == (64, 128)
    assert problem.evenly() == GemmProblem.parse("8x64x128x126", GemmOperands.parse("bf16:crr"))
    rows = GemmProblem.parse("8x64x128x1008", GemmOperands.parse("bf16:rcr:row-groups"))
    assert (rows.depth, rows.dealt, rows.evenly()) == (1008, 64, rows)


def test_a_matrix_that_is_added_is_read_and_a_row_is_not_counted() -> None:
    plain = GemmProblem(64, 128, 256)
    row, matrix = (
        replace(plain, operands=GemmOperands.parse(text))
        for text in ("bf16:rcr:bias", "bf16:rcr:c")
    )
    assert row.min_bytes == plain.min_bytes
    assert matrix.min_bytes == plain.min_bytes + 2 * 64 * 128


def test_a_gate_writes_half_the_columns() -> None:
    gated = GemmProblem(64, 128, 256, operands=GemmOperands.parse("bf16:rcr:silu-mul"))
    assert gated.out_n == 64
    assert gated.min_bytes == 2 * (64 * 256 + 256 * 128 + 64 * 64)
    assert gated.flops == 2 * 64 * 128 * 256
    with pytest.raises(TilecastError, match="^n=136 cannot be halved by silu-mul; allowed: mult"):
        GemmProblem(64, 136, 256, operands=gated.operands)


@pytest.mark.parametrize(
    ("operands", "batch", "name"),
    [
        ("bf16:rcr", 1, "torch.mm"),
        ("bf16:rcr:bias+silu-mul", 1, "torch.addmm"),
        ("fp16:rrr", 4, "torch.bmm"),
        ("bf16:rcr:bias", 1, "torch.addmm"),
        ("int8:rcr>int32", 1, "torch._int_mm"),
        ("e4m3:rcr>bf16:row-scales", 1, "torch._scaled_mm"),
        ("bf16:rcr:beta-c", 1, "torch.addmm"),
        ("bf16:rcr:bias+relu", 1, "torch._addmm_activation"),
        ("bf16:rcr>fp32:bias", 4, "torch.bmm"),
        ("bf16xint8:rcr:bias", 1, "torch.mm"),
        ("bf16:rcr:row-groups+silu", 4, "torch._grouped_mm"),
        ("e4m3:rcr>bf16:row-groups+row-scales", 4, "torch._scaled_grouped_mm"),
    ],
)
def test_the_call_of_the_library(operands: str, batch: int, name: str) -> None:
    problem = GemmProblem(64, 64, 64, batch, GemmOperands.parse(operands))
    assert problem.library_call == name


@pytest.mark.parametrize(
    ("text", "extents", "expected"),
    [
        ("bf16:rcr", "3x64x64x64", True),
        ("bf16:rcr:relu", "3x64x64x64", True),
        ("bf16:rcr>fp32:bias", "3x64x64x64", True),
        ("bf16xint8:rcr:column-scales", "3x64x64x64", True),
        ("bf16:rcr:bias", "3x64x64x64", True),
        ("bf16:rcr:bias+relu", "3x64x64x64", False),
        ("bf16:rcr:c", "3x64x64x64", True),
        ("int8:rcr>int32", "3x64x64x64", False),
        ("e4m3:rcr>bf16", "3x64x64x64", False),
        ("bf16:rcr:bias", "1x64x64x64", True),
        ("bf16:rcr:c", "1x64x64x64", True),
        ("int8:rcr>bf16:row-scales", "1x64x64x64", True),
        ("int8:rcr>bf16", "1x64x64x64", False),
        ("int8:rcc>int32", "1x64x64x64", False),
        ("e5m2:rcr>bf16", "1x64x64x64", False),
        ("e4m3xe5m2:rcr>bf16", "1x64x64x64", True),
        ("e4m3:rcr>fp32:tensor-scales", "1x64x64x64", True),
        ("e4m3:rcr>fp32:row-scales", "1x64x64x64", False),
        ("e4m3:rcr>fp16:row-scales", "1x64x64x64", False),
        ("e4m3:rcr>bf16:out-row-scales", "1x64x64x64", False),
        ("int8:rcr>int32", "17x584x64", True),
        ("int8:rcr>int32", "16x592x64", False),
        ("int8:rcr>int32", "64x20x64", False),
        ("e4m3:rcr>bf16:row-scales", "1x592x64", True),
        ("e4m3:rcr>bf16:row-scales", "64x584x64", False),
        ("bf16xint8:rcr:column-scales", "1x584x64", True),
        ("bf16:rcr:row-groups", "3x64x64x64", True),
        ("fp16:rcr:row-groups", "3x64x64x64", False),
        ("e4m3:rcr>bf16@fp32:row-groups+row-scales", "3x64x72x64", True),
        ("e4m3:rcr>fp16:row-groups+row-scales", "3x64x64x64", False),
        ("e4m3xe5m2:rcr>bf16:row-groups+row-scales", "3x64x64x64", False),
    ],
)
def test_what_the_library_multiplies(text: str, extents: str, expected: bool) -> None:
    assert GemmProblem.parse(extents, GemmOperands.parse(text)).in_library == expected


def test_a_result_in_fp32_has_its_bias_added_behind_fp8() -> None:
    operators = {
        out: library_operator(GemmOperands.parse(f"e4m3:rcr>{out}:bias"))
        for out in ("bf16", "fp32")
    }
    assert operators == {"bf16": ("_scaled_mm", 1), "fp32": ("_scaled_mm", 0)}
