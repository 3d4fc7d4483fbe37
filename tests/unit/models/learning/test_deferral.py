"""What is left to the library: learned from what it took, by a margin chosen on other problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.learning.fit_deferral import (
    ALLOWED,
    DOUBT,
    SLOWER,
    BesideLibrary,
    FirstChoices,
    beside_library,
    fit_deferral,
    held_out_choices,
    speed,
)
from tilecast.models.learning.held_out import ask
from tilecast.models.runtime.artifact import load_shipped
from tilecast.models.runtime.deferral import DEFERRAL_FEATURES, MOST_MARGIN, Deferral
from tilecast.models.runtime.objectives import OBJECTIVES

H200 = hardware("H200")


def _planted(parts: int = 3, each: int = 100, noise: float = 0.01) -> list[list[BesideLibrary]]:
    """Problems on which the first feature tells the lead over the library, from -0.2 to 0.2."""
    source = np.random.default_rng(0)
    made = []
    for part in range(parts):
        made.append([])
        for i in range(each):
            features = source.random((4, DEFERRAL_FEATURES), np.float32)
            features[:, 0] = features[0, 0]
            lead = 0.4 * (features[:, 0] - 0.5) + source.normal(0, noise, 4)
            problem = GemmProblem(8, 8 * part + 8, 8 * i + 8)
            made[-1].append(_beside(problem, features, lead))
    return made


def _beside(problem: GemmProblem, features: np.ndarray, lead: np.ndarray) -> BesideLibrary:
    """The same for all objectives."""
    seen, leads = dict.fromkeys(OBJECTIVES, features), dict.fromkeys(OBJECTIVES, lead)
    return BesideLibrary(problem, seen, leads)


def _slower(one: BesideLibrary) -> BesideLibrary:
    return replace(one, leads={name: lead - 1 for name, lead in one.leads.items()})


def _held_out(parts: list[list[BesideLibrary]]) -> FirstChoices:
    return held_out_choices(parts)["robust"]


def _choices(expected: list[float], measured: list[float], part: list[int]) -> FirstChoices:
    problems = tuple(GemmProblem(8, 8, 8 * i + 8) for i in range(len(expected)))
    return FirstChoices(problems, np.array(expected), np.array(measured), np.array(part))


@pytest.fixture(scope="module")
def planted() -> tuple[Deferral, dict[str, FirstChoices]]:
    """What is learned from such problems."""
    learned, found = fit_deferral(_planted())
    assert learned
    return learned, found


def test_what_the_library_takes_is_learned(planted: tuple) -> None:
    learned, found = planted
    choices = found["burst"]
    assert np.abs(choices.expected - choices.measured).mean() < 0.04
    assert 0.8 < (choices.measured >= choices.expected).mean() < 0.97  # nine times in ten
    low, high = (np.full((1, DEFERRAL_FEATURES), value, np.float32) for value in (0.1, 0.9))
    for objective in OBJECTIVES:
        behind, ahead = (float(learned.least_lead(one, objective)[0]) for one in (low, high))
        assert behind == pytest.approx(-0.16, abs=0.03)
        assert 0.05 < ahead < 0.17  # an input unlike all others is doubtful
        assert learned.defers(behind, objective)
        assert not learned.defers(ahead, objective)


def test_leaving_what_is_lost_beats_both_sides_alone(planted: tuple) -> None:
    choices = planted[1]["robust"]
    alone = speed(choices.measured, np.zeros(len(choices.deferred), bool))
    with_library = speed(choices.measured, choices.deferred)
    assert alone["slower"] > 0.3
    assert with_library["slower"] <= 0.02
    assert with_library["geomean"] > 1.03 > alone["geomean"]
    assert with_library["worst"] > SLOWER - 0.02


def test_a_part_decides_nothing_about_itself(planted: tuple) -> None:
    """Neither its own trees nor its own margin see what was measured of it."""
    parts = _planted()
    parts[2] = [_slower(one) for one in parts[2]]
    before, after = planted[1]["robust"], _held_out(parts)
    own = before.part == 2
    np.testing.assert_array_equal(before.expected[own], after.expected[own])
    np.testing.assert_array_equal(before.deferred[own], after.deferred[own])
    assert (before.expected[~own] != after.expected[~own]).any()


def test_other_gpus_teach_the_trees_and_are_not_asked_about() -> None:
    """Nor does what they say of a part's families reach what is expected of it."""
    own, others = _planted(3, 12), _planted()
    others = [[replace(one, elsewhere=True) for one in part] for part in others]
    mixed = [[*one, *other] for one, other in zip(own, others, strict=True)]
    few, taught = _held_out(own), _held_out(mixed)
    assert taught.problems == few.problems
    np.testing.assert_array_equal(taught.measured, few.measured)
    np.testing.assert_array_equal(taught.part, few.part)
    assert np.corrcoef(few.expected, few.measured)[0, 1] < 0.95
    assert np.corrcoef(taught.expected, taught.measured)[0, 1] > 0.97
    mixed[2] = [_slower(one) for one in mixed[2]]
    again = _held_out(mixed)
    np.testing.assert_array_equal(
        again.expected[again.part == 2], taught.expected[taught.part == 2]
    )
    assert held_out_choices([mixed[0], others[1]]) == {}


