"""Operands: one text says all of them, and what is not known is refused with what is."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilecast.heuristics.dtypes import DTYPES, dtype, dtype_of_torch
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.operands import EPILOGUES, GROUPS, SCALES, GemmOperands, TensorSpec

multiplied = st.sampled_from([row for row in DTYPES.values() if row.speed])
any_dtype = st.sampled_from(list(DTYPES.values()))
stored_dtype = st.sampled_from([row for row in DTYPES.values() if row.name != "fp22"])
majors = st.sampled_from(["row", "col"])
GATES = [step for step, fusion in EPILOGUES.items() if fusion.half is not None]
ELEMENTWISE = [step for step in EPILOGUES if step not in GATES]
operands = st.builds(
    GemmOperands,
    st.builds(TensorSpec, multiplied, majors),
    st.builds(TensorSpec, multiplied, majors),
    st.builds(TensorSpec, stored_dtype, majors),
    any_dtype,
    st.sampled_from(["", *SCALES]),
    st.one_of(
        st.lists(st.sampled_from([step for step in ELEMENTWISE if step != "c"]), unique=True),
        st.tuples(st.sampled_from(("alpha", "bias", "relu")), st.sampled_from(GATES)),
    ).map(tuple),
    st.sampled_from(["", *GROUPS]),
)


@given(operands)
def test_text_round_trip(stored: GemmOperands) -> None:
    assert GemmOperands.parse(stored.text) == stored
    assert str(stored) == stored.text
    assert pickle.loads(pickle.dumps(stored)) == stored


@given(operands, operands)
def test_texts_are_distinct(one: GemmOperands, other: GemmOperands) -> None:
    assert (one.text == other.text) == (one == other)
    assert hash(one) == hash(GemmOperands.parse(one.text))


@pytest.mark.parametrize(
    "text",
    ["bf16:rcr", "fp16:crr>fp32", "e4m3:rcr>bf16:row-scales+bias", "int8:rcr>int32",
     "bf16xint8:rcr", "bf16xint8:rcr:column-scales+bias",
     "bf16xint8:rcr:fp32-column-scales+bias", "e4m3:rcr>bf16@fp16",
     "bf16:rcr:bias", "bf16:rcr:bias+mul-gelu-tanh", "bf16:rcr:row-groups",
     "e4m3:rcr>bf16@fp32:row-groups+row-scales",
     "fp16:rrr:row-groups+row-scales+silu", "bf16:rcr@4xfp32", "e4m3:rcr>bf16@4xfp22:row-scales"],
)  # fmt: skip
def test_text_is_as_short_as_it_can_be(text: str) -> None:
    assert GemmOperands.parse(text).text == text


def test_text_with_what_goes_without_saying_is_read() -> None:
    assert GemmOperands.parse("bf16xbf16:rcr>bf16@fp32").text == "bf16:rcr"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("bf17:rcr", "dtype 'bf17' is not known; allowed: bf16, fp16, fp22, fp32, e4m3, "),
        ("bf16:rcr>bf17", "dtype 'bf17' is not known; allowed: bf16"),
        ("fp32:rcr", "A is fp32; allowed: bf16, fp16, e4m3, e5m2, int8"),
        ("bf16xint32:rcr", "B is int32; allowed: bf16"),
        ("bf16:rcr>fp22", "out is fp22, which only sums are; allowed: fp32"),
        ("bf16:rcr:relux", "epilogue 'relux' is not known; allowed: alpha, bias"),
        ("bf16:rcr:bias+row-scales", "epilogue 'row-scales' is not known; allowed: alpha, bias"),
        ("bf16:rcr:silu+row-groups", "epilogue 'row-groups' is not known; allowed: alpha, bias"),
        ("bf16:rcr:c+beta-c", "epilogue 'c+beta-c' takes one input twice; allowed: each of "),
        ("bf16:rcr:silu-mul+bias", "epilogue 'silu-mul+bias' goes on behind the gate silu-mul"),
        ("bf16:rcr:c+silu-mul", "epilogue 'c+silu-mul' adds a matrix before the gate"),
        ("", "operands '' are not understood; allowed: A's dtype"),
        ("bf16", "operands 'bf16' are not understood"),
        ("bf16:rc", "operands 'bf16:rc' are not understood"),
        ("bf16:RCR", "operands 'bf16:RCR' are not understood"),
        ("bf16:rcr ", "operands 'bf16:rcr ' are not understood"),
    ],
)
def test_what_is_not_known_is_refused_with_what_is(text: str, told: str) -> None:
    with pytest.raises(TilecastError) as refused:
        GemmOperands.parse(text)
    assert str(refused.value).startswith(told)


@pytest.mark.parametrize("text", ["bf16:rcr", "bf16:rcr:bias+silu"])
def test_out_has_the_columns_of_b_without_a_gate(text: str) -> None:
    assert GemmOperands.parse(text).columns_for_one == 1


@pytest.mark.parametrize("gate", GATES)
def test_a_gate_halves_the_columns(gate: str) -> None:
    gated = GemmOperands.parse(f"bf16:rcr:bias+{gate}")
    assert gated.gate == gated.activation == gate
    assert gated.columns_for_one == 2
    assert not EPILOGUES[gate].activation, "it is found in graphs in another way"


@pytest.mark.parametrize("row", DTYPES.values(), ids=str)
def test_a_dtype_is_what_torch_and_the_dsl_say(row) -> None:
    import cutlass
    import torch

    assert getattr(torch, row.torch).itemsize * 8 == row.bits
    assert getattr(cutlass, row.cutlass).width == row.bits
    assert dtype(row.name) is row
    stored = dtype("fp32") if row.name == "fp22" else row
    assert dtype_of_torch(getattr(torch, row.torch)) is stored
    assert row.accumulator in DTYPES
    assert row.bytes(16) == 2 * row.bits
