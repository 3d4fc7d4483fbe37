"""What the benchmarks of the hook do without a GPU: turns, failures, ratios, bars."""

from __future__ import annotations

from typing import Any

import compile_time
import inductor_timing
import pandas as pd
import pytest
import real_models
import runner
import steps
import torch


def _compile_record(variant: str, job: str, seconds: float, first: bool = False) -> dict[str, Any]:
    facts = {"torch": "2.15.0", "run": 0, "variant": variant, "job": job}
    return facts | {"seconds": seconds, "first": first}


@pytest.fixture
def compile_records() -> list[dict[str, Any]]:
    seconds = {
        "ATEN": (0.2, 0.2),
        "TRITON": (3.0, 2.0),
        "NVGEMM": (10.0,),
        "TILECAST cold k=5": (4.5, 1.0),
        "TILECAST k=1": (0.4, 0.2),
        "TILECAST k=5": (1.2, 0.4),
    }
    return [
        _compile_record(name, job, time, job == "a")
        for name, times in seconds.items()
        for job, time in zip("ab", times, strict=False)
    ]


def test_compile_time_figures_and_bars(compile_records: list[dict[str, Any]]) -> None:
    found = compile_time.figures(compile_records)
    assert found["gemm"]["TILECAST k=5"]["to"]["TRITON"] == pytest.approx(1.6 / 5)
    assert found["gemm"]["TILECAST k=5"]["to"]["NVGEMM"] == pytest.approx(0.12)
    assert found["gemm"]["TILECAST cold k=5"]["first"] == 4.5
    assert found["bars"] == {
        "k=5 warm at most 0.35 of TRITON": True,
        "k=5 cold at most TRITON": False,
        "k=1 warm at most 0.1 of TRITON": False,
        "k=5 warm at most 0.1 of NVGEMM": False,
    }


def test_turns_rotate_but_cold_comes_first() -> None:
    names = ["ATEN", "TRITON", compile_time.COLD, "TILECAST k=5"]
    assert compile_time.turn(names, 1) == [compile_time.COLD, "TRITON", "TILECAST k=5", "ATEN"]
    assert compile_time.turn(names[:2], 3) == ["TRITON", "ATEN"]


def test_steps_take_turns() -> None:
    order: list[str] = []

    def timer(step: Any, count: int) -> float:
        order.append(f"{step()} {count}")
        return {"fast": 1.0, "slow": 20.0}[step()]

    times = steps.interleaved({"a": lambda: "fast", "b": lambda: "slow"}, 3, timer)
    assert times == {"a": [1.0] * 3, "b": [20.0] * 3}
    # Once to learn how many steps fill a round, then in turns.
    assert order == ["fast 2", "slow 2"] + ["fast 5", "slow 1"] + ["slow 1", "fast 5"] + [
        "fast 5",
        "slow 1",
    ]


def test_error_is_over_all_tensors() -> None:
    expected = [torch.tensor([3.0]), torch.tensor([0.0, 4.0])]
    found = [torch.tensor([3.0]), torch.tensor([0.0, 4.5])]
    assert real_models.relative_error(found, expected) == pytest.approx(0.1)


def test_a_right_first_choice_that_loses_is_overturned() -> None:
    right = {"careful": (10.0, 11.0), "inductor": [(5.0, 6.0), (6.0, 5.0)]}
    wrong = {"careful": (11.0, 10.0), "inductor": [(6.0, 5.0), (6.0, 5.0)]}
    found = inductor_timing.overturned([right, wrong], "inductor")
    assert found["right_first_choices"] == 1
    assert found["overturned_share"] == 0.5
    assert found["mean_loss_when_overturned"] == pytest.approx(0.1)


def test_every_way_of_timing_is_scored_with_the_library() -> None:
    """Inductor takes cuBLAS, which is slower by 10%; graphs the second of the shortlist.

    That is the best of them, and at the power limit slower than cuBLAS.
    """
    row = {
        **{"careful": (11.0, 10.0), "sustained": (11.0, 12.5)},
        **{"inductor": [(6.0, 5.5)], "in graphs": [(5.0, 4.5)]},
        "library": {"careful": 11.0, "sustained": 12.0, "inductor": [5.0], "in graphs": [5.0]},
        "seconds_a_choice": {"inductor": 0.02, "in graphs": 0.01},
    }
    for way, burst, sustained, slower in (
        ("inductor", 1.1, 12 / 11, 0.0),
        ("in graphs", 1.0, 12.5 / 11, 1.0),
    ):
        found = inductor_timing.with_library([row], way)
        assert found["burst, library"]["geomean"] == pytest.approx(burst - 1)
        assert found["sustained, library"]["most"] == pytest.approx(sustained - 1)
        assert found["sustained, library"]["slower_than_library"] == slower
        assert found["burst, library"]["slower_than_library"] == 0.0


def test_problems_of_the_timing_are_of_families_that_were_never_measured() -> None:
    rows = pd.read_parquet(runner.DATA, columns=["n", "k"]).drop_duplicates()
    measured = set(zip(rows["n"], rows["k"], strict=True))
    assert not measured & set(inductor_timing.FAMILIES)
