"""The benchmark of grouped products in fp8: what it times, and its figures."""

from __future__ import annotations

from grouped_fp8 import FIRST, LIBRARY, MOST, PROBLEMS, figures, timed_configs

from tilecast.heuristics.hardware import hardware
from tilecast.kernels.candidates import candidates

H200 = hardware("H200")


def test_the_first_choices_stand_in_front_of_other_candidates() -> None:
    found = timed_configs(H200)
    assert [*found] == [*PROBLEMS.values()]
    for problem, configs in found.items():
        assert FIRST < len(configs) <= MOST and len(set(configs)) == len(configs)
        assert set(configs) <= set(candidates(problem, H200))


def test_figures_are_pytorchs_time_over_that_of_the_choices() -> None:
    times = {"a": 5.0, "b": 4.0, "c": 2.0, LIBRARY: 8.0}
    row = {"problem": "8x64x64x64 fast", "first": ["a", "b"], "microseconds": {"burst": times}}
    slower = row | {"microseconds": {"burst": {**times, "a": 20.0}}}
    burst = figures([row, slower])["fast"]["burst"]
    assert [burst[name]["least"] for name in ("first", "of five", "of all")] == [0.4, 2.0, 4.0]
    assert burst["first"]["geomean"] == 0.8
    assert "sustained" not in figures([row])["fast"] and "exact" not in figures([row])
