"""The learned heuristic: its predictions, their reasons and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.heuristic import rank
from tilecast.heuristics.problem import LINEAR_BF16, GemmOperands, GemmProblem
from tilecast.kernels.cutlass_sm90.space import candidates
from tilecast.models.artifact import save
from tilecast.models.features import FEATURES
from tilecast.models.labels import POWERS
from tilecast.models.learned import LearnedHeuristic, load_heuristic
from tilecast.models.shortlist import MEANS, MOST

H200 = hardware("H200")
PROBLEM = GemmProblem(1000, 5120, 3072)
CONFIGS = candidates(PROBLEM, H200)


@pytest.mark.parametrize("power", POWERS)
def test_predictions_follow_the_ranking(trained, power: str) -> None:
    heuristic = LearnedHeuristic(trained, power)
    ranking = rank(heuristic, PROBLEM, CONFIGS)
    predictions = heuristic.predict(PROBLEM, CONFIGS)
    assert [prediction.config for prediction in predictions] == ranking
    assert heuristic.predict(PROBLEM, CONFIGS, limit=4) == predictions[:4]
    slowdowns = [prediction.slowdown for prediction in predictions]
    assert slowdowns == sorted(slowdowns)
    assert slowdowns[0] == pytest.approx(np.exp(trained.calibration[power][0]))
    times = [prediction.microseconds for prediction in predictions]
    np.testing.assert_allclose(np.array(times) / times[0], np.array(slowdowns) / slowdowns[0])


def test_a_shortlist_is_the_head_of_the_ranking(trained) -> None:
    heuristic = LearnedHeuristic(trained, "burst")
    ranking = heuristic.predict(PROBLEM, CONFIGS, limit=MOST)
    sizes = []
    for mean in MEANS:
        chosen = heuristic.shortlist(PROBLEM, CONFIGS, mean=mean)
        assert chosen == ranking[: len(chosen)] == heuristic.shortlist(PROBLEM, CONFIGS, mean=mean)
        sizes.append(len(chosen))
    assert sizes == sorted(sizes)
    assert sizes[0] >= 1
    assert heuristic.shortlist(PROBLEM, CONFIGS[:1]) == heuristic.predict(PROBLEM, CONFIGS[:1])


def test_predicted_times_are_near_the_measured(trained, synthetic_table) -> None:
    heuristic = LearnedHeuristic(trained, "sustained")
    errors = []
    for labels in synthetic_table:
        (best,) = heuristic.predict(labels.problem, labels.configs, limit=1)
        time = labels.cost("sustained")[labels.configs.index(best.config)]
        errors.append(abs(best.microseconds / time - 1))
    assert np.median(errors) < 0.1


def test_reasons_are_features_by_size(trained) -> None:
    heuristic = LearnedHeuristic(trained)
    best = heuristic.rank(PROBLEM, CONFIGS, limit=1)[0]
    reasons = heuristic.explain(PROBLEM, CONFIGS, best, limit=4)
    assert len({reason.feature for reason in reasons}) == 4
    assert all(reason.meaning == FEATURES[reason.feature] for reason in reasons)
    sizes = [abs(np.log1p(reason.effect)) for reason in reasons]
    assert sizes == sorted(sizes, reverse=True)


def test_all_reasons_together_are_the_predicted_difference(trained) -> None:
    heuristic = LearnedHeuristic(trained)
    order = heuristic.rank(PROBLEM, CONFIGS)
    first, later = (
        sum(np.log1p(r.effect) for r in heuristic.explain(PROBLEM, CONFIGS, config, limit=99))
        for config in (order[0], order[60])
    )
    assert first < later


def test_only_a_candidate_is_explained(trained) -> None:
    stranger = KernelConfig(64, 16, 64, 4, 4)
    with pytest.raises(TilecastError, match="is no candidate for 1000x5120x3072; allowed: one of"):
        LearnedHeuristic(trained).explain(PROBLEM, CONFIGS, stranger)


def test_an_unknown_power_is_refused(trained) -> None:
    with pytest.raises(TilecastError, match="power 'hot' is not known; allowed: burst, sustained"):
        LearnedHeuristic(trained, "hot")


def test_other_operands_are_refused(trained) -> None:
    operands = GemmOperands.from_layout("rrr", "float16", "float32")
    problem = GemmProblem(64, 64, 64, operands=operands)
    message = "no model is for float16 rrr with float32 out; allowed: what is stored like bfloat16"
    heuristic = LearnedHeuristic(trained)
    for ask in (heuristic.rank, heuristic.predict, heuristic.shortlist):
        with pytest.raises(TilecastError, match=message):
            ask(problem, CONFIGS)


def test_a_model_of_ones_own_is_loaded_by_its_folder(trained, tmp_path: Path) -> None:
    save(trained, tmp_path)
    loaded = load_heuristic(H200, LINEAR_BF16, "burst", tmp_path)
    expected = LearnedHeuristic(trained, "burst").predict(PROBLEM, CONFIGS, limit=9)
    assert loaded.predict(PROBLEM, CONFIGS, limit=9) == expected
    with pytest.raises(TilecastError, match="is for H200-bfloat16-rcr; allowed: one for H100-"):
        load_heuristic(hardware("H100"), LINEAR_BF16, folder=tmp_path)


def test_a_gpu_without_a_model_is_refused() -> None:
    with pytest.raises(
        TilecastError, match="no model is shipped for H100-bfloat16-rcr .*; allowed"
    ):
        load_heuristic(hardware("H100"), LINEAR_BF16)
