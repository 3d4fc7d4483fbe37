"""The simulation of guided collection: what is timed, what is lost, how long it takes."""

from __future__ import annotations

import guided
import numpy as np
import pandas as pd
import pytest

from tilecast.models.learning.labels import ProblemLabels


def test_a_replay_takes_its_kernel_or_as_long_as_it_aims_at_and_its_gap() -> None:
    rows = pd.DataFrame(
        {
            "microseconds": [10.0, 1000.0, 10.0, np.nan],
            "rounds": [2, 2, 3, np.nan],
            "regime": ["sustained", "sustained", "burst", "burst"],
        }
    )
    expected = [0.0004, 0.002, 3 * (0.0002 + guided.GAP_SECONDS), 0.0]
    assert guided.replay_seconds(rows) == pytest.approx(expected)


def test_a_race_is_as_long_as_its_finalists_are_many() -> None:
    looks = np.array([10.0, 11.0, 20.0, 11.4, 30.0])
    one = guided.Timings(looks, np.full(5, 0.01), 0.6)
    assert one.finalists(np.arange(5)) == 3
    assert one.replays(np.arange(5)) == pytest.approx(0.65)
    # Without the best, 20 is no finalist either, and one of the other two is not there.
    assert one.replays(np.array([1, 2])) == pytest.approx(0.02 + 0.2)


def test_what_is_lost_is_against_the_best_of_all(synthetic_table: list[ProblemLabels]) -> None:
    labels = synthetic_table[0]
    order = np.argsort(labels.truth["burst"])
    kept = np.sort(order[1:])
    part = guided.masked(labels, kept)
    assert [*part.candidates] == [*part.configs] == [labels.configs[i] for i in kept]
    assert part.label["burst"].tolist() == labels.label["burst"][kept].tolist()
    times = labels.truth["burst"][order]
    assert guided.lost([labels], [kept])["burst"]["max"] == round(times[1] / times[0] - 1, 5)
    assert guided.lost([labels], [np.arange(len(order))])["sustained"]["max"] == 0
