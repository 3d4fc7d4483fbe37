"""Which of many measurements of a config counts, and how gaps are filled."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tilecast.data_collection.dataset.dataset import COLUMNS, Dataset
from tilecast.heuristics.errors import TilecastError
from tilecast.models.learning.labels import ProblemLabels, label_table
from tilecast.models.runtime.objectives import check_objective

A, B, C = (f"128x{n}x64_c1x1x1_s3_coop_o1_rm8" for n in (64, 128, 256))


def _label(*measurements: tuple) -> ProblemLabels:
    (labels,) = label_table(_dataset(*measurements))
    return labels


def _dataset(*measurements: tuple) -> Dataset:
    """Rows of one problem; each is (config, regime, stage, microseconds or a failure)."""
    rows = [
        {
            **{"m": 512, "n": 4096, "k": 4096, "batch": 1, "operands": "bf16:rcr"},
            **{
                "config": config,
                "regime": regime,
                "stage": stage,
                "spread": 0.0,
                "rounds": 3,
                "device": "x",
            },
            "microseconds": time if isinstance(time, int | float) else None,
            "failure": None if isinstance(time, int | float) else time,
        }
        for config, regime, stage, time in measurements
    ]
    return Dataset(pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS), {})


RUN = "sustained"


@pytest.mark.parametrize(
    ("measurements", "label"),
    [
        # Screens are brought to the level of the race.
        ([(A, RUN, "screen", 10), (A, RUN, "race", 20), (B, RUN, "screen", 15)], {RUN: [20, 30]}),
        # The other regime fills gaps by the median ratio; without a common config as it is.
        (
            [(A, RUN, "race", 20), (A, "burst", "race", 16), (B, RUN, "race", 30)],
            {"burst": [16, 24], RUN: [20, 30]},
        ),
        (
            [(A, RUN, "screen", 10), (B, "burst", "race", 12)],
            {"burst": [10, 12], RUN: [10, 12]},
        ),
        # Repeated measurements count by their median.
        ([(A, "burst", "race", time) for time in (1, 2, 9)], {"burst": [2]}),
        ([(A, "burst", "race", time) for time in (9, 1, 4, 2)], {"burst": [3]}),
    ],
)
def test_times_to_learn_from(measurements: list[tuple], label: dict[str, list[float]]) -> None:
    labels = _label(*measurements)
    assert {regime: labels.label[regime].tolist() for regime in label} == label


def test_race_is_learned_from_and_verify_is_scored_by() -> None:
    timed = [("screen", 10), ("race", 20), ("verify", 21)]
    a = [(A, RUN, stage, time) for stage, time in timed]
    labels = _label(*a, (B, RUN, "screen", 11), (B, RUN, "race", 22))
    assert [config.name for config in labels.configs] == [A, B]
    assert labels.label[RUN].tolist() == [20, 22]
    # The verify pass ran 5% slower than the race; what it did not see is brought to its level.
    np.testing.assert_allclose(labels.truth[RUN], [21, 22 * 21 / 20])


def test_an_unraced_regime_takes_the_order_of_the_raced_one() -> None:
    """As with memory-bound problems: screened in one regime, raced in the other."""
    labels = _label(
        (A, "sustained", "screen", 11),
        (B, "sustained", "screen", 10),
        (C, "sustained", "screen", 40),
        (A, "burst", "race", 10),
        (B, "burst", "race", 11),
    )
    for regime in ("burst", "sustained"):
        assert np.argsort(labels.label[regime]).tolist() == [0, 1, 2]


def test_a_config_that_failed_once_is_left_out() -> None:
    labels = _label(
        (A, "sustained", "screen", 10),
        (A, "burst", "race", "hung"),
        (B, "sustained", "screen", 11),
        ("torch.mm", "sustained", "screen", 1),
    )
    assert [config.name for config in labels.configs] == [B]


def test_a_config_that_was_only_verified_is_left_out() -> None:
    """Its time is for scoring: to learn from it would be to see the answer."""
    labels = _label(
        (A, "sustained", "race", 20),
        (A, "sustained", "verify", 21),
        (B, "sustained", "verify", 19),
    )
    assert [config.name for config in labels.configs] == [A]
    assert labels.truth["sustained"].tolist() == [21]
    with pytest.raises(TilecastError, match="no config with a time to learn from"):
        label_table(_dataset((A, "burst", "verify", 10), (B, "burst", "verify", 11)))


def test_the_reference_is_brought_to_the_level_of_the_truth_and_sets_none() -> None:
    labels = _label(
        (A, "sustained", "screen", 10),
        (A, "sustained", "race", 20),
        (B, "sustained", "screen", 15),
        ("torch.mm", "sustained", "screen", 8),
    )
    assert labels.reference == {"sustained": 16, "burst": 16}
    faster = _label(
        (A, "sustained", "screen", 10),
        ("torch.mm", "sustained", "screen", 8),
        ("torch.mm", "sustained", "race", 80),
    )
    assert faster.label["sustained"].tolist() == [10]
    assert faster.reference["sustained"] == 80


def test_one_config_is_the_best_of_its_problem() -> None:
    labels = _label((A, "burst", "race", 10))
    assert labels.slowdown("robust", truth=True).tolist() == [1]
    assert labels.noise_floor("robust") == 0


def test_robust_cost_is_the_worse_slowdown() -> None:
    labels = _label(
        *((A, regime, "race", time) for regime, time in (("burst", 10), ("sustained", 30))),
        *((B, regime, "race", time) for regime, time in (("burst", 12), ("sustained", 20))),
        *((C, regime, "race", time) for regime, time in (("burst", 11), ("sustained", 22))),
    )
    np.testing.assert_allclose(labels.cost("robust"), [1.5, 1.2, 1.1])
    np.testing.assert_allclose(labels.slowdown("robust"), [1.5 / 1.1, 1.2 / 1.1, 1])
    np.testing.assert_allclose(labels.slowdown("burst"), [1, 1.2, 1.1])


def test_noise_floor_is_the_regret_of_the_best_label() -> None:
    labels = _label(
        *((A, "burst", stage, time) for stage, time in (("race", 10), ("verify", 11))),
        *((B, "burst", stage, time) for stage, time in (("race", 10.5), ("verify", 10.5))),
    )
    assert labels.noise_floor("burst") == pytest.approx(11 / 10.5 - 1)


def test_a_data_set_of_failures_is_refused() -> None:
    with pytest.raises(
        TilecastError, match="no config with a time to learn from; allowed: .*collect"
    ):
        label_table(_dataset((A, "burst", "race", "hung")))


def test_an_unknown_power_is_refused() -> None:
    with pytest.raises(TilecastError, match="power 'idle' is not known; allowed: burst, sustained"):
        check_objective("idle")


def test_candidates_are_the_configs_in_one_table(synthetic_table: list[ProblemLabels]) -> None:
    for labels in synthetic_table:
        assert tuple(labels.candidates) == labels.configs
        assert labels.candidates.table is synthetic_table[0].candidates.table


def test_problems_are_in_order_whatever_the_order_of_rows(synthetic_dataset: Dataset) -> None:
    shuffled = Dataset(synthetic_dataset.rows.sample(frac=1, random_state=0), {})
    table, again = label_table(synthetic_dataset), label_table(shuffled)
    assert [labels.problem for labels in table] == [labels.problem for labels in again]
    assert len(table) == len(synthetic_dataset.problems())
    for labels, other in zip(table, again, strict=True):
        assert labels.configs == other.configs
        np.testing.assert_allclose(labels.cost("robust"), other.cost("robust"))
