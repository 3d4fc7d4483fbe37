"""How much is lost on grouped products of layers that the models of groups have not seen?

``python benchmarks/learner/grouped_regret.py --jobs 2``. On the shipped measurements of groups of
rows, and then on those of groups along k, the gradients of experts' weights, each beside the dense
ones of an H100, a ranker is fitted to all families but those of a fifth, which it is asked about,
whatever their groups. Beside it stands the shipped model of dense products, which ranks groups as a
batch. The result also has the time of ``torch._grouped_mm`` over that of the first choices, and how
fast the first one is beside it, with falling back to it and without.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from tilecast.data_collection.dataset.dataset import read_dataset
from tilecast.data_collection.problems.suites import suite
from tilecast.heuristics.operands import K_GROUPS, ROW_GROUPS
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.evaluation import evaluation
from tilecast.models.evaluation.evaluation import held_out
from tilecast.models.evaluation.regret import HeldOut, by_rows
from tilecast.models.learning.fit_ranker import fit_ranker
from tilecast.models.learning.folds import folds
from tilecast.models.learning.labels import ProblemLabels, noise_floor
from tilecast.models.learning.training_sets import Measurements, by_gpu
from tilecast.models.runtime.artifact import SHIPPED, load
from tilecast.models.runtime.objectives import OBJECTIVES
from tilecast.models.runtime.ranker import ConfigRanker

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import runner
from runner import DIGITS, SHOWN_K, Row, ratios, rounded
from selection_regret import among, losses

BESIDE = runner.DATA.with_name("h100.parquet")
BATCH = "as a batch"


def beside_library(table: Sequence[ProblemLabels], asked: HeldOut) -> Row:
    """PyTorch's time over that of the best of the first k, for each of `SHOWN_K`.

    ``as_fast`` is the share of the problems where that is 1 or more.
    """
    regime = "sustained" if asked.objective == "robust" else asked.objective
    library, found = np.array([one.reference[regime] for one in table]), {}
    for k in SHOWN_K:
        pairs = zip(table, asked.picks, strict=True)
        picked = np.array([one.truth[regime][list(picks[:k])].min() for one, picks in pairs])
        as_fast = round(float((library >= picked)[~np.isnan(library)].mean()), DIGITS)
        found[str(k)] = ratios(library.tolist(), picked.tolist()) | {"as_fast": as_fast}
    return found


def of_groups(measured: Measurements, masks: dict[str, np.ndarray], jobs: int) -> Row:
    """What a model of such groups loses on those that it has not seen, in each group of problems.

    ``masks`` say which problems are in it; bool [problems].
    """
    gpu, table, count = measured.gpu, measured.own, len(measured.own)
    splits, whole = folds(measured.table), evaluation.unfitted(table)
    dense = load(SHIPPED / gpu.name).ranker
    masks = {"all": np.ones(count, bool), **masks}
    figures: Row = {"counts": {name: int(mask.sum()) for name, mask in masks.items()}}
    figures |= {"noise_floor": {}, "regret": {}, "library_over": {}}
    rankers: list[ConfigRanker] = []  # of every objective the same
    for power in OBJECTIVES:
        fit = partial(fit_ranker, hardware=gpu)
        own = held_out(fit, measured.table, power, splits, jobs)
        own = replace(own, picks=own.picks[:count])
        rankers = [one for one in own.fitted if isinstance(one, ConfigRanker)]
        batch = held_out(lambda _, aim: replace(dense, objective=aim), table, power, whole)
        figures["noise_floor"][power] = noise_floor(table, power)
        figures["regret"][power] = {
            name: {
                way: losses(among(asked, mask), [table[i] for i in np.flatnonzero(mask)])
                for way, asked in ((ConfigRanker.name, own), (BATCH, batch))
            }
            for name, mask in masks.items()
            if mask.any()
        }
        figures["library_over"][power] = beside_library(table, own)
    speeds = evaluation.speeds(rankers, measured.table, splits, jobs=jobs)
    figures["deferral"] = [rounded(row) for row in speeds if row["problems"] == "all"]
    return figures


def facts(measured: Measurements) -> Row:
    """What was learned from, and how much."""
    table = measured.own
    return {
        "dataset": runner.facts(measured.parts[0]),
        "beside": [other.digest for other in measured.others],
        "families": len({one.problem.family for one in table}),
        "layers": len({(one.problem.batch, *one.problem.family) for one in table}),
        "kernels": round(float(np.mean([len(one.configs) for one in table])), 1),
    }


def by_source(problems: Sequence[GemmProblem]) -> dict[str, np.ndarray]:
    """Which problems are of layers of models, and which are random; bool [problems]."""
    layers = set(suite("gradients"))
    known = np.array([problem in layers for problem in problems])
    return {"layers of models": known, "random": ~known}


def main() -> None:
    """Score, and keep the result."""
    parser = runner.parser(__file__, __doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    figures: Row = {}
    settings: Row = {}
    for groups, masks in {ROW_GROUPS: by_rows, K_GROUPS: by_source}.items():
        data = runner.DATA.with_name(f"h200-{groups}.parquet"), BESIDE
        measured = by_gpu([read_dataset(path) for path in data])
        problems = [one.problem for one in measured.own]
        figures[groups] = of_groups(measured, masks(problems), options.jobs)
        settings[groups] = facts(measured)
    runner.write(options, settings, figures)


if __name__ == "__main__":
    main()
