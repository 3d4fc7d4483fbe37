"""The figures of reports: which numbers they hold, and that plotly takes them as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from tilecast.data_collection.dataset.dataset import Dataset
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.families import parse_config
from tilecast.models.learning.labels import ProblemLabels, label_table
from tilecast.models.runtime.learned import FirstChoice, Prediction
from tilecast.models.runtime.objectives import OBJECTIVES
from tilecast.reporting.choices import Choices
from tilecast.reporting.noise import change_by_card, noise_figure, noise_table, repeats
from tilecast.reporting.plots import Figure
from tilecast.reporting.problem_plots import (
    KNOBS,
    coverage,
    doubt_figure,
    speed_figure,
    speed_table,
    winner,
    winners,
)
from tilecast.reporting.regret import regret_figure
from tilecast.reporting.sections import dataset_sections


def _sound(figure: Figure) -> list[dict]:
    """The traces of a figure, which plotly, too, finds to be one."""
    go.Figure(figure)
    assert figure["layout"]["height"] > 0
    return figure["data"]


def test_a_wrong_figure_would_be_seen() -> None:
    with pytest.raises(ValueError, match="colour"):
        _sound({"data": [{"type": "scatter", "colour": 1}], "layout": {"height": 1}})


def test_coverage_has_a_dot_for_every_problem() -> None:
    problems = [GemmProblem(8, 16, 32), GemmProblem(64, 128, 4096)]
    by_m, by_k = _sound(coverage(problems))
    assert (by_m["x"], by_m["y"]) == ([8, 64], [16, 128])
    assert (by_k["x"], by_k["y"], by_k["xaxis"]) == ([32, 4096], [16, 128], "x2")
    assert by_m["text"] == ["8x16x32", "64x128x4096"]


@pytest.mark.parametrize("power", OBJECTIVES)
@pytest.mark.parametrize("knob", KNOBS.values(), ids=KNOBS)
def test_every_problem_has_one_winner(
    synthetic_table: Sequence[ProblemLabels], power: str, knob
) -> None:
    traces = _sound(winners(synthetic_table, power, knob))
    dots = [trace for trace in traces if trace["type"] == "scatter"]
    told = [text for trace in dots for text in trace["text"]]
    best = [f"{labels.problem}: {winner(labels, power)}" for labels in synthetic_table]
    assert sorted(told) == sorted(best)
    shares: dict[str, float] = {}
    for trace in traces:
        if trace["type"] == "bar":
            for bucket, share in zip(trace["x"], trace["y"], strict=True):
                shares[bucket] = shares.get(bucket, 0) + share
    assert shares == {bucket: pytest.approx(1) for bucket in shares}
    assert len(shares) == 4


def test_speed_is_the_library_over_our_best(synthetic_table: Sequence[ProblemLabels]) -> None:
    table = [replace(synthetic_table[0], reference={"burst": float("nan"), "sustained": 50.0})]
    burst, sustained = _sound(speed_figure(table))
    assert burst["x"] == []
    best = table[0].truth["sustained"].min()
    assert sustained["y"] == [pytest.approx(50.0 / best)]
    ((regime, bucket, count, mean, slower, worst),) = speed_table(table).rows
    assert (regime, bucket, count) == ("sustained", "m 1 to 16", 1)
    assert mean == worst == pytest.approx(50.0 / best)
    assert slower == float(best > 50.0)


def _timed(changes: dict[tuple[str, str], float], card: str = "a") -> Any:
    """Rows of a race at 10 us and of its verification, by (regime, config)."""
    rows = [
        {"m": 8, "n": 16, "k": 32, "batch": 1, "operands": "bf16:rcr", "config": config}
        | {"regime": regime, "stage": stage, "microseconds": time, "device": card}
        for (regime, config), change in changes.items()
        for stage, time in (("race", 10.0), ("verify", 10.0 * np.exp(change)))
    ]
    return pd.DataFrame(rows)


def test_noise_is_told_with_and_without_what_kernels_share() -> None:
    changes = {"a": 0.01, "b": 0.02, "c": 0.05, "torch.mm": 9.0}
    found = repeats(_timed({("burst", name): change for name, change in changes.items()}))
    rows = {row[1]: row for row in noise_table(found).rows}
    assert rows["as timed"][:3] == ("burst", "as timed", 3)
    assert rows["as timed"][3] == pytest.approx(0.02)
    (alone,) = [row for name, row in rows.items() if name != "as timed"]
    assert alone[3] == pytest.approx(0.01)
    absolute, relative = _sound(noise_figure(found))
    assert absolute["x"][-1] == pytest.approx(0.05)
    assert relative["x"][-1] == pytest.approx(0.03)
    assert absolute["y"][-1] == 1


def test_drift_is_told_by_the_card_that_verified() -> None:
    rows = _timed({("burst", "a"): 0.01, ("burst", "b"): 0.03, ("sustained", "a"): -0.02})
    rows.loc[rows["stage"] == "verify", "device"] = "other"
    (box,) = _sound(change_by_card(repeats(rows), rows))
    assert box["name"] == "other"
    assert sorted(box["y"]) == [pytest.approx(-0.02), pytest.approx(0.02)]


def test_a_run_that_lists_no_gpus_is_shown(few_dataset: Dataset) -> None:
    provenance = few_dataset.provenance | {"runs": [{"gpu": "H200", "cuda": "13.0"}]}
    first, *_ = dataset_sections(
        Dataset(few_dataset.rows, provenance), label_table(few_dataset), "robust"
    )
    versions: Any = first.parts[-1]
    assert ("CUDA", "13.0") in versions.rows


def test_regret_has_a_line_for_every_heuristic() -> None:
    rows = [
        {"heuristic": name, "k": k, "geomean": share / k, "p95": 2 * share / k}
        for name, share in (("tilecast", 0.02), ("random", 0.5))
        for k in (1, 2)
    ]
    figure = regret_figure(rows, {"geomean": 0.001, "p95": 0.0})
    ours, tail, random, _ = _sound(figure)
    assert (ours["name"], ours["x"], ours["y"]) == ("tilecast", [1, 2], [0.02, 0.01])
    assert (tail["yaxis"], tail["y"]) == ("y2", [0.04, 0.02])
    assert random["y"] == [0.5, 0.25]
    # A floor of 0 is nowhere on a logarithmic axis.
    assert [shape["y0"] for shape in figure["layout"]["shapes"]] == [0.001]


def test_doubt_is_the_length_of_the_short_list() -> None:
    prediction = Prediction(parse_config("64x16x64_c1x1x1_s2_coop_o1_rm1"), 1.0, 1.0)
    first = FirstChoice(prediction, None, False)
    found = [
        Choices(GemmProblem(m, 64, 64), 9, (prediction,), first, size)
        for m, size in ((1, 1), (16, 4), (2048, 8))
    ]
    dots, bars = _sound(doubt_figure(found))
    assert dots["marker"]["color"] == [1, 4, 8]
    assert dict(zip(bars["x"], bars["y"], strict=True)) == {"m 1 to 16": 2.5, "m from 1025": 8.0}
