"""Models, data sets and stores that somebody changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from attack.bed import wrong_files, wrong_models, wrong_provenances, wrong_stores
from attack.changes import ODD

from tilecast.data_collection.dataset.dataset import Dataset
from tilecast.heuristics.forms import count, holding, misfit, number, optional, text

MODELS, DATASETS, STORES = range(40), range(12), range(20)
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


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_forms_take_what_they_say_and_nothing_else(value: object) -> None:
    assert (misfit(value, text) is None) == isinstance(value, str)
    assert (misfit({"a": [value]}, {"a": [count]}) is None) == (
        type(value) is int and 0 <= value < 2**53
    )
    found = misfit([{"a": 1, "b": value}], [{"*": number}], "x")
    assert found is None or found == "x[0].b"
    assert optional(text)(value) == (value is None or isinstance(value, str))
    assert not holding({"z": text})(value)