def test_the_margin_is_the_least_that_keeps_what_is_allowed() -> None:
    count = 2000
    expected = np.linspace(-0.1, 0.3, count).tolist()
    measured = [0.1] * count
    assert _choices(expected, measured, [0] * count).margin == -0.1
    slow = range(1000, 1210, 10)
    for i in slow:
        measured[i] = np.log(SLOWER) - 0.01
    assert round(ALLOWED * count) == len(slow) - 1
    choices = _choices(expected, measured, [0] * count)
    assert expected[1000] < choices.margin == expected[1001]
    taken = np.array(expected) >= choices.margin
    assert taken[slow].tolist() == [False] + [True] * 20


@pytest.mark.parametrize(
    ("count", "margin"), [(4, 0.2), (100, 0.04), (299, DOUBT / np.sqrt(299)), (300, -0.02)]
)
def test_a_margin_of_few_problems_is_larger(count: int, margin: float) -> None:
    """In which none is slower, whatever it is."""
    lead = np.linspace(-0.02, 1, count).tolist()
    assert _choices(lead, lead, [0] * count).margin == pytest.approx(margin)


def test_a_margin_takes_all_that_are_expected_to_be_as_much_ahead_or_none() -> None:
    slow = [0.05] * 9 + [-0.2]
    assert _choices([0.05] * 10 + [0.1] * 10, slow + [0.1] * 10, [0] * 20).margin == 0.1
    assert _choices([0.05] * 20, slow * 2, [0] * 20).margin == MOST_MARGIN


def test_speed_counts_what_is_left_as_the_library() -> None:
    measured, left = np.log([2.0, 0.5, 0.9, 0.98]), np.array([False, True, False, False])
    figures = speed(measured, left)
    assert figures["left"] == 0.25
    assert figures["geomean"] == pytest.approx((2 * 0.9 * 0.98) ** 0.25)
    assert figures["slower"] == 0.25
    assert figures["worst"] == pytest.approx(0.9)


def test_problems_without_a_time_of_the_library_teach_nothing(small_model, synthetic_table) -> None:
    untimed = replace(synthetic_table[0], reference=dict.fromkeys(("burst", "sustained"), np.nan))
    assert beside_library([ask(small_model.ranker, untimed)]) == ()
    assert fit_deferral([(), ()]) == (None, {})
    parts = _planted(2, 20)
    assert fit_deferral([parts[0], []]) == (None, {})
    assert fit_deferral([parts[0], [], parts[1]])[0] is not None


@pytest.mark.parametrize("power", OBJECTIVES)
def test_the_shipped_model_is_seldom_slower_than_the_library(power: str) -> None:
    """Held out: neither trees nor margin had seen the families that are scored."""
    artifact = load_shipped(H200)
    figures = artifact.facts["beside_library"][power]  # type: ignore[index]
    assert figures["slower"] <= 0.02
    assert figures["geomean"] >= 1.04
    assert 0 < figures["left"] < 0.8
    assert artifact.deferral
    # Of what is taken nine in ten are expected to be none of the slower ones.
    assert artifact.deferral.margins[power] > np.log(SLOWER)
