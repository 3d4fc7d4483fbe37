"""From a data set to an artifact: each fold of families is held out once, then none.

All folds, and every baseline, are scored by `tilecast evaluate`; one fold is enough to calibrate,
and to record in the manifest what to expect. How many candidates a problem deserves is learned
from all of them: further candidates seldom gain anything, so it takes many rankings to learn when.
So is when to leave a problem to cuBLAS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from tilecast.data_collection.dataset.autotuned import Autotuned
from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.data_collection.gpu.environment import cublas_versions, installed_version
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.kernels.candidates import families_in
from tilecast.models.features.features import log_analytic
from tilecast.models.learning.autotune_pairs import Comparison, comparisons
from tilecast.models.learning.fit_deferral import beside_library, fit_deferral, speed
from tilecast.models.learning.fit_ranker import fit_ranker
from tilecast.models.learning.fit_stopping import first_candidates, fit_stopping
from tilecast.models.learning.fit_trees import fit_times
from tilecast.models.learning.folds import Splits, folds, side_by_side
from tilecast.models.learning.held_out import Asked, ask_about_unseen
from tilecast.models.learning.labels import ProblemLabels, noise_floor, spread_and_share
from tilecast.models.learning.training_sets import Measurements, dataset_hardware
from tilecast.models.runtime.artifact import INTERCEPT, SLOPE, Artifact
from tilecast.models.runtime.forest import Forest
from tilecast.models.runtime.objectives import OBJECTIVES
from tilecast.models.runtime.ranker import ConfigRanker

_PACKAGES = ("numpy", "scikit-learn", "xgboost-cpu", "xgboost", "tilecast")
_REPORTED_K = (1, 3, 5, 10)
"""Numbers of kernels whose regret goes into the manifest."""


def train(
    measurements: Measurements,
    autotuned: Sequence[Autotuned] = (),
    *,
    seed: int = 0,
    jobs: int = 1,
    fitted: Callable[[], object] = lambda: None,
) -> Artifact:
    """Hold out each fold of families, then fit on everything.

    The same data, seed and package versions give the same artifact, byte for byte, whatever
    ``jobs``.

    Args:
        measurements: of one GPU; and of others, which are learned from and never scored by: so few
            problems of a new GPU are enough. What is fitted to their labels is kept for whoever
            scores with them, too.
        autotuned: what Inductor measured on the GPU, which is learned from (`comparisons`) in the
            same way.
        seed: of the models' sampling.
        jobs: fits that run side by side.
        fitted: called after each fit of a ranker, `FOLDS` and one more, which take most of the
            time.

    Raises:
        TilecastError: a data set holds more than one GPU, or too few families; or no problem of
            the GPU has two configs with times.
    """
    gpu, own, table = measurements.gpu, measurements.own, measurements.table
    splits = folds(table)
    if all(len(labels.configs) < 2 for labels in own):
        raise TilecastError(
            f"none of the {len(own)} problems has two configs with times; allowed: at least one "
            "that has; collect more configs"
        )
    compared = comparisons(autotuned, {labels.problem for labels in own}, gpu)
    ranker, *validated = fit_rankers(
        gpu, table, splits, compared, seed=seed, jobs=jobs, fitted=fitted
    )
    seen, asked = splits[0]
    unseen = [table[i] for i in asked]
    times, seen_times = (
        {regime: fit_times(part, gpu, regime, seed) for regime in REGIMES}
        for part in (table, [table[i] for i in seen])
    )
    parts = ask_about_unseen(validated, table, splits)
    own_parts = [[one for one in part if one.labels.elsewhere is None] for part in parts]
    scored = {aim: _scored(own_parts[0], aim, seen_times) for aim in OBJECTIVES}
    deferral, choices = fit_deferral([beside_library(part) for part in parts], seed=seed, jobs=jobs)
    every = [one for part in own_parts for one in part]
    return Artifact(
        gpu,
        tuple(sorted({labels.problem.operands for labels in table}, key=str)),
        tuple(sorted({labels.problem.operands for labels in own}, key=str)),
        ranker,
        times,
        {objective: calibration for objective, (calibration, _) in scored.items()},
        fit_stopping([first_candidates(one, aim) for one in every for aim in OBJECTIVES]),
        deferral,
        {
            **_learned(measurements, compared),
            "seed": seed,
            "held_out": {ConfigRanker.name: {one: metrics for one, (_, metrics) in scored.items()}},
            "noise_floor": {objective: noise_floor(unseen, objective) for objective in OBJECTIVES},
            "beside_library": {
                objective: _rounded(speed(one.measured, one.deferred))
                for objective, one in choices.items()
            },
        },
        measurements.failing,
        frozenset().union(*(families_in(labels.candidates.table) for labels in table)),
    )


def fit_rankers(
    gpu: Hardware,
    table: Sequence[ProblemLabels],
    splits: Splits,
    compared: Sequence[Comparison] = (),
    *,
    seed: int = 0,
    jobs: int = 1,
    fitted: Callable[[], object] = lambda: None,
) -> list[ConfigRanker]:
    """Fit a ranker to a whole table, and one to what each of its `folds` does not hold out.

    So with what was compared: a fold's ranker learns nothing of the families that it holds out.

    Returns:
        The ranker of the whole table, and those of each split.
    """
    fit = partial(fit_ranker, hardware=gpu, seed=seed)
    calls = [partial(fit, table, compared=compared)]
    for seen, unseen in splits:
        families = {table[i].problem.family for i in unseen}
        others = [one for one in compared if one.problem.family not in families]
        calls.append(partial(fit, [table[i] for i in seen], compared=others))
    return side_by_side(jobs, calls, fitted)


def _learned(measurements: Measurements, compared: Sequence[Comparison]) -> dict[str, object]:
    """What was learned from, and under which versions, as a manifest states it."""
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
        **({"autotuned": _compared(compared)} if compared else {}),
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


def _compared(compared: Sequence[Comparison]) -> dict[str, int]:
    """How many problems the autotuner timed that no collection measured, and how many times."""
    return {
        "problems": len({one.problem for one in compared}),
        "times": sum(len(one.configs) for one in compared),
    }


def _scored(
    asked: Sequence[Asked], objective: str, times: Mapping[str, Forest]
) -> tuple[tuple[float, float], dict[str, object]]:
    """Calibration and metrics of a ranker, from problems whose families it was not fitted on.

    The calibration is intercept and slope of the measured log slowdown over the predicted one. The
    intercept is the mean of what the first picks lost; the slope is fitted to what the others lost
    on top of it, and 1 where there are no others, or none that is told from the first.
    """
    regrets, predicted, measured, errors = [], [], [], []
    for one in asked:
        labels, ranking = one.labels, one.rankings[objective]
        regrets.append(labels.regret(objective, ranking.first.tolist()))
        scores = ranking.scores.blended
        predicted.append(scores - scores[0])
        measured.append(np.log(labels.slowdown(objective, truth=True)[ranking.first]))
        if objective in times:
            best = ranking.features[:1]
            log_time = times[objective].predict(best) + log_analytic(best)
            errors.append(log_time - np.log(labels.cost(objective, truth=True)[ranking.first[0]]))
    gaps, slowdowns = np.concatenate(predicted), np.concatenate(measured)
    intercept = slowdowns[gaps == 0].mean()
    scale = gaps @ gaps
    slope = gaps @ (slowdowns - intercept) / scale if scale else 1.0
    # Of times that nothing predicts, any line is as good as one that a model may hold.
    intercept, slope = np.clip(intercept, *INTERCEPT), np.clip(slope, *SLOPE)
    metrics: dict[str, object] = {
        f"regret@{k}": _rounded(spread_and_share(np.array(regrets)[:, k - 1])) for k in _REPORTED_K
    }
    if errors:
        median, p90 = np.expm1(np.percentile(np.abs(np.concatenate(errors)), [50, 90]))
        metrics["time_error"] = _rounded({"median": median, "p90": p90})
    return (round(float(intercept), 6), round(float(slope), 6)), metrics


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(float(figure), 6) for name, figure in figures.items()}
