"""The simulation of rules for what Inductor measured: what they pick, what it measures, scores."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import autotuner_errors
import inductor_timing
import numpy as np
import power_rule as simulation
import pytest
import runner
from power_rule import Rule, Said

from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.learning.labels import ProblemLabels
from tilecast.models.runtime.ranker import ConfigRanker

BURST = (100.0, 99.7, 98.0, 110.0, 120.0, 100.5)
SUSTAINED = (110.0, 112.0, 118.0, 121.0, 132.0, 109.0)


@pytest.fixture
def said() -> Said:
    """One problem of 98 us whose third config is fastest in burst; the library is, sustained.

    The model expects what is so: a sustained time of the third that is 10% longer beside its burst.
    """
    times = {"burst": np.log([BURST]), "sustained": np.log([SUSTAINED])}
    cost = np.log([[1.0, 1.01, 1.06, 1.2, 1.3]])
    ratio = times["sustained"] - times["burst"]
    costs = {"burst": 0 * cost, "sustained": cost, "robust": cost}
    return Said((GemmProblem(512, 4096, 4096),), times, costs, ratio, np.log([0.9]))


@pytest.mark.parametrize(
    ("rule", "picked"),
    [
        (Rule(), 2),
        (Rule(tie=0.02), 1),
        (Rule(tie=0.03), 0),
        (Rule(weight=0.25), 2),
        (Rule(weight=0.5), 0),
        (Rule(weight=0.5, power="burst"), 2),
        (Rule(margin=-0.02), 2),
        (Rule(margin=-0.03), 5),
        (Rule(tie=0.05, margin=-0.001), 0),
        (Rule(lead=0.1), 2),
        (Rule(lead=0.25), 5),
        (Rule(tie=0, corrected="sustained"), 5),
        (Rule(tie=0, corrected="sustained", margin=0.02), 0),
        (Rule(tie=0, corrected="robust"), 0),
    ],
)
def test_a_rule_picks_one_of_ours_or_the_library(said: Said, rule: Rule, picked: int) -> None:
    assert rule.picks(said.times["burst"][None], said).tolist() == [[picked]]


def test_regret_is_against_the_best_of_the_list_and_robust_is_the_worse(said: Said) -> None:
    regret = {power: np.expm1(lost[0]) for power, lost in said.regret().items()}
    assert regret["burst"] == pytest.approx(np.array(BURST) / 98 - 1)
    assert regret["sustained"] == pytest.approx(np.array(SUSTAINED) / 109 - 1)
    assert regret["robust"][[0, 2, 5]] == pytest.approx(
        [0, 118 / 109 * 98 / 100 - 1, 100.5 / 100 - 1]
    )


def test_scores_of_a_rule_stand_beside_todays(said: Said) -> None:
    picks, today = np.array([[0], [5]]), np.array([[2], [2]])
    figures = simulation.scored(picks, today, said, np.ones(1, bool))
    found = dict(zip(simulation.COLUMNS, figures, strict=True))
    assert found["burst geomean"] == pytest.approx(100 * ((100 * 100.5) ** 0.5 / 98 - 1), abs=1e-3)
    # 110 us are 0.9% above the library's 109; 118 would be 8%.
    assert found["slower than library"] == 0
    assert found["left to library"] == 50
    gained = np.log(100.5 / 100) / 2 - np.log(118 / 109 * 98 / 100)
    assert found["robust over today"] == pytest.approx(100 * gained, abs=1e-3)
    assert found["not better"] == 0
    slow = simulation.scored(today, today, said, np.ones(1, bool))
    assert slow[simulation.COLUMNS.index("slower than library")] == 100
    assert slow[-2:] == [0, 100]


def test_what_is_measured_depends_on_the_card_where_it_meets_its_power_limit(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "errors", lambda: [np.zeros(1)] * 3)
    burst, sustained = (said.times[regime][0] for regime in simulation.REGIMES)
    cool, hot = (simulation.measured(said, card, "errors") for card in simulation.CARDS)
    assert cool == pytest.approx(np.tile(burst, (autotuner_errors.DRAWS, 1, 1)))
    assert hot == pytest.approx(np.tile(sustained, (autotuner_errors.DRAWS, 1, 1)))
    short = replace(said, times={r: times - np.log(10) for r, times in said.times.items()})
    assert simulation.measured(short, "hot", "errors")[0, 0] == pytest.approx(burst - np.log(10))


def test_errors_are_drawn_again_the_same_way(said: Said) -> None:
    for noise in autotuner_errors.NOISES:
        first, again = (simulation.measured(said, "cool", noise) for _ in range(2))
        assert (first == again).all()
        assert 0.001 < (first - said.times["burst"]).std() < 0.05


def test_errors_as_measured_lie_between_repeats_and_those_drawn_alone() -> None:
    found = autotuner_errors.misled()
    (kept,) = json.loads((runner.RESULTS / "inductor_timing.json").read_text())["figures"].values()
    bands = kept[inductor_timing.OURS]["regret_by_tie_band"]
    lost = {band: 100 * row["geomean"] for band, row in bands.items()}
    assert found["measured"] == pytest.approx(lost, abs=1e-3)
    assert found["repeats"]["0"] < lost["0"] < found["errors"]["0"]
    # Long kernels repeat best.
    assert (np.diff(autotuner_errors.deviations()) < 0).all()


def test_folds_say_what_they_expect_of_problems_that_they_had_not_seen(
    synthetic_table: list[ProblemLabels], h200: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = partial(ConfigRanker, rounds=8, coarse_rounds=2, epochs=2)
    monkeypatch.setattr(simulation, "ConfigRanker", brief)
    asked = [labels for labels in synthetic_table if simulation.listed(labels)]
    said = simulation.ask(synthetic_table, h200, 1)
    assert len(asked) > 5
    assert {labels.problem for labels in asked} == set(said.problems)
    shape = (len(asked), simulation.K)
    by_problem = {labels.problem: labels for labels in asked}
    for i, problem in enumerate(said.problems):
        labels = by_problem[problem]
        for regime, times in said.times.items():
            assert np.exp(times[i, -1]) == pytest.approx(labels.reference[regime])
            assert np.isin(times[i, :-1], np.log(labels.truth[regime])).all()
    for cost in said.cost.values():
        assert cost.shape == shape
        assert (cost[:, 0] == 0).all()
        assert (np.diff(cost) >= 0).all()
    assert said.ratio.shape == (len(asked), simulation.K + 1)


def test_no_rule_is_ahead_of_todays_on_every_card() -> None:
    """Why `settle` is as it is; where this fails, that is to be decided anew."""
    document = json.loads((runner.RESULTS / "power_rule.json").read_text())
    columns, cards = document["settings"]["columns"], document["figures"]["rules"]
    assert document["figures"]["counts"]["both regimes"] == 654
    for group in ("both regimes", "bf16, all"):
        found = [cards[card][noise][group] for card in cards for noise in simulation.NOISES]
        gained = {
            name: min(-rules[name][columns.index("robust over today")] for rules in found)
            for name in simulation.RULES
        }
        assert len(found) == 4
        assert max(gained.values()) < 0.01
        # What a margin for the library gains under load, and what for.
        for rules in found:
            today, margin = (
                dict(zip(columns, rules[name], strict=True)) for name in ("today", "margin -0.015")
            )
            assert margin["slower than library"] < 0.75 * today["slower than library"]
            assert margin["left to library"] > today["left to library"] + 5


def test_families_are_drawn_together() -> None:
    """One gains, and one loses more: only the first drawn twice is a gain, one time in four."""
    families = [(8, 8), (8, 8), (16, 8)]
    assert runner.share_without_gain(families, np.array([-1.0, -1.0, 3.0])) == pytest.approx(
        0.75, abs=0.02
    )
    assert runner.share_without_gain(families, np.full(3, -1.0)) == 0
    assert runner.share_without_gain(families, np.zeros(3)) == 1
