"""`tilecast tune` with a real fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from own_measurements import *  # noqa: F403
from own_measurements import OWN

from tilecast.data_collection.dataset.dataset import Dataset
from tilecast.models.runtime.artifact import load


def test_the_tuned_model_knows_what_was_measured(
    arguments: list[str], answer: Callable[..., dict], tmp_path: Path, few_dataset: Dataset
) -> None:
    document = answer(*arguments)
    assert (document["problems"], document["measured"]) == (2, 2)
    for power in ("burst", "sustained", "robust"):
        shipped, tuned = (document["regret"][name][power] for name in ("shipped", "tuned"))
        assert list(tuned) == ["1", "3", "5"]
        assert tuned["5"] <= tuned["3"] <= tuned["1"]
        assert tuned["1"] < shipped["1"], power
    learned = load(tmp_path / "model").facts["dataset"]
    assert learned["problems"] == len(few_dataset.problems()) + len(OWN)  # type: ignore
