"""How much does each heuristic lose on families of problems that it has not seen?

``python benchmarks/learner/selection_regret.py --jobs 2``. The model and the baselines pass through
`tilecast.models.evaluation.evaluation`, at equal numbers of distinct kernels, in each power regime
and for the worst of both: fitted to all operands and asked about `LINEAR_BF16`, the model about
each other kind of operands, too. The result also has what a ranker trained for one regime loses in
the other, what choosing among the stock configs loses, cuBLAS's time over the model's choices, and
how fast the first choice is beside cuBLAS, with falling back to it and without.
"""

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from pathlib import Path

import numpy as np

from tilecast.data_collection.dataset.dataset import read_dataset
from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.data_collection.timing.protocol import regimes
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.candidates import candidates, stock_candidates
from tilecast.models.evaluation import baselines, evaluation
from tilecast.models.evaluation.baselines import RandomChoice
from tilecast.models.evaluation.evaluation import Fit, held_out
from tilecast.models.evaluation.nvmatmul import NvMatmulHeuristic
from tilecast.models.evaluation.regret import HeldOut, groups, summarise
from tilecast.models.learning.fit_deferral import SLOWER
from tilecast.models.learning.fit_ranker import fit_ranker
from tilecast.models.learning.folds import folds
from tilecast.models.learning.labels import (
    MAX_K,
    ProblemLabels,
    label_table,
    noise_floor,
)
from tilecast.models.learning.training_sets import dataset_hardware
from tilecast.models.runtime.objectives import OBJECTIVES
from tilecast.models.runtime.ranker import ConfigRanker

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import runner
from runner import DIGITS, SHOWN_K, Row, ratios, rounded, shown_regret

FIGURES = ("proposed", "geomean", "error", "p95", "max", "within_2_percent")

Table = Sequence[ProblemLabels]


