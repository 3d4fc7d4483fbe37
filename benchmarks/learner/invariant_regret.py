"""What is lost if a row has the same bits in every batch, and does the model choose well then?

``python benchmarks/learner/invariant_regret.py --jobs 2``; no GPU. On the problems of `LINEAR_BF16`
in the shipped data: the best of the kernels that agree over the best of all, cuBLAS over that, and
the model's choices among these kernels while their families were held out, for the worst of both
power regimes: their regret within the class, and cuBLAS over the first of them. The model is the
one of all kernels. A kernel that takes all stretches of k by itself is taken to be as fast as the
same without stretches, which was measured.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from tilecast.data_collection.dataset.dataset import read_dataset
from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.heuristic import rank
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.candidates import candidates, config_table
from tilecast.models.evaluation.regret import groups
from tilecast.models.learning.fit_ranker import fit_ranker
from tilecast.models.learning.folds import folds, side_by_side
from tilecast.models.learning.labels import MAX_K, ProblemLabels, label_table
from tilecast.models.learning.training_sets import dataset_hardware
from tilecast.models.runtime.objectives import ROBUST

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import runner
from runner import Row, ratios
from selection_regret import of_shown


def agreeing(labels: ProblemLabels, gpu: Hardware) -> ProblemLabels:
    """The labels of those kernels that give a row the same bits in every batch."""
    posed = labels.problem.invariant()
    kept = set(candidates(posed, gpu, invariant=True))
    rows = np.flatnonzero([config in kept for config in labels.configs])
    configs = tuple(labels.configs[row] for row in rows)
    return replace(
        labels,
        problem=posed,
        configs=configs,
        label={regime: times[rows] for regime, times in labels.label.items()},
        truth={regime: times[rows] for regime, times in labels.truth.items()},
        candidates=config_table(configs, posed.operands).all(),
    )


def picked(
    table: Sequence[ProblemLabels], own: Sequence[ProblemLabels], gpu: Hardware, jobs: int
) -> list[tuple[int, ...]]:
    """The first choices for each of some problems of a table; indices into their own configs.

    Args:
        table: what is learned from.
        own: of each problem of the table the kernels to choose from.
        gpu: what ranks are for.
        jobs: folds at a time.
    """

    def ask(seen: np.ndarray, asked: np.ndarray) -> dict[int, tuple[int, ...]]:
        ranker = fit_ranker([table[i] for i in seen], ROBUST, hardware=gpu)
        found = {}
        for i in asked.tolist():
            if table[i].problem.operands == LINEAR_BF16:
                best = rank(ranker, own[i].problem, own[i].candidates, limit=MAX_K)
                found[i] = tuple(own[i].candidates.index(config) for config in best)
        return found

    parts = side_by_side(jobs, [partial(ask, *split) for split in folds(table)])
    found = {i: picks for part in parts for i, picks in part.items()}
    return [found[i] for i in sorted(found)]


def figures(
    table: Sequence[ProblemLabels],
    own: Sequence[ProblemLabels],
    picks: Sequence[tuple[int, ...]],
) -> Row:
    """By group of problems."""
    regret = np.array(
        [labels.regret(ROBUST, pick) for labels, pick in zip(own, picks, strict=True)]
    )
    found: Row = {}
    for name, mask in groups([labels.problem for labels in table]).items():
        if not mask.any():
            continue
        at = np.flatnonzero(mask).tolist()
        group: Row = {"problems": len(at)}
        for regime in REGIMES:
            every = [table[i].truth[regime].min() for i in at]
            best = [own[i].truth[regime].min() for i in at]
            first = [own[i].truth[regime][picks[i][0]] for i in at]
            library = [table[i].reference[regime] for i in at]
            group[regime] = {
                "best over best of all": ratios(best, every),
                "cuBLAS over best": ratios(library, best),
                "cuBLAS over first": ratios(library, first),
            }
        group["regret"] = of_shown(regret[at], [table[i] for i in at])
        found[name] = group
    return found


if __name__ == "__main__":
    parser = runner.parser(__file__, __doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options, dataset = parser.parse_args(), read_dataset(runner.DATA)
    gpu, whole = dataset_hardware(dataset), label_table(dataset)
    restricted = [agreeing(labels, gpu) for labels in whole]
    choices = picked(whole, restricted, gpu, options.jobs)
    asked = [i for i, labels in enumerate(whole) if labels.problem.operands == LINEAR_BF16]
    settings = {"dataset": runner.facts(dataset), "fitted": len(whole), "problems": len(asked)}
    shown = figures([whole[i] for i in asked], [restricted[i] for i in asked], choices)
    runner.write(options, settings, shown)
