"""Kernels beside others: what is timed, and problems that no model was trained on."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import held_out_problems
import llama_shapes
import pandas as pd
import pytest
import runner
import screen_against_race
import sm100_compiles
import torch

from tilecast.data_collection.problems.language_models import DEEPSEEK_V3, MODELS
from tilecast.data_collection.problems.suites import suite
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import space
from tilecast.kernels.spec import KernelSpec


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


class _Bench:
    """Kernels take longer the later they are listed; those before the middle seem slow at first."""

    def time(self, entrants: list, regime: str, rounds: int) -> list[list[float]]:
        return [[100.0 * (1 + place / 10)] * rounds for place in range(len(entrants))]

    def screen(self, entrants: list, rounds: int, give_up: float) -> list[list[float]]:
        return self.time(entrants, "sustained", rounds)


def test_a_product_is_screened_twice_and_who_is_near_in_either_is_raced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(screen_against_race.Screens, "__init__", lambda self: None)
    screens = screen_against_race.Screens()
    screens.card = "card"
    screens.bench = lambda problem, careful: _Bench()  # type: ignore[method-assign, assignment]
    problem = screen_against_race.PROBLEMS["512x14336x4096"]
    assert min(one.flops for one in screen_against_race.PROBLEMS.values()) > 10e9
    assert len(screen_against_race.PROBLEMS) == 20
    (row,) = screens.measure(problem)
    entrants = screen_against_race.entrants_of(problem)
    assert row["candidates"] == len(entrants) > 300
    assert row["configs"] == sorted(config.name for config in entrants[:3])
    kept = {row["configs"][place] for place in row["finalists"]["before"]}
    assert kept == {config.name for config in entrants[:2]}
    assert row["microseconds"]["race"] == [100.0, 110.0, 120.0]


def test_every_tile_depth_and_cluster_of_blackwell_is_compiled() -> None:
    """And rules take away what the axes span and the space has not."""
    kinds = [GemmOperands.parse(text) for text in sm100_compiles.KINDS]
    specs = [spec for operands in kinds for spec in sm100_compiles.drawn(operands)]
    assert len(specs) == len(set(specs)) == 445

    def classes(specs: list[KernelSpec]) -> set[tuple[int, ...]]:
        configs = [(cast("Any", spec.config), spec.operands.a.dtype.bits) for spec in specs]
        return {
            (c.tile_m, c.tile_n, c.tile_k * b, c.cluster_m, c.cluster_n, c.split_k > 1)
            for c, b in configs
        }

    def whole(operands: GemmOperands) -> list[KernelSpec]:
        return [KernelSpec(one, operands) for one in space(operands, sm100_compiles.GPU).configs]

    assert classes(specs) == classes(whole(kinds[0]))
    blocks = GemmOperands.parse(sm100_compiles.BLOCKS)
    assert classes(sm100_compiles.drawn(blocks)) == classes(whole(blocks))
    assert not any(spec.batched for spec in sm100_compiles.drawn(blocks))
    others = [sm100_compiles.drawn(GemmOperands.parse(text)) for text in sm100_compiles.OTHERS]
    assert [len(found) for found in others] == [30] * 4 + [23] * 3
    assert not any(spec.batched for found in others for spec in found)
    points, *taken = sm100_compiles.refused().values()
    assert points - sum(taken) == len(whole(kinds[0]))
