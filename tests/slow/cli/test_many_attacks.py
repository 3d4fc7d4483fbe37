"""The bulk of tests/unit/cli/test_attack.py: 500 models, and 180 data sets and stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from attack.bed import (
    attack_file,
    attack_model,
    attack_provenance,
    attack_store,
    collecting,
    few_rows,
    make_store,
)

from tilecast.data_collection.dataset.dataset import Dataset, read_dataset

MODELS, DATASETS, STORES = range(40, 540), range(12, 72), range(20, 80)
"""Seeds of what is changed."""


def test_changed_models_are_refused_or_answer(
    small_model_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = {
        seed: found
        for seed in MODELS
        if (found := attack_model(small_model_folder, tmp_path / str(seed), seed, capfd))
    }
    assert not wrong


def test_data_sets_of_a_changed_provenance_are_refused_or_shown(
    few_dataset: Dataset, tmp_path: Path
) -> None:
    rows = read_dataset(few_rows(few_dataset, tmp_path / "good.parquet")).rows
    wrong = {
        seed: found
        for seed in DATASETS
        if (found := attack_provenance(rows, tmp_path / f"{seed}.parquet", seed))
    }
    assert not wrong


def test_damaged_data_sets_are_refused_or_what_was_written(
    few_dataset: Dataset, tmp_path: Path
) -> None:
    good, path = few_rows(few_dataset, tmp_path / "good.parquet"), tmp_path / "data.parquet"
    wrong = {seed: found for seed in STORES if (found := attack_file(good, path, seed))}
    assert not wrong


def test_damaged_stores_are_refused_or_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = collecting(tmp_path, monkeypatch, capfd)
    make_store(tmp_path / "good.db")
    wrong = {
        seed: found
        for seed in STORES
        if (found := attack_store(tmp_path / "good.db", tmp_path / f"{seed}.db", seed, command))
    }
    assert not wrong
