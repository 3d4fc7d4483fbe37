"""The shipped data set gives the labels that the shipped models were trained on."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from tilecast.data_collection.dataset.dataset import Dataset, joined, read_dataset, shipped_data
from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.heuristics.hardware import Hardware
from tilecast.models.learning.labels import label_table

LABELS = "5d7e1c159830397c82d70521b79425e9d586dc789aa3a6552a0521b9dcaf4dd4"
"""SHA-256 of the labels when the data set was collected: problems, configs, times."""


@pytest.fixture(scope="module")
def shipped(h200: Hardware) -> Dataset:
    path = shipped_data(h200)
    assert path is not None
    return read_dataset(path)


def test_labels_are_bit_for_bit_what_models_were_trained_on(shipped: Dataset) -> None:
    digest, table = hashlib.sha256(), label_table(shipped)
    for labels in table:
        digest.update(f"{labels.problem} {[config.name for config in labels.configs]}".encode())
        for regime in REGIMES:
            for times in (labels.label[regime], labels.truth[regime]):
                assert times.dtype == np.float64
                digest.update(times.tobytes())
    assert len(table) == 7345
    assert digest.hexdigest() == LABELS


def test_a_data_set_of_several_protocols_stays_whole(shipped: Dataset) -> None:
    assert joined([shipped]).digest == shipped.digest
    elsewhere = replace(shipped, rows=shipped.rows.iloc[:1].assign(m=12345, n=8, k=8))
    assert len(joined([shipped, elsewhere]).rows) == len(shipped.rows) + 1
