"""From a data set to an artifact: each fold of families is held out once, then none.

All folds, and every baseline, are scored by `tilecast evaluate`; one fold is enough to calibrate,
and to record in the manifest what to expect. How many candidates a problem deserves is learned
from all of them: further candidates seldom gain anything, so it takes many problems to learn when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from tilecast.data_collection.dataset import Dataset
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.problem import GemmOperands
from tilecast.models.artifact import Artifact
from tilecast.models.evaluation import MAX_K, HeldOut, folds, noise_floor, side_by_side, summarise
from tilecast.models.features import featurize
from tilecast.models.labels import POWERS, ProblemLabels, label_table
from tilecast.models.ranker import ConfigRanker
from tilecast.models.shortlist import ShortlistRule, fit_rule, head
from tilecast.models.tree_linear import TreeLinearRanker

_PACKAGES = ("numpy", "scikit-learn", "xgboost-cpu", "xgboost", "tilecast")
_CALIBRATED = 20
"""Configs per problem, from the best predicted down, that calibrate the predicted slowdown."""
_REPORTED_K = (1, 3, 5, 10)
"""Numbers of kernels whose regret goes into the manifest."""


@dataclass(frozen=True, eq=False)
class _HeldOut:
    """What a ranker said of problems whose families it had not seen."""

    picks: tuple[tuple[int, ...], ...]
    """For each problem its first `MAX_K` configs."""
    gaps: np.ndarray
    """Predicted log slowdown against the first, of each problem's first `_CALIBRATED`."""
    slowdowns: np.ndarray
    """Measured log slowdown of the same."""
    time_errors: np.ndarray
    """log(predicted / measured time) of each problem's first config; empty for ``robust``."""


def train(dataset: Dataset, *, seed: int = 0, jobs: int = 1) -> Artifact:
    """Hold out each fold of families, then fit on everything.

    The same data, seed and library versions give the same artifact, byte for byte, whatever
    ``jobs``.

    Args:
        dataset: measurements of one GPU, dtype and layout.
        seed: of the models' sampling.
        jobs: fits that run side by side.

    Raises:
        TilecastError: the data set holds more than one GPU, dtype or layout, or too few families.
    """
    gpu = dataset_hardware(dataset)
    table = label_table(dataset)
    operands = _single_operands(table)
    splits = folds(table)
    fitted, asked = splits[0]

    def readable(power: str) -> TreeLinearRanker:
        return TreeLinearRanker(gpu, power)

    rankers, *validated = fit_rankers(
        gpu, [table, *([table[i] for i in fitted] for fitted, _ in splits)], seed=seed, jobs=jobs
    )
    calls = [partial(readable(power).fit, table) for power in POWERS]
    calls += [partial(readable(power).fit, [table[i] for i in fitted]) for power in POWERS]
    trees, validated_trees = _halves(side_by_side(jobs, calls))
    unseen = [table[i] for i in asked]
    answers = {
        (ranker.name, ranker.power): _validate(ranker, unseen)
        for ranker in (*validated[0].values(), *validated_trees)
    }
    held_out = {
        name: {power: _metrics(answers[name, power], unseen, power) for power in POWERS}
        for name in (ConfigRanker.name, TreeLinearRanker.name)
    }
    return Artifact(
        gpu,
        operands,
        rankers,
        dict(zip(POWERS, trees, strict=True)),
        {power: _calibration(answers[ConfigRanker.name, power]) for power in POWERS},
        shortlist_rule(validated, table, splits),
        {
            "dataset": _describe(dataset, table),
            "seed": seed,
            "versions": {name: found for name in _PACKAGES if (found := _version(name))},
            "held_out": held_out,
            "noise_floor": {power: noise_floor(unseen, power) for power in POWERS},
        },
    )


def fit_rankers(
    gpu: Hardware, tables: Sequence[Sequence[ProblemLabels]], *, seed: int = 0, jobs: int = 1
) -> list[dict[str, ConfigRanker]]:
    """Fit a ranker of every power to each of several tables.

    Args:
        gpu: what the tables were measured on.
        tables: labels to learn from.
        seed: of the models' sampling.
        jobs: fits that run side by side.

    Returns:
        For each table its rankers by power.
    """
    calls = [
        partial(ConfigRanker(gpu, power, seed=seed).fit, table)
        for table in tables
        for power in POWERS
    ]
    fitted = iter(side_by_side(jobs, calls))
    return [{power: next(fitted) for power in POWERS} for _ in tables]


