"""From a data set to an artifact: each fold of families is held out once, then none.

All folds, and every baseline, are scored by `tilecast evaluate`; one fold is enough to calibrate,
and to record in the manifest what to expect. How many candidates a problem deserves is learned
from all of them and from every power: further candidates seldom gain anything, so it takes many
rankings to learn when. So is when to leave a problem to the library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilecast.data_collection.dataset.autotuned import Autotuned
from tilecast.data_collection.gpu.environment import cublas_versions, installed_version
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.models.evaluation.evaluation import Splits, folds, parts_beside_library, side_by_side
from tilecast.models.evaluation.regret import MAX_K, HeldOut, noise_floor, summarise
from tilecast.models.learning.autotune_pairs import Comparison, comparisons
from tilecast.models.learning.fit_network import EPOCHS, fit_network
from tilecast.models.learning.labels import POWERS, ProblemLabels
from tilecast.models.learning.targets import problem_features
from tilecast.models.learning.training_sets import Measurements, dataset_hardware
from tilecast.models.runtime.artifact import INTERCEPT, SLOPE, Artifact
from tilecast.models.runtime.deferral import Deferral, fit_deferral, speed
from tilecast.models.runtime.ranker import ConfigRanker
from tilecast.models.runtime.stopping import StoppingRule, first_candidates, fit_stopping_rule

_PACKAGES = ("numpy", "scikit-learn", "xgboost-cpu", "xgboost", "tilecast")
_CALIBRATED = 20
"""Configs per problem, from the best predicted down, that calibrate the predicted slowdown."""
_REPORTED_K = (1, 3, 5, 10)
"""Numbers of kernels whose regret goes into the manifest."""


def train(
    measurements: Measurements,
    autotuned: Sequence[Autotuned] = (),
    *,
    seed: int = 0,
    jobs: int = 1,
) -> Artifact:
    """Hold out each fold of families, then fit on everything.

    The same data, seed and library versions give the same artifact, byte for byte, whatever
    ``jobs``.

    Args:
        measurements: of one GPU; and of others, which are learned from and never scored by: so few
            problems of a new GPU are enough. What is fitted to their labels is kept for whoever
            scores with them, too.
        autotuned: what Inductor measured on the GPU, which is learned from (`comparisons`) in the
            same way.
        seed: of the models' sampling.
        jobs: fits that run side by side.

    Raises:
        TilecastError: a data set holds more than one GPU, or too few families; or no problem of
            the GPU has two configs with times.
    """
    gpu, own, table = measurements.gpu, measurements.own, measurements.table
    splits = folds(table)
    _check_choice(own)
    compared = comparisons(autotuned, {labels.problem for labels in own}, gpu)
    rankers, validated = fit_rankers(gpu, table, splits, compared, seed=seed, jobs=jobs)
    unseen = [table[i] for i in splits[0][1]]
    scored = {power: _scored(ranker, unseen) for power, ranker in validated[0].items()}
    # Ranking holds the interpreter's lock, which fitting trees lets go of.
    calls: list[Callable[[], Any]] = [
        partial(stopping_rule, validated, table, splits),
        partial(learn_deferrals, validated, table, splits, seed=seed, jobs=jobs),
    ]
    rule, (deferrals, speeds) = side_by_side(jobs, calls)
    return Artifact(
        gpu,
        tuple(sorted({labels.problem.operands for labels in table}, key=str)),
        tuple(sorted({labels.problem.operands for labels in own}, key=str)),
        rankers,
        {power: calibration for power, (calibration, _) in scored.items()},
        rule,
        deferrals,
        {
            **_learned(measurements, compared),
            "seed": seed,
            "held_out": {ConfigRanker.name: {p: metrics for p, (_, metrics) in scored.items()}},
            "noise_floor": {power: noise_floor(unseen, power) for power in POWERS},
            "beside_library": speeds,
        },
    )


def fit_rankers(
    gpu: Hardware,
    table: Sequence[ProblemLabels],
    splits: Splits,
    compared: Sequence[Comparison] = (),
    *,
    seed: int = 0,
    jobs: int = 1,
) -> tuple[dict[str, ConfigRanker], list[dict[str, ConfigRanker]]]:
    """Fit rankers to a whole table, and to what each split of it, `folds`, does not hold out.

    So with what was compared: a split's rankers learn nothing of the families that it holds out.

    Returns:
        The rankers of the whole table by power; and those of each split. Only the whole table's
        and the first split's, which calibrates, have learned times.
    """
    known = [(table, compared)]
    for seen, unseen in splits:
        families = {table[i].problem.family for i in unseen}
        others = [one for one in compared if one.problem.family not in families]
        known.append(([table[i] for i in seen], others))
    # The networks first, which the rankers of all powers share.
    networks = [
        partial(fit_network, tuple(one), tuple(others), gpu, EPOCHS, seed) for one, others in known
    ]
    side_by_side(jobs, networks)
    calls = [
        partial(ConfigRanker(gpu, power, seed=seed, times=place < 2).fit, *taught)
        for place, taught in enumerate(known)
        for power in POWERS
    ]
    fitted = iter(side_by_side(jobs, calls))
    whole, *validated = [{power: next(fitted) for power in POWERS} for _ in known]
    return whole, validated


def stopping_rule(
    rankers: Sequence[Mapping[str, ConfigRanker]],
    table: Sequence[ProblemLabels],
    splits: Splits,
) -> StoppingRule:
    """Learn how many candidates a problem deserves from rankings of held-out problems.

    The rankers are those of each split, fitted to what it does not hold out, as by `fit_rankers`.
    """
    return fit_stopping_rule(
        [
            first_candidates(ranker, table[i])
            for (_, asked), fitted in zip(splits, rankers, strict=True)
            for ranker in fitted.values()
            for i in asked
        ]
    )


def learn_deferrals(
    rankers: Sequence[Mapping[str, ConfigRanker]],
    table: Sequence[ProblemLabels],
    splits: Splits,
    *,
    seed: int = 0,
    jobs: int = 1,
) -> tuple[dict[str, Deferral], dict[str, dict[str, float]]]:
    """Learn from first choices for held-out problems which ones to leave to the library.

    The rankers are those of each split, as for `stopping_rule`.

    Returns:
        The rule of each power; and how fast first choices beside the library are with it, held out.
        Both are empty where the library was not timed.
    """
    calls = [
        partial(
            fit_deferral,
            parts_beside_library([fitted[power] for fitted in rankers], table, splits),
            seed=seed,
        )
        for power in POWERS
    ]
    learned = dict(zip(POWERS, side_by_side(jobs, calls), strict=True))
    found = {power: one for power, one in learned.items() if one is not None}
    return (
        {power: deferral for power, (deferral, _) in found.items()},
        {
            power: {name: round(x, 6) for name, x in speed(asked.measured, asked.left).items()}
            for power, (_, asked) in found.items()
        },
    )


def _check_choice(own: Sequence[ProblemLabels]) -> None:
    """See that there is a choice to learn.

    Raises:
        TilecastError: no problem has two configs with times.
    """
    if all(len(labels.configs) < 2 for labels in own):
        raise TilecastError(
            f"none of the {len(own)} problems has two configs with times; allowed: at least one "
            "that has; collect more configs"
        )


def _learned(measurements: Measurements, compared: Sequence[Comparison]) -> dict[str, object]:
    """What was learned from, and under which versions, as a manifest says it."""
    dataset, own = measurements.dataset, measurements.own
    runs = dataset.provenance["runs"]
    kinds = Counter(labels.problem.operands for labels in own)
    every = *(labels.problem for labels in measurements.table), *(one.problem for one in compared)
    return {
        "learned_from": list(measurements.digests),
        "seen_families": ["{}x{}".format(*family) for family in sorted({p.family for p in every})],
        "dataset": {
            "sha256": dataset.digest,
            "rows": len(dataset.rows),
            "problems": len(own),
            "families": len({labels.problem.family for labels in own}),
            "operands": {str(kind): kinds[kind] for kind in sorted(kinds, key=str)},
            "dates": [run.get("date") for run in runs],
        },
        **({"autotuned": _told(compared)} if compared else {}),
        **({"elsewhere": _elsewhere(measurements)} if measurements.others else {}),
        "versions": {name: found for name in _PACKAGES if (found := installed_version(name))},
        "library": cublas_versions(runs),
    }


def _elsewhere(measurements: Measurements) -> dict[str, object]:
    """Which data sets of other GPUs were learned from, and of how many problems they are."""
    return {
        "problems": len(measurements.elsewhere),
        "gpus": sorted({dataset_hardware(other).name for other in measurements.others}),
        "sha256": [other.digest for other in measurements.others],
    }


def _told(compared: Sequence[Comparison]) -> dict[str, int]:
    """How many problems the autotuner told of that no collector measured, and of how many times."""
    return {
        "problems": len({one.problem for one in compared}),
        "times": sum(len(one.configs) for one in compared),
    }


def _scored(
    ranker: ConfigRanker, unseen: Sequence[ProblemLabels]
) -> tuple[tuple[float, float], dict[str, object]]:
    """Calibration and metrics of a ranker, from problems whose families it was not fitted on.

    The calibration is intercept and slope of the measured log slowdown over the predicted one. The
    intercept is the mean of what the first picks lost; the slope is fitted to what the others lost
    on top of it, and 1 where there are no others, or none that is told from the first.
    """
    picks, predicted, measured, errors = [], [], [], []
    for labels in unseen:
        features = problem_features(labels, ranker.hardware)
        order = ranker.order(features)
        picks.append(tuple(order[:MAX_K].tolist()))
        first = order[:_CALIBRATED]
        scores = ranker.scores(features[first])
        predicted.append(scores - scores[0])
        measured.append(np.log(labels.slowdown(ranker.power, truth=True)[first]))
        if ranker.level_ is not None:
            time = ranker.best_microseconds(features[order[:1]])
            errors.append(np.log(time / labels.cost(ranker.power, truth=True)[order[0]]))
    gaps, slowdowns = np.concatenate(predicted), np.concatenate(measured)
    intercept = slowdowns[gaps == 0].mean()
    scale = gaps @ gaps
    slope = gaps @ (slowdowns - intercept) / scale if scale else 1.0
    # Of times that nothing predicts, any line is as good as one that a model may hold.
    intercept, slope = np.clip(intercept, *INTERCEPT), np.clip(slope, *SLOPE)
    shown = ("geomean", "p95", "max", "within_2_percent")
    metrics: dict[str, object] = {
        f"regret@{row.k}": {name: round(getattr(row, name), 6) for name in shown}
        for row in summarise(HeldOut("", ranker.power, tuple(picks)), unseen)
        if row.problems == "all" and row.k in _REPORTED_K
    }
    if errors:
        median, p90 = np.expm1(np.percentile(np.abs(errors), [50, 90]))
        metrics["time_error"] = {"median": round(float(median), 6), "p90": round(float(p90), 6)}
    return (round(float(intercept), 6), round(float(slope), 6)), metrics
