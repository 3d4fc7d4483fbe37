"""The shipped data set gives the labels that the shipped models were trained on."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from tilecast.data_collection.dataset.columns import Columns
from tilecast.data_collection.dataset.dataset import (
    Dataset,
    joined,
    read_columns,
    shipped_data,
)
from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.data_collection.dataset.select_times import measured_times
from tilecast.heuristics.hardware import Hardware
from tilecast.models.learning.labels import ProblemLabels, label_table

LABELS = "bbba216e882910213a66b6d7601ee09932a836221a6249ebb9c70245bba9a4d6"
"""SHA-256 of the labels when the data set was collected: problems, configs, times."""


@pytest.fixture(scope="module")
def shipped(h200: Hardware) -> tuple[Columns, dict]:
    path = shipped_data(h200)
    assert path is not None
    return read_columns(path)


@pytest.fixture(scope="module")
def table(shipped: tuple[Columns, dict]) -> list[ProblemLabels]:
    return label_table(Dataset(shipped[0].frame(), {}))


def test_labels_are_bit_for_bit_what_models_were_trained_on(table: list[ProblemLabels]) -> None:
    digest = hashlib.sha256()
    for labels in table:
        digest.update(f"{labels.problem} {[config.name for config in labels.configs]}".encode())
        for regime in REGIMES:
            for times in (labels.label[regime], labels.truth[regime]):
                assert times.dtype == np.float64
                digest.update(times.tobytes())
    assert len(table) == 3665
    assert digest.hexdigest() == LABELS


def test_what_is_shown_is_what_is_scored_by(
    shipped: tuple[Columns, dict], table: list[ProblemLabels]
) -> None:
    for labels in table[::60]:
        by_regime = measured_times(shipped[0], labels.problem)
        assert set(by_regime) == set(REGIMES)
        for regime, found in by_regime.items():
            times = labels.truth[regime]
            assert found.best == labels.configs[int(np.argmin(times))].name
            assert list(found.times.values()) == times.tolist()
            assert found.reference == labels.reference[regime] > 0


def test_a_data_set_of_several_protocols_stays_whole(shipped: tuple[Columns, dict]) -> None:
    dataset = Dataset(shipped[0].frame(), shipped[1])
    assert joined([dataset]).digest == dataset.digest
    elsewhere = replace(dataset, rows=dataset.rows.iloc[:1].assign(m=12345, n=8, k=8))
    assert len(joined([dataset, elsewhere]).rows) == len(dataset.rows) + 1