def read(parser: ArgumentParser) -> tuple[Namespace, Table, Hardware, Row]:
    """What was asked; shipped labels, all or some; their GPU; what a result says of them."""
    parser.add_argument("--problems", type=int, metavar="N", help="only N of them, for a quick try")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options, dataset = parser.parse_args(), read_dataset(runner.DATA)
    table = label_table(dataset)
    count = min(options.problems or len(table), len(table))
    table = [table[i * len(table) // count] for i in range(count)]
    families = len({labels.problem.family for labels in table})
    facts = {"dataset": runner.facts(dataset), "problems": len(table), "families": families}
    return options, table, dataset_hardware(dataset), facts


def by_group(asked: HeldOut, table: Table, names: Sequence[str] = FIGURES) -> dict[str, Row]:
    """Figures by group of problems, each with one number per k."""
    found: dict[str, Row] = {}
    for row in summarise(asked, table):
        group = found.setdefault(row["problems"], {name: [] for name in names})
        for name in names:
            group[name].append(round(row[name], DIGITS))
    return found


def among(asked: HeldOut, wanted: np.ndarray) -> HeldOut:
    """The same of some problems alone; bool [problems]."""
    return replace(asked, picks=tuple(compress(asked.picks, wanted)))


def losses(asked: HeldOut, table: Table) -> Row:
    """Figures over all problems, each with one number per k."""
    return by_group(asked, table, FIGURES[1:])["all"]


def of_shown(rows: np.ndarray, table: Table) -> Row:
    """What some problems lose at each of `SHOWN_K`, given their regret at every k."""
    families = [labels.problem.family for labels in table]
    return shown_regret(rows[:, [k - 1 for k in SHOWN_K]], families)


def kinds(table: Table) -> dict[str, np.ndarray]:
    """Which problems are of each kind of operands, sorted by their texts; bool [problems]."""
    texts = np.array([one.problem.operands.text for one in table])
    return {str(text): texts == text for text in np.unique(texts)}


def by_operands(table: Table, asked: HeldOut) -> dict[str, Row]:
    """Figures by kind of operands, each with one number per k."""
    return {
        kind: losses(among(asked, wanted), list(compress(table, wanted)))
        for kind, wanted in kinds(table).items()
    }


def cross_regime(table: Table, asked: Mapping[str, HeldOut]) -> Row:
    """What the ranking for one power loses when the GPU runs in another.

    Only problems that were raced in both regimes count: on the others the power limit is out of
    reach and both are one. ``oracle`` is the config that is best by the truth of the first power.
    """
    raced = [i for i, one in enumerate(table) if len(regimes(one.problem)) > 1]
    problems = [table[i] for i in raced]
    best = {p: [int(one.cost(p, truth=True).argmin()) for one in problems] for p in OBJECTIVES}
    picks = {
        "oracle": {power: [(i,) for i in best[power]] for power in OBJECTIVES},
        ConfigRanker.name: {power: [asked[power].picks[i] for i in raced] for power in OBJECTIVES},
    }
    burst, sustained = (np.array(best[regime]) for regime in REGIMES)
    regret = {
        name: {
            made_for: {
                run: losses(HeldOut(name, run, tuple(found)), problems) for run in OBJECTIVES
            }
            for made_for, found in by_power.items()
        }
        for name, by_power in picks.items()
    }
    other_winner = round(float((burst != sustained).mean()), DIGITS)
    return {"problems": len(problems), "other_winner": other_winner, "regret": regret}


def beside_library(table: Table, asked: HeldOut) -> Row:
    """The time of cuBLAS over that of the best of the first k, for each of `SHOWN_K`.

    Timed with launches back to back in a graph, where a tilecast kernel begins before the one in
    front ends.
    """
    power, found = asked.objective, {}
    regime = "sustained" if power == "robust" else power
    library = [one.reference[regime] for one in table]
    for k in SHOWN_K:
        picked = [
            one.truth[regime][list(picks[:k])].min()
            for one, picks in zip(table, asked.picks, strict=True)
        ]
        slower = np.mean(np.array(library) < SLOWER * np.array(picked))
        found[k] = ratios(library, picked) | {"slower": round(float(slower), DIGITS)}
    return found


def among_stock(table: Table, gpu: Hardware) -> Row:
    """Regret of choosing among the stock configs, over the problems where all were measured.

    Arithmetic leaves some of them out, of few problems all: a heuristic that knows no other config
    then has nothing to propose, which is no judgement of its choice. The best is known in advance:
    no choice among them can beat it.
    """
    problems, indices = [], []
    for one in table:
        stock = stock_candidates(one.problem.operands, gpu, candidates(one.problem, gpu))
        if stock and set(stock) <= set(one.configs):
            problems.append(one)
            indices.append([one.configs.index(config) for config in stock])
    splits = evaluation.unfitted(problems)
    regret: Row = {}
    for power in OBJECTIVES:
        best = []
        for one, mine in zip(problems, indices, strict=True):
            cost = one.cost(power, truth=True)
            best.append(tuple(sorted(mine, key=cost.__getitem__)[:MAX_K]))
        asked = [HeldOut("best stock config", power, tuple(best))]
        fits: list[Fit] = [
            lambda table, objective: NvMatmulHeuristic(gpu),
            lambda table, objective: baselines.StockDefault(gpu),
        ]
        asked += [held_out(fit, problems, power, splits) for fit in fits]
        regret[power] = {one.heuristic: losses(one, problems) for one in asked}
    return {"problems": len(problems), "without": len(table) - len(problems), "regret": regret}


def main() -> None:
    """Score, and keep the result."""
    start = time.monotonic()
    options, table, gpu, settings = read(runner.parser(__file__, __doc__))
    whole, everything = folds(table), table
    linear = kinds(everything)[LINEAR_BF16.text]
    splits = [(seen, unseen[linear[unseen]]) for seen, unseen in whole]
    table = list(compress(everything, linear))
    problems = {one.problem for one in table}
    fits: list[Fit] = [
        baselines.fit_nearest,
        baselines.fit_fixed_subset,
        lambda table, objective: NvMatmulHeuristic(gpu),
        lambda table, objective: baselines.StockDefault(gpu),
        lambda table, objective: RandomChoice(),
    ]
    regret, of_operands, ours = {power: {} for power in OBJECTIVES}, {}, {}
    rankers: list[ConfigRanker] = []  # of every objective the same
    for power in OBJECTIVES:
        of_all = held_out(partial(fit_ranker, hardware=gpu), everything, power, whole, options.jobs)
        others = [held_out(fit, everything, power, splits, options.jobs) for fit in fits]
        rankers = [one for one in of_all.fitted if isinstance(one, ConfigRanker)]
        of_operands[power] = by_operands(everything, of_all)
        ours[power] = among(of_all, linear)
        for one in (ours[power], *(among(other, linear) for other in others)):
            for group, figures in by_group(one, table).items():
                regret[power].setdefault(group, {})[one.heuristic] = figures
    masks = groups([labels.problem for labels in table])
    figures = {
        "noise_floor": {power: noise_floor(table, power) for power in OBJECTIVES},
        "counts": {name: int(mask.sum()) for name, mask in masks.items() if mask.any()},
        "operand_counts": {name: int(mask.sum()) for name, mask in kinds(everything).items()},
        "regret": regret,
        "operands": of_operands,
        "cross_regime": cross_regime(table, ours),
        "library_over": {power: beside_library(table, ours[power]) for power in OBJECTIVES},
        "deferral": [
            rounded(row)
            for row in evaluation.speeds(rankers, everything, whole, problems, options.jobs)
        ],
        "among_stock": among_stock(table, gpu),
        "seconds": round(time.monotonic() - start, 1),
    }
    asked_about = {"problems": len(table), "families": len({one.problem.family for one in table})}
    shown = {"k": list(range(1, MAX_K + 1)), "fitted": settings["problems"]}
    runner.write(options, settings | asked_about | shown, figures)


if __name__ == "__main__":
    main()