def shortlist_rule(
    rankers: Sequence[Mapping[str, ConfigRanker]],
    table: Sequence[ProblemLabels],
    splits: Sequence[tuple[np.ndarray, np.ndarray]],
) -> ShortlistRule:
    """Learn how many candidates a problem deserves from rankings of held-out problems.

    All powers count alike: how much the two sets of trees are to be trusted is the same for each.

    Args:
        rankers: of each split, fitted to what it does not hold out.
        table: the problems with their labels.
        splits: `folds` of the table.
    """
    return fit_rule(
        [
            head(ranker, table[i])
            for (_, asked), fitted in zip(splits, rankers, strict=True)
            for ranker in fitted.values()
            for i in asked
        ]
    )


def dataset_hardware(dataset: Dataset) -> Hardware:
    """The GPU that a data set was measured on.

    Raises:
        TilecastError: it names none, several, or one that is not known.
    """
    names = {
        gpu["name"] for run in dataset.provenance.get("runs", ()) for gpu in run.get("gpus", ())
    }
    if len(names) != 1:
        raise TilecastError(
            f"the data set names {len(names)} GPU models ({', '.join(sorted(names))}); "
            "allowed: one; train on each GPU's measurements apart"
        )
    return hardware(names.pop())


def _single_operands(table: Sequence[ProblemLabels]) -> GemmOperands:
    found = {labels.problem.operands for labels in table}
    if len(found) > 1:
        names = sorted(f"{operands.dtype} {operands.layout}" for operands in found)
        raise TilecastError(
            f"the data set mixes {', '.join(names)}; allowed: one dtype and layout; "
            "train on each apart"
        )
    return found.pop()


def _halves(results: list) -> tuple[list, list]:
    """What was fitted on everything, and what was fitted without the held-out fold."""
    return results[: len(POWERS)], results[len(POWERS) :]


def _validate(ranker: ConfigRanker | TreeLinearRanker, unseen: Sequence[ProblemLabels]) -> _HeldOut:
    """Ask a ranker about problems whose families it was not fitted on."""
    picks, gaps, slowdowns, errors = [], [], [], []
    for labels in unseen:
        features = featurize(labels.problem, labels.configs, ranker.hardware)
        order = ranker.order(features)
        picks.append(tuple(order[:MAX_K].tolist()))
        first = order[:_CALIBRATED]
        scores = ranker.scores(features[first])
        gaps.append(scores - scores[0])
        slowdowns.append(np.log(labels.slowdown(ranker.power, truth=True)[first]))
        if isinstance(ranker, ConfigRanker) and ranker.level_ is not None:
            time = ranker.best_microseconds(features[order[:1]])
            errors.append(np.log(time / labels.cost(ranker.power, truth=True)[order[0]]))
    return _HeldOut(tuple(picks), np.concatenate(gaps), np.concatenate(slowdowns), np.array(errors))


def _metrics(answer: _HeldOut, unseen: Sequence[ProblemLabels], power: str) -> dict[str, object]:
    rows = summarise(HeldOut("", power, answer.picks), unseen)
    shown = ("geomean", "p95", "max", "within_2_percent")
    metrics: dict[str, object] = {
        f"regret@{row.k}": {name: round(asdict(row)[name], 6) for name in shown}
        for row in rows
        if row.problems == "all" and row.k in _REPORTED_K
    }
    if len(answer.time_errors):
        median, p90 = np.expm1(np.percentile(np.abs(answer.time_errors), [50, 90]))
        metrics["time_error"] = {"median": round(float(median), 6), "p90": round(float(p90), 6)}
    return metrics


def _calibration(answer: _HeldOut) -> tuple[float, float]:
    """Intercept and slope of the measured log slowdown over the predicted one.

    The intercept is the mean of what the first picks lost; the slope is fitted to what the others
    lost on top of it.
    """
    gaps, slowdowns = answer.gaps, answer.slowdowns
    intercept = slowdowns[gaps == 0].mean()
    slope = gaps @ (slowdowns - intercept) / (gaps @ gaps)
    return round(float(intercept), 6), round(float(slope), 6)


def _describe(dataset: Dataset, table: Sequence[ProblemLabels]) -> dict[str, object]:
    return {
        "sha256": dataset.digest,
        "rows": len(dataset.rows),
        "problems": len(table),
        "families": len({labels.problem.family for labels in table}),
        "dates": [run.get("date") for run in dataset.provenance["runs"]],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
