"""How much is lost on grouped products of layers that the model of grouped rows has not seen?

``python benchmarks/learner/grouped_regret.py --jobs 2``. On the shipped measurements of groups, and
the dense ones of an H100, a ranker is fitted to all (n, k) but those of a fifth, which it is asked
about, whatever their groups. Beside it stands the shipped model of dense products, which ranks
groups as a batch. The result also has the time of ``torch._grouped_mm`` over that of the first
choices, and how fast the first one is beside it, with falling back to it and without.

The gradients of experts' weights, groups along k, have no model of their own: the shipped one of
dense products ranks them as a batch, each with the mean k (`GemmProblem.evenly`). What it loses is
on `GRADIENTS`, which ``tilecast collect --suite gradients --candidates guided`` measured.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from tilecast.data_collection.dataset.dataset import read_dataset
from tilecast.models.evaluation import evaluation
from tilecast.models.evaluation.evaluation import held_out
from tilecast.models.evaluation.regret import HeldOut, by_rows
from tilecast.models.learning.fit_ranker import fit_ranker
from tilecast.models.learning.folds import folds
from tilecast.models.learning.labels import ProblemLabels, label_table, noise_floor
from tilecast.models.learning.training_sets import by_gpu, dataset_hardware
from tilecast.models.runtime.artifact import SHIPPED, load
from tilecast.models.runtime.learned import LearnedHeuristic
from tilecast.models.runtime.objectives import OBJECTIVES
from tilecast.models.runtime.ranker import ConfigRanker

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import runner
from locked_set import ask
from runner import SHOWN_K, Row, ratios
from selection_regret import DIGITS, among, losses, rounded

DATA = tuple(map(runner.DATA.with_name, ("h200-row-groups.parquet", "h100.parquet")))
GRADIENTS = runner.RESULTS / "gradients.parquet"
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


def of_gradients() -> Row:
    """What is lost on gradients, and PyTorch's time over that of the first choices."""
    dataset = read_dataset(GRADIENTS)
    gpu, table = dataset_hardware(dataset), label_table(dataset)
    found: Row = {"problems": len(table), "missing": {}, "regret": {}, "library_over": {}}
    for power in OBJECTIVES:
        asked = ask(LearnedHeuristic(load(SHIPPED / gpu.name), power), table, gpu)
        found["missing"][power] = asked.missing
        found["regret"][power] = losses(asked.picks, table)
        found["library_over"][power] = beside_library(table, asked.picks)
    return found


def main() -> None:
    """Score, and keep the result."""
    parser = runner.parser(__file__, __doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options, measured = parser.parse_args(), by_gpu([read_dataset(path) for path in DATA])
    gpu, table, count = measured.gpu, measured.own, len(measured.own)
    splits, whole = folds(measured.table), evaluation.unfitted(table)
    dense = load(SHIPPED / gpu.name).ranker
    masks = {"all": np.ones(count, bool), **by_rows([one.problem for one in table])}
    figures: Row = {"counts": {name: int(mask.sum()) for name, mask in masks.items()}}
    figures |= {"noise_floor": {}, "regret": {}, "library_over": {}}
    rankers: list[ConfigRanker] = []  # of every objective the same
    for power in OBJECTIVES:
        fit = partial(fit_ranker, hardware=gpu)
        own = held_out(fit, measured.table, power, splits, options.jobs)
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
    speeds = evaluation.speeds(rankers, measured.table, splits, jobs=options.jobs)
    figures["deferral"] = [rounded(row) for row in speeds if row["problems"] == "all"]
    figures["gradients"] = of_gradients()
    settings = {
        "dataset": runner.facts(measured.parts[0]),
        "beside": [other.digest for other in measured.others],
        "families": len({one.problem.family for one in table}),
        "layers": len({(one.problem.batch, *one.problem.family) for one in table}),
        "kernels": round(float(np.mean([len(one.configs) for one in table])), 1),
    }
    runner.write(options, settings, figures)


if __name__ == "__main__":
    main()
