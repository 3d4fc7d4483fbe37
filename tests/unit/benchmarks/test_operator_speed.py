"""What the fastest measured kernels gain on PyTorch's operators, by kind of operands."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import operator_speed
import pytest

from tilecast.heuristics.operands import GemmOperands
from tilecast.models.learning.labels import ProblemLabels


@pytest.mark.parametrize(
    ("text", "operator", "others"),
    [
        ("bf16:rcr", "matmul", False),
        ("bf16:rcr:bias", "addmm", False),
        ("bf16:rcr:bias+gelu", "addmm", True),
        ("bf16:rcr:bias+gelu-tanh", "_addmm_activation", False),
        ("bf16xint8:rcr:column-scales", "matmul", True),
        ("int8:rcr>int32", "_int_mm", False),
        ("int8:rcr>bf16:row-scales", "_int_mm", True),
        ("e4m3:rcr>bf16:row-scales", "_scaled_mm", False),
    ],
)
def test_operator_and_whether_it_takes_others(text: str, operator: str, others: bool) -> None:
    found = operator_speed.library(GemmOperands.parse(text))
    assert found == {"operator": operator, "others": others}


def test_fastest_kernels_beside_the_library(
    synthetic_table: list[ProblemLabels], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *timed = synthetic_table
    untimed = dataclasses.replace(first, reference={"burst": math.nan, "sustained": 1.0})
    ratios = [(one.reference["burst"] / one.truth["burst"]).max() for one in timed]
    monkeypatch.setattr(operator_speed, "FEWEST", len(timed))
    assert operator_speed.figures(timed[1:]) == {}
    (found,) = operator_speed.figures([untimed, *timed]).values()
    assert found["burst"]["problems"] == len(timed)
    assert {name: found["burst"][name] for name in ("geomean", "least", "most")} == {
        "geomean": round(float(np.prod(ratios)) ** (1 / len(ratios)), 4),
        "least": round(min(ratios), 4),
        "most": round(max(ratios), 4),
    }
