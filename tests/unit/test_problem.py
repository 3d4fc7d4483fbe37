"""Problems: what is refused and how it is told, and the arithmetic on extents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.problem import (
    LINEAR_BF16,
    MAX_EXTENT,
    OUT_DTYPES,
    GemmOperands,
    GemmProblem,
)

LAYOUTS = [a + b + out for a in "rc" for b in "rc" for out in "rc"]
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}

extents = st.integers(1, 4096)
layouts = st.sampled_from(LAYOUTS)
out_dtypes = st.sampled_from(OUT_DTYPES)


@pytest.mark.parametrize("name", ["m", "n", "k", "batch"])
@pytest.mark.parametrize("value", [0, -1, -8, MAX_EXTENT + 8, 2**40])
def test_extent_out_of_range_is_refused(name: str, value: int) -> None:
    extents: dict = {"m": 64, "n": 64, "k": 64, name: value}
    with pytest.raises(TilecastError, match=rf"^{name}={value} is out of range; allowed: 1 to "):
        GemmProblem(**extents)


@pytest.mark.parametrize("name", ["m", "n", "k", "batch"])
@pytest.mark.parametrize("value", [1.0, 1.5, "64", None, True, float("nan")])
def test_extent_that_is_no_integer_is_refused(name: str, value: object) -> None:
    extents: dict = {"m": 64, "n": 64, "k": 64, name: value}
    with pytest.raises(TilecastError, match=rf"^{name}=.* is not an integer; allowed: 1 to "):
        GemmProblem(**extents)


def test_largest_extent_is_accepted() -> None:
    assert GemmProblem(MAX_EXTENT, MAX_EXTENT, MAX_EXTENT).flops == 2 * MAX_EXTENT**3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dtype", "float8"),
        ("dtype", "bf16"),
        ("dtype", "float32"),
        ("out_dtype", "int8"),
        ("acc_dtype", "float16"),
        ("a_major", "r"),
        ("b_major", None),
        ("out_major", "diagonal"),
        ("epilogue", "relu"),
    ],
)
def test_unknown_operand_fields_are_refused_with_the_allowed_ones(
    field: str, value: object
) -> None:
    fields: dict = {field: value}
    with pytest.raises(TilecastError, match=rf"^{field} {value!r} is not known; allowed: \w+"):
        GemmOperands(**fields)


@pytest.mark.parametrize("layout", ["", "rc", "rcrr", "rcx", "RCR", "nt", None, 3])
def test_unknown_layout_is_refused(layout: object) -> None:
    with pytest.raises(TilecastError, match="is not known; allowed: three letters r or c"):
        GemmOperands.from_layout(layout)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_round_trip(layout: str) -> None:
    assert GemmOperands.from_layout(layout).layout == layout


def test_linear_is_the_default() -> None:
    assert GemmOperands.from_layout("rcr") == LINEAR_BF16 == GemmProblem(8, 8, 8).operands


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
    operands = GemmOperands.from_layout(layout, out_dtype=out_dtype)
    if aligned:
        assert GemmProblem(m, n, k, operands=operands).operands is operands
    else:
        with pytest.raises(TilecastError, match="breaks the 16-byte rule of .*; pad .* to "):
            GemmProblem(m, n, k, operands=operands)


@given(extents, layouts, out_dtypes)
def test_the_padding_that_the_message_asks_for_is_enough(
    extent: int, layout: str, out_dtype: str
) -> None:
    operands = GemmOperands.from_layout(layout, out_dtype=out_dtype)
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
    operands = GemmOperands(out_dtype=out_dtype)
    problem = GemmProblem(m, n, k, batch, operands)
    assert problem.flops == sum(2 * m * n * k for _ in range(batch))
    one = 2 * (m * k + k * n) + BYTES[out_dtype] * m * n
    assert problem.min_bytes == batch * one
    assert problem.family == (n, k)


def test_text_is_short_and_names_the_batch_only_where_there_is_one() -> None:
    assert str(GemmProblem(16, 6144, 4096)) == "16x6144x4096"
    assert str(GemmProblem(16, 6144, 4096, batch=3)) == "3x16x6144x4096"


def test_problems_are_values() -> None:
    assert len({GemmProblem(16, 64, 64), GemmProblem(16, 64, 64), GemmProblem(8, 64, 64)}) == 2
