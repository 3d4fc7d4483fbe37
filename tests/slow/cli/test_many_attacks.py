"""The bulk of tests/unit/cli/test_attack.py: 500 models, and 180 data sets and stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from attack.bed import wrong_files, wrong_models, wrong_provenances, wrong_stores

from tilecast.data_collection.dataset.dataset import Dataset

MODELS, DATASETS, STORES = range(40, 540), range(12, 72), range(20, 80)
"""Seeds of what is changed."""


def test_changed_models_are_refused_or_answer(
    small_model_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not wrong_models(small_model_folder, tmp_path, MODELS, capfd)


def test_data_sets_of_a_changed_provenance_are_refused_or_shown(
    few_dataset: Dataset, tmp_path: Path
) -> None:
    assert not wrong_provenances(few_dataset, tmp_path, DATASETS)


def test_damaged_data_sets_are_refused_or_what_was_written(
    few_dataset: Dataset, tmp_path: Path
) -> None:
    assert not wrong_files(few_dataset, tmp_path, STORES)


def test_damaged_stores_are_refused_or_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not wrong_stores(tmp_path, STORES, monkeypatch, capfd)
