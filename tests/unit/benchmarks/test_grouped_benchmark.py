"""Grouped products beside PyTorch's: figures of rows, lists of configs, and what is timed."""

from __future__ import annotations

import grouped_speed
import pytest

from tilecast.heuristics.hardware import hardware
from tilecast.kernels.candidates import candidates


def _row(problem: str, burst: dict[str, float]) -> dict:
    burst = {grouped_speed.LIBRARY: 12.0, **burst}
    return {
        "problem": problem,
        "ranked": ["b", "a", "c"],
        "screened": burst,
        "microseconds": {"burst": burst},
        "even": burst,
    }


ROWS = [_row("8x64x128x256 rcr", {"a": 10.0, "b": 12.0}), _row("4096x128x256 rcr", {"b": 8.0})]


def test_figures_are_by_rows_and_regime() -> None:
    found = grouped_speed.figures(ROWS)
    assert set(found) == {"all", "0 to 128 rows", "2049 to 2147483648 rows", "fixed lists"}
    few = found["0 to 128 rows"]["burst"]
    assert few["torch over the best"]["geomean"] == pytest.approx(1.2, rel=1e-3)
    assert few["regret of the model's first 1"] == 0.2
    assert few["regret of the model's first 3"] == 0.0
    assert found["all"]["even"]["torch over the best"]["problems"] == 2


def test_a_list_begins_with_what_loses_least_and_adds_what_it_lacks() -> None:
    assert grouped_speed.fixed_lists(ROWS) == {
        "configs": ["b", "a"], "mean regret with each added": [0.1, 0.0]
    }  # fmt: skip


def test_what_is_timed_are_candidates() -> None:
    gpu, problem = hardware("H200"), next(iter(grouped_speed.PROBLEMS.values()))
    ranked = grouped_speed.ranked(problem, gpu)
    assert len(ranked) == grouped_speed.RANKED
    assert set(ranked) <= set(candidates(problem, gpu))
