"""Training gives the same bytes again, whatever runs side by side, and shares what it fits."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tilecast.data_collection.dataset.dataset import Dataset
from tilecast.models.evaluation.evaluation import evaluate
from tilecast.models.learning import fit_ranker as module
from tilecast.models.learning.fit_ranker import fit_ranker
from tilecast.models.learning.folds import FOLDS
from tilecast.models.learning.training import train
from tilecast.models.learning.training_sets import Measurements, by_gpu
from tilecast.models.runtime.artifact import Artifact, save
from tilecast.models.runtime.objectives import OBJECTIVES


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.timeout(600)
def test_the_same_data_and_seed_give_the_same_bytes(
    few_dataset: Dataset, few_trained: Artifact, tmp_path: Path
) -> None:
    """Whatever runs side by side."""
    save(few_trained, tmp_path / "one")
    for name, seed in (("two", 0), ("other", 1)):
        save(train(by_gpu([few_dataset]), seed=seed, jobs=2), tmp_path / name)
    assert _files(tmp_path / "one") == _files(tmp_path / "two")
    assert _files(tmp_path / "one").keys() != _files(tmp_path / "other").keys()


@pytest.mark.timeout(600)
def test_who_scores_with_what_was_trained_on_fits_nothing_again(few_dataset: Dataset) -> None:
    def fits() -> int:
        return module._fitted.cache_info().misses

    def scored(measured: Measurements) -> dict[str, object]:
        fit = partial(fit_ranker, hardware=measured.gpu)
        return evaluate([fit], measured.table, OBJECTIVES, 2)

    measured, again = by_gpu([few_dataset]), by_gpu([few_dataset])
    train(measured, jobs=2)
    before = fits()
    shared = scored(measured)
    assert fits() == before
    assert scored(again) == shared
    assert fits() == before + FOLDS
