"""Which Triton configs are left out: the bound, and what the hook makes of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from unittest import mock

import pytest
import torch
from hook_graph import biased_linear, choices_of, linear
from torch._dynamo.utils import counters
from torch._inductor.kernel import mm
from torch._inductor.kernel_template_choice import KernelTemplateChoice
from torch._inductor.virtualized import V

from tilecast.data_collection.dataset.dataset import read_columns, shipped_data
from tilecast.data_collection.dataset.select_times import measured_problems
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook import install
from tilecast.inductor_hook.offer import offer as choices
from tilecast.inductor_hook.offer.triton_bound import least_microseconds, pruned
from tilecast.inductor_hook.patch.torch_versions import template_params
from tilecast.kernels.quack_sm90.config import QuackConfig

COMPETING = "ATEN,TRITON,TILECAST"
WAVE = 132 * 128 * 256
"""Elements of a result that one wave of large tiles covers on an H200."""


PEAK = 989.4e6 * 1.98 / 1.83
"""FLOP a microsecond of all SMs at the highest clock."""
LOAD = 4096 / 96 * 132 / 989.4e6
"""Microseconds in which one SM loads a byte."""
HOMES = ("torch._inductor.heuristics.template.triton", "torch._inductor.template_heuristics.triton")
"""Of Inductor's configs, in newer and older versions."""


class _TritonConfig:
    """Triton's, which is not there without Triton; nothing of it is generated."""

    def __init__(self, kwargs: dict[str, int], num_stages: int, num_warps: int):
        self.kwargs, self.num_stages, self.num_warps = kwargs, num_stages, num_warps


