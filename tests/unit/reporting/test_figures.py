"""The figures of reports: which numbers they hold, and that plotly takes them as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from tilecast.data_collection.dataset.dataset import Dataset, is_reference
from tilecast.data_collection.dataset.select_times import MeasuredTimes
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.families import parse_config
from tilecast.models.learning.labels import ProblemLabels, label_table
from tilecast.models.runtime.artifact import Artifact
from tilecast.models.runtime.learned import FirstChoice, LearnedHeuristic, Prediction
from tilecast.models.runtime.objectives import OBJECTIVES
from tilecast.reporting import one_problem
from tilecast.reporting.cards import State, states, states_figure
from tilecast.reporting.choices import Choices, choices
from tilecast.reporting.noise import change_by_card, noise_figure, noise_table, repeats
from tilecast.reporting.plots import Figure, extent_axis, stretch
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


def test_axes_reach_over_all_extents() -> None:
    shown = extent_axis("m", [3, 5000])
    assert shown["tickvals"] == [1, 4, 16, 64, 256, 1024, 4096, 16384]
    assert shown["ticktext"][-3:] == ["1k", "4k", "16k"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_panels_fill_the_width_and_do_not_overlap(count: int) -> None:
    panels = [stretch(place, count) for place in range(count)]
    assert panels[0][0] == 0
    assert panels[-1][1] == pytest.approx(1, abs=1e-3)
    assert all(left[1] < right[0] for left, right in zip(panels, panels[1:], strict=False))


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


def test_winners_are_by_the_truth(synthetic_table: Sequence[ProblemLabels]) -> None:
    labels = synthetic_table[0]
    slowest = int(labels.truth["burst"].argmax())
    times = {regime: found.copy() for regime, found in labels.truth.items()}
    times["burst"][slowest] = 1e-3
    assert winner(replace(labels, truth=times), "burst") == labels.configs[slowest]
    assert winner(labels, "burst") != labels.configs[slowest]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("64x16x64_c1x1x1_s2_coop_o1_rm1", ("up to 1k", "1", "cooperative")),
        ("128x192x64_c1x1x3_s4_pong_o1_rm8", ("up to 32k", "3 to 4", "ping-pong")),
        ("128x256x64_c1x1x2_s4_pong_o1_rm8", ("up to 32k", "2", "ping-pong")),
    ],
)
def test_levels_of_a_config(name: str, shown: tuple[str, ...]) -> None:
    from tilecast.kernels.families import family_of

    config = parse_config(name)
    shape = family_of(config).geometry([config])
    assert tuple(knob(shape)[1] for knob in KNOBS.values()) == shown


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


def test_nothing_is_said_of_noise_that_was_not_measured() -> None:
    rows = _timed({("burst", "a"): 0.0})
    assert repeats(rows[rows["stage"] == "race"]).empty


def test_drift_is_told_by_the_card_that_verified() -> None:
    rows = _timed({("burst", "a"): 0.01, ("burst", "b"): 0.03, ("sustained", "a"): -0.02})
    rows.loc[rows["stage"] == "verify", "device"] = "other"
    (box,) = _sound(change_by_card(repeats(rows), rows))
    assert box["name"] == "other"
    assert sorted(box["y"]) == [pytest.approx(-0.02), pytest.approx(0.02)]


def test_drift_is_told_of_each_card_that_verified_a_problem() -> None:
    """And of a kernel that was timed twice, the median, as labels have it."""
    rows = _timed({("burst", "a"): 0.01, ("burst", "b"): 0.03})
    later = rows[rows["stage"] == "verify"].assign(
        device="other", microseconds=10.0 * np.exp([0.05, 0.09])
    )
    both = pd.concat([rows, later], ignore_index=True)
    boxes = {box["name"]: box["y"] for box in _sound(change_by_card(repeats(both), both))}
    assert boxes == {"a": [pytest.approx(0.02)], "other": [pytest.approx(0.07)]}


def test_what_was_timed_again_counts_by_its_median() -> None:
    rows = _timed({("burst", "a"): 0.01})
    again = [rows[rows["stage"] == "verify"].assign(microseconds=10.0 * x) for x in (3.0, 1.02)]
    found = repeats(pd.concat([rows, *again], ignore_index=True))
    assert found["change"].tolist() == [pytest.approx(np.log(1.02))]


def test_a_run_that_lists_no_gpus_is_shown(few_dataset: Dataset) -> None:
    provenance = few_dataset.provenance | {"runs": [{"gpu": "H200", "cuda": "13.0"}]}
    first, *_ = dataset_sections(
        Dataset(few_dataset.rows, provenance), label_table(few_dataset), "robust"
    )
    versions: Any = first.parts[-1]
    assert ("CUDA", "13.0") in versions.rows


def test_states_of_cards_are_those_that_runs_tell() -> None:
    gpu = {"uuid_hash": "a", "clocks.sm": "345", "power.draw": "[N/A]", "temperature.gpu": "37"}
    hot = gpu | {"clocks.sm": "1980", "power.draw": "700.0"}
    date = "2026-11-21T21:00:00+00:00"
    runs = [
        {"date": date, "gpus": [gpu], "end": {"gpus": [hot], "seconds": 60}},
        {"gpus": [gpu]},
        {"date": "yesterday", "gpus": [gpu]},
        {"date": date, "gpus": [{"name": "NVIDIA H200"}]},
    ]
    first, last = states(runs)
    assert first.values == {"clocks.sm": 345, "temperature.gpu": 37}
    assert (last.date - first.date).total_seconds() == 60
    clock, power, temperature = _sound(states_figure([last, first]))
    assert clock["y"] == [345, 1980]
    assert power["y"] == [700]
    assert (temperature["yaxis"], temperature["x"]) == ("y3", [date, "2026-11-21T21:01:00+00:00"])


def test_states_are_many_cards() -> None:
    date = states([{"date": "2026-11-21T21:00:00+00:00", "gpus": [{"uuid_hash": "a"}]}])[0].date
    traces = _sound(states_figure([State(str(card), date, {}) for card in range(20)]))
    assert len({trace["name"] for trace in traces}) == 20


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


def test_choices_are_the_models(small_model: Artifact) -> None:
    from tilecast.kernels.candidates import candidates

    heuristic = LearnedHeuristic(small_model)
    problem = GemmProblem(64, 4096, 4096)
    (one,) = choices(heuristic, [problem], small_model.hardware)
    among = candidates(problem, small_model.hardware)
    assert one.candidates == len(among)
    assert one.first == heuristic.first(problem, among)
    assert one.shortlist == len(heuristic.shortlist(problem, among))
    (three,) = choices(heuristic, [problem], small_model.hardware, 3)
    assert list(three.chosen) == heuristic.predict(problem, among, limit=3)
    assert one.chosen == three.chosen[:1]
    (auto,) = choices(heuristic, [problem], small_model.hardware, "auto")
    assert list(auto.chosen) == heuristic.shortlist(problem, among)


DOCUMENT = {
    "roofline": {"microseconds": 2.0, "bound": "memory"},
    "library": {"name": "torch.mm", "at_least_microseconds": None},
    "ranking": [
        {"rank": rank, "config": name, "predicted_microseconds": time, "measured": measured}
        for rank, name, time, measured in (
            (1, "a", 3.0, {"burst": {"microseconds": 3.5}}),
            (2, "b", 4.0, {"burst": {"microseconds": None}}),
        )
    ],
    "measured": {"burst": {"reference_microseconds": 5.0}},
    "reasons": [{"feature": "f", "meaning": "what", "value": 1.0, "effect": -0.1}],
}


def test_ranking_has_expected_and_measured_times() -> None:
    expected, measured, roofline, library = _sound(one_problem.ranking_figure(DOCUMENT))
    assert expected["x"] == [3.0, 4.0]
    assert measured["x"] == [3.5, None]
    assert (roofline["name"], roofline["x"]) == ("roofline", [2.0, 2.0])
    assert (library["name"], library["x"]) == ("torch.mm, burst", [5.0, 5.0])


def test_what_the_library_takes_at_least_is_called_that() -> None:
    known = DOCUMENT | {"library": {"name": "torch.mm", "at_least_microseconds": 2.5}}
    *_, least, _ = _sound(one_problem.ranking_figure(known))
    assert (least["name"], least["x"]) == (
        "torch.mm, at least, in nine cases of ten",
        [2.5, 2.5],
    )


def test_reasons_have_their_effects() -> None:
    (bars,) = _sound(one_problem.reasons_figure(DOCUMENT))
    assert (bars["x"], bars["y"], bars["text"]) == ([-0.1], ["f"], ["what"])


def test_measured_configs_stand_fastest_first() -> None:
    truth = MeasuredTimes({"b": 2.0, "a": 1.0, "c": 3.0}, "a", 2.5)
    figure = one_problem.all_measured(truth, "burst", ["c", "unknown", "a"], "torch.mm")
    line, ranked = _sound(figure)
    assert (line["text"], line["y"]) == (["a", "b", "c"], [1.0, 2.0, 3.0])
    assert (ranked["x"], ranked["text"]) == ([3, 1], ["1", "3"])
    assert [shape["y0"] for shape in figure["layout"]["shapes"]] == [2.5]


def test_noise_of_the_data_set_is_of_our_kernels(synthetic_dataset: Dataset) -> None:
    rows: Any = synthetic_dataset.rows
    ours = rows[~is_reference(rows)]
    keys = ["m", "n", "k", "config", "regime"]
    timed = ours[ours["microseconds"].notna()]
    raced, verified = (
        set(timed[timed["stage"] == stage][keys].itertuples(index=False))
        for stage in ("race", "verify")
    )
    assert len(repeats(rows)) == len(raced & verified) > 100
