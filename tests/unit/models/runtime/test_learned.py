"""The learned heuristic: its predictions, their reasons and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.heuristic import rank
from tilecast.heuristics.operands import LINEAR_BF16, ROW_GROUPS, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates, families_in
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.models.features.features import FEATURES, featurize
from tilecast.models.runtime.artifact import Artifact, save
from tilecast.models.runtime.known_operands import decides_for, ranks_for
from tilecast.models.runtime.learned import RIVALS, LearnedHeuristic, load_heuristic
from tilecast.models.runtime.objectives import OBJECTIVES
from tilecast.models.runtime.stopping import MAX_TAKEN

H200 = hardware("H200")
PROBLEM = GemmProblem(1000, 5120, 3072)
CONFIGS = candidates(PROBLEM, H200)


@pytest.mark.parametrize("power", OBJECTIVES)
def test_predictions_follow_the_ranking(small_model, power: str) -> None:
    heuristic = LearnedHeuristic(small_model, power)
    ranking = list(rank(heuristic, PROBLEM, CONFIGS))
    predictions = heuristic.predict(PROBLEM, CONFIGS)
    assert [prediction.config for prediction in predictions] == ranking
    assert heuristic.predict(PROBLEM, CONFIGS, limit=4) == predictions[:4]
    slowdowns = [prediction.slowdown for prediction in predictions]
    assert slowdowns == sorted(slowdowns)
    assert slowdowns[0] == pytest.approx(np.exp(small_model.calibration[power][0]))
    times = [prediction.microseconds for prediction in predictions]
    np.testing.assert_allclose(np.array(times) / times[0], np.array(slowdowns) / slowdowns[0])


def test_a_shortlist_is_the_head_of_the_ranking(small_model) -> None:
    heuristic = LearnedHeuristic(small_model, "burst")
    ranking = heuristic.predict(PROBLEM, CONFIGS, limit=MAX_TAKEN)
    chosen = heuristic.shortlist(PROBLEM, CONFIGS)
    assert 1 <= len(chosen) <= MAX_TAKEN
    assert chosen == ranking[: len(chosen)]
    assert heuristic.shortlist(PROBLEM, CONFIGS[:1]) == heuristic.predict(PROBLEM, CONFIGS[:1])


def test_configs_of_families_without_times_are_never_chosen(small_model) -> None:
    """And nothing changes for those that the model knows; one that knows both ranks both."""
    problem = GemmProblem(196, 2064, 26464)
    every = candidates(problem, H200)
    heuristic = LearnedHeuristic(small_model)
    known = heuristic.candidates(problem)
    assert families_in(every.table) > families_in(known.table) == {"quack_sm90"}
    ranking = list(heuristic.rank(problem, known))
    assert list(rank(heuristic, problem, every)) == ranking
    assert list(rank(heuristic, problem, every, limit=3)) == ranking[:3]
    assert heuristic.predict(problem, every) == heuristic.predict(problem, known)
    assert heuristic.first(problem, every) == heuristic.first(problem, known)
    assert heuristic.shortlist(problem, every) == heuristic.shortlist(problem, known)
    best = ranking[0]
    assert heuristic.explain(problem, every, best) == heuristic.explain(problem, known, best)
    (other, *_) = [config for config in every if config not in known]
    with pytest.raises(TilecastError, match=f"config {other} is no candidate for {problem}"):
        heuristic.explain(problem, every, other)
    with pytest.raises(TilecastError, match="no config suits"):
        heuristic.first(problem, every.select([other]))
    both = LearnedHeuristic(replace(small_model, families=families_in(every.table)))
    assert both.candidates(problem) is every
    assert set(both.rank(problem, every)) == set(every)


@pytest.mark.parametrize("limit", [None, 3])
def test_kernels_that_failed_are_never_chosen(small_model, limit: int | None) -> None:
    whole = list(LearnedHeuristic(small_model).rank(PROBLEM, CONFIGS))
    bad = frozenset(whole[:2] + whole[3:4])
    failing = {LINEAR_BF16: bad, GemmOperands.parse("fp16:rcr"): frozenset(whole)}
    heuristic = LearnedHeuristic(replace(small_model, failing=failing))
    left = [config for config in whole if config not in bad]
    assert list(rank(heuristic, PROBLEM, CONFIGS, limit=limit)) == left[:limit]
    found = [one.config for one in heuristic.predict(PROBLEM, CONFIGS, limit=limit)]
    assert found == left[:limit]
    assert heuristic.first(PROBLEM, CONFIGS).prediction.config == left[0]
    assert not bad & {one.config for one in heuristic.shortlist(PROBLEM, CONFIGS)}
    other = GemmProblem(1000, 5120, 3072, operands=GemmOperands.parse("fp16:rcr"))
    with pytest.raises(TilecastError, match="all .* configs that suit 1000x5120x3072 failed"):
        heuristic.first(other, candidates(other, H200).select(whole))


@pytest.mark.parametrize("failed_as", ["bf16:rcr", "bf16:rcr:bias+gelu"])
@pytest.mark.parametrize(
    ("asked", "alike"),
    {
        "bf16:rcr": True, "bf16:rcr@4xfp32": True, "bf16:rcr:bias": True, "bf16:rcr:c": True,
        "bf16:rcr:silu-mul": True, "bf16:rcr:row-groups": True, "bf16:rcc": True,
        "bf16:rcr>fp16": True, "bf16:rrr": False, "bf16:crr": False, "fp16:rcr": False,
        "bf16xint8:rcr:column-scales": False,
    }.items(),
)  # fmt: skip
def test_a_kernel_that_failed_is_chosen_for_no_operands_with_such_inputs(
    small_model: Artifact, failed_as: str, asked: str, alike: bool
) -> None:
    operands = GemmOperands.parse(asked)
    # Each model ranks for all of these here, as what it has learned does not matter.
    model = replace(small_model, operands=(operands,))
    problem = GemmProblem(1000, 5120, 3072, 4 if operands.groups else 1, operands)
    every = candidates(problem, H200)
    best, second, *_ = LearnedHeuristic(model).rank(problem, every)
    failing = {GemmOperands.parse(failed_as): frozenset([best])}
    heuristic = LearnedHeuristic(replace(model, failing=failing))
    assert heuristic.rank(problem, every)[0] == (second if alike else best)
    assert heuristic.first(problem, every).prediction.config == (second if alike else best)


def test_predicted_times_are_near_the_measured(small_model, synthetic_table) -> None:
    heuristic = LearnedHeuristic(small_model, "sustained")
    errors = []
    for labels in synthetic_table:
        (best,) = heuristic.predict(labels.problem, labels.candidates, limit=1)
        time = labels.cost("sustained")[labels.configs.index(best.config)]
        errors.append(abs(best.microseconds / time - 1))
    assert np.median(errors) < 0.1


@pytest.mark.parametrize("power", ["burst", "sustained", "robust"])
def test_the_first_choice_stands_beside_the_library(small_model, power: str) -> None:
    heuristic = LearnedHeuristic(small_model, power)
    choice = heuristic.first(PROBLEM, CONFIGS)
    (best,) = heuristic.predict(PROBLEM, CONFIGS, limit=1)
    assert choice.prediction == best
    assert choice.library_over
    assert 0.8 < choice.library_over < 1.02  # as fast as the best of a sweep, or somewhat faster
    margin = small_model.deferral.margins[power]
    assert choice.deferred == (np.log(choice.library_over) < margin)


@pytest.mark.parametrize("margin", [0.0, 10.0])
def test_a_margin_decides_what_is_left_to_the_library(small_model, margin: float) -> None:
    deferral = replace(small_model.deferral, margins=dict.fromkeys(OBJECTIVES, margin))
    heuristic = LearnedHeuristic(replace(small_model, deferral=deferral))
    choice = heuristic.first(PROBLEM, CONFIGS)
    assert choice.library_over
    assert choice.deferred == (margin == 10 or choice.library_over < 1)


def test_a_k_that_fills_no_stage_is_left_to_the_library(small_model) -> None:
    never = replace(small_model.deferral, margins=dict.fromkeys(OBJECTIVES, -10.0))
    heuristic = LearnedHeuristic(replace(small_model, deferral=never))
    for k, deferred in ((16, True), (56, True), (64, False)):
        problem = GemmProblem(663552, 16, k)
        assert heuristic.first(problem, candidates(problem, H200)).deferred == deferred


def test_so_is_a_mean_k_of_groups(small_model) -> None:
    operands = GemmOperands.parse("bf16:crr:k-groups")
    never = replace(small_model.deferral, margins=dict.fromkeys(OBJECTIVES, -10.0))
    heuristic = LearnedHeuristic(
        replace(small_model, operands=(operands,), measured=(operands,), deferral=never)
    )
    for k, deferred in ((32 * 63, True), (32 * 64, False)):
        problem = GemmProblem(1024, 1536, k, 32, operands)
        assert heuristic.first(problem, candidates(problem, H200)).deferred == deferred


def test_what_the_library_does_not_multiply_is_not_left_to_it(leaving_model: Path) -> None:
    operands = GemmOperands.parse("e4m3:rcr>bf16:tensor-scales")
    heuristic = load_heuristic(H200, operands, folder=leaving_model)
    for batch in (1, 4):
        problem = GemmProblem(128, 4096, 4096, batch, operands)
        choice = heuristic.first(problem, candidates(problem, H200))
        alone = batch == 1
        assert (choice.deferred, choice.library_over is not None) == (alone, alone)


def test_groups_are_ranked_and_compared_with_no_library_that_was_timed_on_batches(
    leaving_model: Path, model_of: Callable[..., Path]
) -> None:
    operands = GemmOperands.parse("bf16:rcr:row-groups")
    problem = GemmProblem(512, 2048, 1024, 8, operands)
    configs = candidates(problem, H200)
    assert ranks_for([LINEAR_BF16], operands) and not decides_for([LINEAR_BF16], operands)
    assert decides_for([operands], operands)
    known = model_of("bf16:rcr bf16:rcr:row-groups", leaves=True)
    for folder, compared in ((leaving_model, False), (known, True)):
        choice = load_heuristic(H200, operands, folder=folder).first(problem, configs)
        assert choice.prediction.config in configs
        assert (choice.deferred, choice.library_over is not None) == (compared, compared)


def test_groups_in_fp8_are_ranked_by_the_model_of_groups_which_knows_no_library_for_them() -> None:
    operands = GemmOperands.parse("e4m3:rcr>bf16@fp32:row-groups+row-scales")
    problem = GemmProblem(1024, 2048, 1536, 64, operands)
    found = load_heuristic(H200, operands)
    choice = found.first(problem, candidates(problem, H200))
    assert choice.prediction.config in candidates(problem, H200)
    assert choice.library_over is None
    assert not decides_for(found.artifact.measured, operands)


def test_groups_without_a_part_of_their_own_are_ranked_as_dense_products_and_never_decided(
    small_model,
) -> None:
    rows, along_k = map(GemmOperands.parse, ("bf16:rcr:row-groups", "bf16:crr:k-groups"))
    one = replace(small_model, operands=(rows,), measured=(rows,))
    both = small_model.with_groups({ROW_GROUPS: one})
    assert both.of(along_k) is both
    problem = GemmProblem(512, 2048, 8192, 8, along_k)
    configs = candidates(problem, H200)
    ranked = LearnedHeuristic(both).rank(problem, configs)
    assert list(ranked) == list(LearnedHeuristic(small_model).rank(problem, configs))
    assert ranks_for(both.operands, along_k) and not decides_for(both.measured, along_k)
    assert not LearnedHeuristic(both).first(problem, configs).deferred


def test_groups_are_ranked_by_their_own_part_of_a_model(small_model) -> None:
    operands = GemmOperands.parse("bf16:rcr:row-groups")
    line = dict.fromkeys(OBJECTIVES, (0.2, 0.4))
    own = replace(small_model, operands=(operands,), measured=(operands,), calibration=line)
    both = small_model.with_groups({ROW_GROUPS: own})
    assert (both.operands, both.measured) == ((LINEAR_BF16, operands),) * 2
    whole, groups = LearnedHeuristic(both, "burst"), LearnedHeuristic(own, "burst")
    alone = LearnedHeuristic(small_model, "burst")
    grouped = GemmProblem(512, 2048, 1024, 8, operands)
    for problem, part in ((PROBLEM, alone), (grouped, groups)):
        configs = candidates(problem, H200)
        assert list(whole.rank(problem, configs)) == list(part.rank(problem, configs))
        assert whole.predict(problem, configs) == part.predict(problem, configs)
        assert whole.first(problem, configs) == part.first(problem, configs)
        assert whole.shortlist(problem, configs) == part.shortlist(problem, configs)
        best = configs[0]
        assert whole.explain(problem, configs, best) == part.explain(problem, configs, best)
    configs = candidates(grouped, H200)
    assert whole.predict(grouped, configs) != alone.predict(grouped, configs)
    assert whole.first(grouped, configs).library_over
    assert alone.first(grouped, configs).library_over is None


def test_what_failed_in_groups_or_without_is_chosen_in_neither(small_model: Artifact) -> None:
    operands = GemmOperands.parse("bf16:rcr:row-groups")
    own = replace(small_model, operands=(operands,))
    grouped = GemmProblem(512, 2048, 1024, 8, operands)
    asked = [(problem, candidates(problem, H200)) for problem in (PROBLEM, grouped)]
    firsts = [LearnedHeuristic(own).rank(grouped, asked[1][1])[0]]
    firsts.append(LearnedHeuristic(small_model).rank(*asked[0])[0])
    kinds = zip((small_model, own), (LINEAR_BF16, operands), firsts, strict=True)
    dense, groups = (replace(model, failing={kind: frozenset([bad])}) for model, kind, bad in kinds)
    heuristic = LearnedHeuristic(dense.with_groups({ROW_GROUPS: groups}))
    for problem, configs in asked:
        assert set(firsts).isdisjoint(heuristic.rank(problem, configs))
        assert heuristic.first(problem, configs).prediction.config not in firsts


def test_what_the_library_does_in_several_steps_is_not_left_to_it() -> None:
    speeds = {}
    for text in ("bf16:rcr", "bf16:rcr:bias+gelu", "int8:rcr>int32", "int8:rcr>bf16:row-scales"):
        problem = GemmProblem(300, 4096, 14336, operands=GemmOperands.parse(text))
        choice = load_heuristic(H200, problem.operands).first(problem, candidates(problem, H200))
        assert choice.library_over is not None
        speeds[text] = choice.library_over
        assert choice.deferred == (text == "bf16:rcr")
    assert sorted(speeds, key=speeds.__getitem__) == list(speeds)


def test_reasons_are_features_by_size(small_model) -> None:
    heuristic = LearnedHeuristic(small_model)
    best = heuristic.rank(PROBLEM, CONFIGS, limit=1)[0]
    reasons = heuristic.explain(PROBLEM, CONFIGS, best, limit=4)
    assert len({reason.feature for reason in reasons}) == 4
    assert all(reason.meaning == FEATURES[reason.feature] for reason in reasons)
    sizes = [abs(np.log1p(reason.effect)) for reason in reasons]
    assert sizes == sorted(sizes, reverse=True)


def test_all_reasons_together_are_the_difference_of_the_scores(small_model) -> None:
    """Effects against the average of the rivals: those of two configs differ by their scores."""
    heuristic = LearnedHeuristic(small_model)
    order = heuristic.rank(PROBLEM, CONFIGS)
    pair = [order[0], order[60]]
    sums = [
        sum(np.log1p(r.effect) for r in heuristic.explain(PROBLEM, CONFIGS, config, limit=99))
        for config in pair
    ]
    ranker = small_model.ranker
    features = featurize(PROBLEM, CONFIGS, H200)
    scores = ranker.scores(features[[CONFIGS.index(config) for config in pair]])
    assert sums[1] - sums[0] == pytest.approx(float(scores[1] - scores[0]), abs=1e-5)
    rivals = ranker.scores(features[ranker.order(features)[:RIVALS]]).mean()
    assert sums[0] == pytest.approx(float(scores[0] - rivals), abs=1e-5)
    assert sums[0] < sums[1]


def test_only_a_candidate_is_explained(small_model) -> None:
    stranger = QuackConfig(64, 16, 64, 4, 4)
    with pytest.raises(TilecastError, match="is no candidate for 1000x5120x3072; allowed: one of"):
        LearnedHeuristic(small_model).explain(PROBLEM, CONFIGS, stranger)


def test_other_operands_are_refused(small_model) -> None:
    operands = GemmOperands.parse("fp16:rrr>fp32")
    problem = GemmProblem(64, 64, 64, operands=operands)
    message = "no model is for fp16:rrr>fp32; allowed: what is stored in as many bits as one of"
    heuristic = LearnedHeuristic(small_model)
    for ask in (heuristic.rank, heuristic.predict, heuristic.shortlist, heuristic.first):
        with pytest.raises(TilecastError, match=message):
            ask(problem, CONFIGS)


def test_a_model_of_ones_own_is_loaded_by_its_folder(small_model, tmp_path: Path) -> None:
    save(small_model, tmp_path)
    loaded = load_heuristic(H200, LINEAR_BF16, "burst", tmp_path)
    expected = LearnedHeuristic(small_model, "burst").predict(PROBLEM, CONFIGS, limit=9)
    assert loaded.predict(PROBLEM, CONFIGS, limit=9) == expected
    with pytest.raises(TilecastError, match="is for H200; allowed: one for H100; train"):
        load_heuristic(hardware("H100"), LINEAR_BF16, folder=tmp_path)


@pytest.mark.parametrize(
    ("trained", "asked", "ranked", "decided"),
    [
        ("bf16:rcr", "fp16:rrr", True, False),
        ("bf16:rcr", "bf16:rcr:bias", True, True),
        ("bf16:rcr bf16:crr", "fp16:crr:bias", True, True),
        ("bf16:rcr:bias", "bf16:rcr", True, True),
        ("bf16:rcr", "bf16:rcr:bias+relu", True, True),
        ("e4m3:rcr>bf16:row-scales", "e5m2:rcr>bf16:tensor-scales", True, True),
        ("bf16:rcr", "bf16:rcc", False, False),
        ("bf16:rcr", "bf16:rcr:c", False, False),
        ("bf16:rcr:beta-c", "bf16:rcr:c", True, True),
        ("bf16:rcr", "bf16:rcr>fp32:bias", False, False),
        ("bf16:rcr", "bf16xint8:rcr:column-scales", False, False),
        ("bf16xint8:rcr:column-scales", "bf16xint8:rcr", True, True),
        ("bf16xint8:rcr:column-scales", "bf16xint8:rcr:fp32-column-scales+bias", True, True),
        ("bf16:rcr int8:rcr>int32", "e4m3:rcr", False, False),
    ],
)
def test_a_model_ranks_for_operands_as_wide_and_decides_for_majors_that_it_has_seen(
    trained: str, asked: str, ranked: bool, decided: bool
) -> None:
    seen, operands = [*map(GemmOperands.parse, trained.split())], GemmOperands.parse(asked)
    assert (ranks_for(seen, operands), decides_for(seen, operands)) == (ranked, decided)
