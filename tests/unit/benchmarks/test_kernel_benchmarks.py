"""Kernels beside others: ratios, noise, bars, means, and problems that no model was trained on."""

from __future__ import annotations

from collections import Counter
from typing import Any

import held_out_problems
import kernel_speed
import llama_shapes
import pandas as pd
import pytest
import runner
import torch

from tilecast.data_collection.problems.language_models import DEEPSEEK_V3, MODELS
from tilecast.data_collection.problems.suites import suite
from tilecast.heuristics.problem import GemmProblem


def _speed_record(problem: str, burst: dict[str, list[float]]) -> dict[str, Any]:
    facts = {"torch": "2.15.0", "problem": problem, "variants": "all", "run": 0}
    return facts | {"error": {}, "selected": {}, "microseconds": {"burst": burst}}


def test_ratios_are_of_one_record_and_the_last_one_counts() -> None:
    records = [
        _speed_record("a", {"x": [1.0, 1.0], "y": [2.0, 2.0]}),
        _speed_record("b", {"x": [1.0, 1.0]}),
        _speed_record("a", {"x": [3.0, 3.0], "y": [2.0, 1.0]}),
    ]
    assert kernel_speed.ratios(records, "burst", "x", "y") == {"a": [1.5, 3.0]}
    assert kernel_speed.ratios(records, "sustained", "x", "y") == {}


def test_comparison_counts_by_problem() -> None:
    pairs = {"a": [0.9, 0.9], "b": [1.0, 1.004], "c": [1.1, 1.1], "d": [0.98, 0.98]}
    found = kernel_speed.comparison(pairs)
    assert found["faster"] == 0.5
    assert found["faster_by_3_percent"] == 0.25
    assert found["level"] == 0.25
    assert (found["worst_problem"], found["worst"]) == ("c", pytest.approx(1.1))
    assert 0 < found["noise"] < 0.004
    assert found["slower_beyond_noise"] == 1


def test_slower_in_one_batch_alone_is_noise() -> None:
    pairs = {"a": [1.03, 1.0], "b": [1.0, 1.03], "c": [1.0, 1.0]}
    assert kernel_speed.comparison(pairs)["slower_beyond_noise"] == 0


@pytest.fixture
def shape_records() -> list[dict[str, Any]]:
    def record(problem: str, **microseconds: float) -> dict[str, Any]:
        inductor = {b: {"choices": 4, "microseconds": t} for b, t in microseconds.items()}
        times = dict.fromkeys(("burst", "sustained"), microseconds)
        facts = {"torch": "2.15.0", "run": 0, "problem": problem, "inductor": inductor}
        return facts | {"microseconds": times}

    return [
        record("bf16 64x4096x4096", ATEN=10.0, TRITON=20.0, TILECAST=8.0),
        record("bf16 64x4096x11008", ATEN=40.0, TRITON=20.0, TILECAST=8.0),
        record("int8 16x4096x4096", TRITON=5.0),
    ]


def test_ours_stand_beside_the_better_of_the_others(shape_records: list[dict[str, Any]]) -> None:
    shape_records[0]["microseconds"]["burst"] = {"ATEN": 10.0, "TRITON": 5.0, "TILECAST": 8.0}
    found = llama_shapes.figures(shape_records)["beside"]
    speed = pytest.approx((5 / 8 * 20 / 8) ** 0.5)
    assert found["bf16"]["burst"] == {"problems": 2, "ahead": 1, "speed": speed, "least": 5 / 8}
    assert found["bf16"]["sustained"]["ahead"] == 2
    assert found["int8"]["burst"] == {"problems": 0, "ahead": 0}


def test_each_kind_has_all_shapes_and_the_inputs_of_its_function() -> None:
    assert len(llama_shapes.ITEMS) == 4 * 20
    for kind in llama_shapes.KINDS.values():
        problem = llama_shapes.GemmProblem(32, 64, 128, operands=kind.operands)
        a, b, *scales = inputs = llama_shapes.random_inputs(problem, "cpu")
        out = kind.function(a, b, *llama_shapes.shaped(scales)).float()
        right = llama_shapes.reference(problem, inputs)
        assert torch.linalg.norm(out - right) < 0.01 * torch.linalg.norm(right)


def _size(problem: GemmProblem) -> int:
    return next((i for i, top in enumerate((16, 64, 256, 1024)) if problem.m <= top), 4)


def test_no_family_was_trained_on_or_is_one_that_is_collected() -> None:
    rows = pd.read_parquet(runner.DATA, columns=["n", "k"]).drop_duplicates()
    trained = set(zip(rows["n"].tolist(), rows["k"].tolist(), strict=True))
    layers = {problem.family for problem in held_out_problems.PROBLEMS}
    drawn = {problem.family for problem in held_out_problems.RANDOM}
    assert not (layers | drawn) & trained
    assert not drawn & {problem.family for problem in suite("random")}
    known = {family for model in MODELS for family in model.families()} | set(DEEPSEEK_V3)
    assert not layers & known


def test_all_sizes_have_their_share() -> None:
    layers, drawn = held_out_problems.PROBLEMS, held_out_problems.RANDOM
    assert len({problem.family for problem in layers}) == len(layers) >= 60
    assert len({problem.family for problem in drawn}) == len(drawn) == 65
    assert set(Counter(map(_size, drawn)).values()) == {13}
    for start in range(len(layers) - 4):  # so that any span of them is a fair sample
        assert len({_size(problem) for problem in layers[start : start + 5]}) == 5