@pytest.fixture
def offered(graph: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Gives what is offered for a multiplication, of which nothing but ours is generated."""
    home = HOMES[find_spec(HOMES[0].rpartition(".")[0].rpartition(".")[0]) is None]
    monkeypatch.setattr(import_module(home), "TritonConfig", _TritonConfig)
    monkeypatch.setattr(torch.cuda, "get_device_properties", mock.Mock())

    def offer(inputs: Any, op: str = "mm") -> list[Any]:
        found: list[Any] = []
        handler = V.choices
        finalize = handler._finalize_template_configs

        def keep(*arguments: Any, **options: Any) -> list[Any]:
            found.extend(finalize(*arguments, **options))
            return []

        templates = [mm.aten_addmm if op == "addmm" else mm.aten_mm, mm.mm_template]
        with mock.patch.object(handler, "_finalize_template_configs", keep):
            assert choices_of(inputs, op, templates) == []
        return found

    return offer


@pytest.mark.parametrize(
    ("problem", "operands", "tile", "expected"),
    [
        # One wave of whole tiles at the highest clock; two with one tile more.
        ((128 * 12, 256 * 11, 4096), "bf16:rcr", (128, 256), 2 * WAVE * 4096 / PEAK),
        ((128 * 12 + 1, 256 * 11, 4096), "bf16:rcr", (128, 256), 4 * WAVE * 4096 / PEAK),
        ((128 * 12, 256 * 11, 4096), "e4m3:rcr>bf16:row-scales", (128, 256), WAVE * 4096 / PEAK),
        # Few rows: what a CTA loads, at 96 bytes in the time of 4,096 FLOP.
        ((16, 1024, 8192), "bf16:rcr", (16, 64), 80 * 8192 * 2 * LOAD),
        ((8, 1024, 8192), "bf16:rcr", (16, 64), 72 * 8192 * 2 * LOAD),
        ((16, 1024, 8192), "bf16xint8:rcr:column-scales", (16, 64), 48 * 8192 * 2 * LOAD),
    ],
)  # fmt: skip
def test_a_tile_says_what_one_sm_takes_at_the_least(
    h200: Hardware,
    problem: tuple[int, int, int],
    operands: str,
    tile: tuple[int, int],
    expected: float,
) -> None:
    multiplied = GemmProblem(*problem, operands=GemmOperands.parse(operands))
    assert least_microseconds(multiplied, tile, h200) == pytest.approx(expected)


def test_no_measured_kernel_with_one_cta_a_tile_is_faster_than_the_bound(h200: Hardware) -> None:
    path = shipped_data(h200)
    assert path is not None
    ratios = [
        taken / least_microseconds(one.problem, _tile(config), h200)
        for one in measured_problems(read_columns(path)[0])
        for config, taken in zip(one.configs, one.label["burst"], strict=True)
        if isinstance(config, QuackConfig) and math.isfinite(taken) and _is_alone(config)
    ]
    assert len(ratios) > 20_000
    assert 1 < min(ratios) < 1.1
    assert statistics.median(ratios) > 3


def _is_alone(config: QuackConfig) -> bool:
    """Whether a CTA shares neither k nor what it loads with another."""
    return config.cluster_m == config.cluster_n == config.split_k == 1


def _tile(config: QuackConfig) -> tuple[int, int]:
    rows, columns = config.tile_m, config.tile_n
    return (columns, rows) if config.swap_ab else (rows, columns)


def test_rates_that_were_measured_do_not_count(h200: Hardware) -> None:
    """Those of a GPU that described itself are below those of its SMs."""
    problem, slow = GemmProblem(512, 4096, 4096), replace(h200, peak_flops=2e14)
    for tile in ((16, 64), (128, 256)):
        bound = least_microseconds(problem, tile, slow)
        assert bound == least_microseconds(problem, tile, h200)


def test_where_that_fails_all_compete(
    offered: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "pruned", lambda *arguments: 1 / 0)
    install(k=5, prune_triton=True)
    assert len(_triton(offered(linear(16, 1024, 8192)))) > 15
    assert counters["tilecast"]["failed: leaving Triton configs out"] == 1


def test_configs_that_cannot_win_are_left_out(offered: Callable[..., list[Any]]) -> None:
    """Of one output tile a CTA, where a split of k is several times as fast."""
    install(k=5)
    everything = offered(linear(16, 1024, 8192))
    assert counters["tilecast"]["pruned Triton configs"] == 0
    install(k=5, prune_triton=True)
    some = offered(linear(16, 1024, 8192))
    tiles, left = _triton(everything), _triton(some)
    assert len(tiles) > 15
    assert 0 < len(left) < len(tiles)
    assert counters["tilecast"]["pruned Triton configs"] == len(tiles) - len(left)
    bound = partial(least_microseconds, GemmProblem(16, 1024, 8192), gpu=hardware("H200"))
    assert max(map(bound, left)) < min(map(bound, set(tiles) - set(left)))
    assert min(map(bound, tiles)) == min(map(bound, left))
    # ATen's choice and ours stay.
    assert len(everything) - len(tiles) == len(some) - len(left) == 6


def test_all_stay_where_a_second_kernel_comes_behind_ours(
    offered: Callable[..., list[Any]],
) -> None:
    install(k=5, prune_triton=True)
    for inputs, op in ((linear(16, 1023, 8192), "mm"), (biased_linear(16, 1024, 8192, 2), "addmm")):
        assert len(_triton(offered(inputs, op))) > 15
    assert counters["tilecast"]["pruned Triton configs"] == 0


def test_the_most_promising_config_always_stays(h200: Hardware) -> None:
    def choice(rows: int, columns: int) -> KernelTemplateChoice:
        options = template_params(BLOCK_M=rows, BLOCK_N=columns)
        return KernelTemplateChoice(mm.mm_template, options, {}, mock.Mock(), mock.Mock())

    aten = KernelTemplateChoice(mm.aten_mm, template_params(), {}, mock.Mock(), mock.Mock())
    tiles = [choice(16, 128), choice(16, 32), choice(16, 64)]
    problem = GemmProblem(16, 1024, 8192)
    assert pruned([aten, *tiles], problem, 0.1, h200) == [aten, tiles[1]]
    assert pruned([aten], problem, 0.1, h200) == [aten]
    assert pruned([aten, *tiles], problem, 1e3, h200) == [aten, *tiles]


def _triton(found: Sequence[Any]) -> list[tuple[int, int]]:
    """Tiles of the Triton configs among some choices."""
    options = [choice.params.to_kwargs() for choice in found]
    return [(one["BLOCK_M"], one["BLOCK_N"]) for one in options if "BLOCK_M" in one]
