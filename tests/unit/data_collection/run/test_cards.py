"""The problems by which cards are compared, and what is kept of a comparison."""

from __future__ import annotations

from tilecast.data_collection.dataset.measurement import REFERENCE, Measurement
from tilecast.data_collection.run.cards import CardTimes, card_times, comparison, spread
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.quack_sm90.config import QuackConfig

SMALL = GemmProblem(16, 512, 512)


def test_few_problems_are_spread_over_all_sizes() -> None:
    many = [GemmProblem(m, 512, 512) for m in range(1, 101)]
    assert [p.m for p in spread(many)] == [9, 26, 42, 59, 76, 92]
    assert spread(list(reversed(many))) == spread(many)
    assert spread(many[:2]) == (many[0], many[1])
    assert spread([]) == ()


def test_what_a_card_timed_comes_back_from_the_provenance() -> None:
    config = QuackConfig(64, 64, 64)
    rows = [
        Measurement(SMALL, config, "burst", "verify", 4.5, 0.01, 16),
        Measurement(SMALL, None, "burst", "verify", 5.5, 0.01, 16),
    ]
    run = {"compared": [comparison(SMALL, rows, "one")]}
    assert card_times([{}, run]) == [
        CardTimes("one", SMALL, {("burst", config.name): 4.5, ("burst", REFERENCE): 5.5})
    ]
