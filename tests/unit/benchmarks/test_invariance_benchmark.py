"""The benchmark that compares bits of rows finds what depends on the batch, and nothing else."""

from __future__ import annotations

from typing import cast

import invariance
import invariant_speed as speed
import pytest
import torch

from tilecast.heuristics.operands import GemmOperands
from tilecast.kernels.quack_sm90.config import QuackConfig


def _right(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *extras: object) -> None:
    """In whole numbers or with room to spare, so that the order of sums changes no bit."""
    product = a.double() @ b.double()
    out.copy_(product.nan_to_num(nan=7.0))


def _by_place(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *extras: object) -> None:
    """Other bits in the second row of a product, whichever row of the pool that is."""
    _right(a, b, out)
    out[..., 1:2, :].add_(1).mul_(2)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"POOL": 32, "MOST_ROWS": 40, "FAMILIES": ((16, 32), (32, 48))}.items():
        monkeypatch.setattr(invariance, name, value)
    monkeypatch.setattr(invariance, "STOCK_DRAWS", 0)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "bf16:rcr",
            "bf16:ccr",
            "bf16:rcc",
            "bf16:rcr:bias+c",
            "e4m3:rcr>bf16@fp32:row-scales+bias",
        ),
        *("int8:rcr>int32", "bf16:rcr, batched", "bf16:rcr:bias, rows of any length"),
    ],
)
def test_rows_that_depend_on_their_place_are_found_and_no_others(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = invariance.KINDS[name]
    first, second, third = list(invariance.drawn(kind, 3, 0))
    launches = {first: _right, second: _right, third: _by_place}
    monkeypatch.setattr(invariance, "loaded_kernel", lambda spec, device: launches[spec])
    monkeypatch.setattr(invariance, "_stock", lambda pools, ours: None)
    row = invariance.compared(kind, dict.fromkeys(launches, True), 60, "cpu")
    agrees, also, differs = row["kernels"]
    assert agrees["differing"] == also["differing"] == 0
    assert 0 < differs["differing"] < differs["rows"] / 2
    assert [one["group"] for one in row["kernels"]] == [0, 0, 1]
    figures = invariance.figures([{"kind": name, **row}])[name]
    assert figures["sets"] == 2
    assert figures["differing"] == differs["differing"]


def test_what_breaks_a_rule_is_compared_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = invariance.KINDS["bf16:rcr"]
    plain, split = list(invariance.drawn(kind, 1, 1))

    def shifted(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        _right(a, b, out)
        out.add_(1)

    launches = {plain: _right, split: shifted}
    monkeypatch.setattr(invariance, "loaded_kernel", lambda spec, device: launches[spec])
    monkeypatch.setattr(invariance, "_stock", lambda pools, ours: None)
    row = invariance.compared(kind, {plain: True, split: False}, 40, "cpu")
    assert [one["differing"] for one in row["kernels"]] == [0, 0]
    figures = invariance.figures([{"kind": "bf16:rcr", **row}])["bf16:rcr"]
    assert (figures["sets"], figures["other_kernels"]) == (1, 1)
    assert figures["that_agree_with_these"] == figures["that_differ_from_themselves"] == 0


def test_kernels_that_are_drawn_show_every_kind_and_follow_the_rules() -> None:
    for name in ("bf16:rcr", "e4m3:rcr>bf16@fp32:tensor-scales"):
        kernels = invariance.drawn(invariance.KINDS[name])
        assert list(kernels.values()) == [True] * 12 + [False] * 4
        agreeing = [cast("QuackConfig", spec.config) for spec, agrees in kernels.items() if agrees]
        assert {config.swap_ab for config in agreeing} == {True, False}
        assert {config.schedule for config in agreeing} == {"coop", "pong"}
        assert {config.ctas_per_sm for config in agreeing} == {1, 2}
        assert {config.split_k for config in agreeing} == {1}
        deep = {config.tile_k for config in agreeing}
        assert deep == ({64, 128} if name == "bf16:rcr" else {128})
    whole = invariance.drawn(invariance.Kind(GemmOperands.parse("int8:rcr>int32")))
    assert all(whole.values())
    assert {cast("QuackConfig", spec.config).split_k > 1 for spec in whole} == {True, False}


def test_layers_are_raced_by_the_kernels_of_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "hardware_of", lambda device, settings: invariance.GPU)
    assert len(speed.PROBLEMS) == len(speed.M) * len(speed.families())
    assert {(28672, 4096), (4096, 12288), (2880, 4096), (2112, 7168)} <= {*speed.families()}
    for problem in list(speed.PROBLEMS.values())[:12]:
        named = speed.chosen(problem)
        assert set(named) == {*speed.OWN, speed.FREE}
        own = [cast("QuackConfig", named[name].config) for name in speed.OWN]
        assert {config.split_k for config in own} == {1}
