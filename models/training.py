"""From a data set to an artifact: cross-validation first, then the models that are kept."""

from __future__ import annotations

from collections.abc import Sequence
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
from tilecast.models.tree_linear import TreeLinearRanker

_PACKAGES = ("numpy", "scikit-learn", "xgboost-cpu", "xgboost", "tilecast")
_CALIBRATED = 20
"""Configs per problem, from the best predicted down, that calibrate the predicted slowdown."""
_REPORTED_K = (1, 3, 5, 10)
"""Numbers of kernels whose regret goes into the manifest."""


@dataclass(frozen=True, eq=False)
class _Fold:
    """What a ranker said of problems whose families it had not seen."""

    picks: dict[int, tuple[int, ...]]
    """Problem to its first `MAX_K` configs."""
    gaps: np.ndarray
    """Predicted log slowdown against the first, of each problem's first `_CALIBRATED`."""
    slowdowns: np.ndarray
    """Measured log slowdown of the same."""
    time_errors: np.ndarray
    """log(predicted / measured time) of each problem's first config; empty for ``robust``."""


def train(dataset: Dataset, *, seed: int = 0, jobs: int = 1) -> Artifact:
    """Cross-validate on held-out families, then fit on everything.

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

    def boosted(power: str) -> ConfigRanker:
        return ConfigRanker(gpu, power, seed=seed)

    def readable(power: str) -> TreeLinearRanker:
        return TreeLinearRanker(gpu, power)

    rankers = side_by_side(jobs, [partial(boosted(power).fit, table) for power in POWERS])
    trees = side_by_side(jobs, [partial(readable(power).fit, table) for power in POWERS])
    validated = {
        make: side_by_side(
            jobs,
            [
                partial(_validate, make(power), table, *split)
                for power in POWERS
                for split in splits
            ],
        )
        for make in (boosted, readable)
    }
    count = len(splits)
    parts = {
        (make, power): results[i * count : (i + 1) * count]
        for make, results in validated.items()
        for i, power in enumerate(POWERS)
    }
    held_out = {
        name: {power: _metrics(parts[make, power], table, power) for power in POWERS}
        for name, make in ((ConfigRanker.name, boosted), (TreeLinearRanker.name, readable))
    }
    return Artifact(
        gpu,
        operands,
        dict(zip(POWERS, rankers, strict=True)),
        dict(zip(POWERS, trees, strict=True)),
        {power: _calibration(parts[boosted, power]) for power in POWERS},
        {
            "dataset": _describe(dataset, table),
            "seed": seed,
            "versions": {name: found for name in _PACKAGES if (found := _version(name))},
            "held_out": held_out,
            "noise_floor": {power: noise_floor(table, power) for power in POWERS},
        },
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


def _validate(
    ranker: ConfigRanker | TreeLinearRanker,
    table: Sequence[ProblemLabels],
    fitted: np.ndarray,
    asked: np.ndarray,
) -> _Fold:
    ranker = ranker.fit([table[i] for i in fitted])
    picks, gaps, slowdowns, errors = {}, [], [], []
    for i in asked.tolist():
        labels = table[i]
        features = featurize(labels.problem, labels.configs, ranker.hardware)
        order = ranker.order(features)
        picks[i] = tuple(order[:MAX_K].tolist())
        first = order[:_CALIBRATED]
        scores = ranker.scores(features[first])
        gaps.append(scores - scores[0])
        slowdowns.append(np.log(labels.slowdown(ranker.power, truth=True)[first]))
        if isinstance(ranker, ConfigRanker) and ranker.level_ is not None:
            time = ranker.best_microseconds(features[order[:1]])
            errors.append(np.log(time / labels.cost(ranker.power, truth=True)[order[0]]))
    return _Fold(picks, np.concatenate(gaps), np.concatenate(slowdowns), np.array(errors))


def _metrics(
    parts: Sequence[_Fold], table: Sequence[ProblemLabels], power: str
) -> dict[str, object]:
    picks = {i: pick for part in parts for i, pick in part.picks.items()}
    result = HeldOut("", power, tuple(picks[i] for i in range(len(table))))
    rows = summarise(result, table)
    shown = ("geomean", "p95", "max", "within_2_percent")
    metrics: dict[str, object] = {
        f"regret@{row.k}": {name: round(asdict(row)[name], 6) for name in shown}
        for row in rows
        if row.problems == "all" and row.k in _REPORTED_K
    }
    errors = np.abs(np.concatenate([part.time_errors for part in parts]))
    if len(errors):
        median, p90 = np.expm1(np.percentile(errors, [50, 90]))
        metrics["time_error"] = {"median": round(float(median), 6), "p90": round(float(p90), 6)}
    return metrics


def _calibration(parts: Sequence[_Fold]) -> tuple[float, float]:
    """Intercept and slope of the measured log slowdown over the predicted one.

    The intercept is the mean of what the first picks lost; the slope is fitted to what the others
    lost on top of it.
    """
    gaps = np.concatenate([part.gaps for part in parts])
    slowdowns = np.concatenate([part.slowdowns for part in parts])
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
