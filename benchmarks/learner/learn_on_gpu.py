"""Does a model learn on a GPU from what Inductor's autotuner measures there?

Four steps, the third of them on a GPU::

    python benchmarks/learner/learn_on_gpu.py known KNOWN.parquet
    tilecast train --data KNOWN.parquet --out MODEL
    python benchmarks/learner/learn_on_gpu.py times MODEL
    python benchmarks/learner/learn_on_gpu.py regret

The model knows three fifths of the families of the shipped data. It serves `torch.compile` with
bf16 problems of another fifth, five kernels each, in an order drawn once, until time is up; the
hook writes down what Inductor measures (``TILECAST_LEARN``, results/learn_on_gpu.jsonl). Then
rankers are fitted with these times and without, from four seeds each. Regret is by the shipped
data, over the problems that were compiled, and over the last fifth, of which the autotuner has seen
nothing; of all four, and at k = 1 what is left of it in each.
"""

import random
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tilecast.data_collection.dataset.autotuned import Autotuned, read_autotuned
from tilecast.data_collection.dataset.dataset import Dataset, read_dataset, write_dataset
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem
from tilecast.models.evaluation.evaluation import held_out, unfitted
from tilecast.models.evaluation.regret import regrets
from tilecast.models.learning.autotune_pairs import comparisons
from tilecast.models.learning.fit_ranker import fit_ranker
from tilecast.models.learning.folds import folds
from tilecast.models.learning.labels import ProblemLabels, label_table, spread
from tilecast.models.learning.training_sets import dataset_hardware
from tilecast.models.runtime.ranker import ConfigRanker

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import runner
from runner import Row
from selection_regret import Table, of_shown
from variants import linear

OWN = runner.RESULTS / "learn_on_gpu.jsonl"
POWERS = ("burst", "robust")
BACKENDS = "ATEN,TILECAST"
K = 5  # kernels that the autotuner times
SEEDS = range(4)
"""What is left of the regret differs by a quarter between seeds."""


class Part(NamedTuple):
    """What a fifth of the families is for, in one of the rounds."""

    known: Table
    production: Table
    unseen: Table


def parts(table: Table) -> list[Part]:
    """Each fifth in turn is production, and the one behind it unseen."""
    held = [unseen for _, unseen in folds(table)]
    found = []
    for i, production in enumerate(held):
        unseen = held[(i + 1) % len(held)]
        known = np.setdiff1d(np.arange(len(table)), [*production, *unseen])
        found.append(Part(*([table[j] for j in part] for part in (known, production, unseen))))
    return found


def regret(ranker: ConfigRanker, table: Table) -> np.ndarray:
    """Of some problems at every k; float64 [problems, MAX_K]."""
    asked = held_out(lambda *_: ranker, table, ranker.objective, unfitted(table))
    return regrets(asked, table)


def part_of(dataset: Dataset) -> Part:
    """What is known, what is production, and what stays unseen."""
    return parts(label_table(dataset))[0]


def write_known(path: Path) -> None:
    """Write what was measured of the known families."""
    dataset = read_dataset(runner.DATA)
    known = {labels.problem.row() for labels in part_of(dataset).known}
    keys = dataset.rows[list(PROBLEM_FIELDS)].itertuples(index=False, name=None)
    rows = dataset.rows.loc[[key in known for key in keys]]
    write_dataset(Dataset(rows, dataset.provenance), path)


def production(table: Sequence[ProblemLabels]) -> list[GemmProblem]:
    """Problems that Inductor gives to a GEMM of tilecast, in the order in which they come up."""
    found = [one.problem for one in table if one.problem.operands == LINEAR_BF16]
    found = [problem for problem in found if problem.m > 1 and problem.batch == 1]
    return random.Random(0).sample(found, len(found))


def compile_all(problems: Sequence[GemmProblem], model: Path, seconds: float) -> int:
    """Compile problems one after the other until time is up; returns how many."""
    import torch
    from torch._inductor.utils import fresh_cache

    from tilecast.inductor_hook import installed

    end = time.monotonic() + seconds
    options = {"max_autotune_gemm": True, "max_autotune_gemm_backends": BACKENDS}
    for done, problem in enumerate(problems):
        if time.monotonic() > end:
            return done
        torch._dynamo.reset()
        extents = ((problem.m, problem.k), (problem.n, problem.k))
        x, w = (torch.randn(e, device="cuda", dtype=torch.bfloat16) for e in extents)
        with torch.no_grad(), fresh_cache(), installed(K, model, learn=OWN):
            torch.compile(linear, dynamic=False, options=options)(x, w)
        print(f"{problem}: {end - time.monotonic():.0f} s left", flush=True)
    return len(problems)


def scored(found: Sequence[Autotuned]) -> Row:
    """Regret by power, ranker and part; by power and part, what is left of it by seed, at k = 1."""
    dataset = read_dataset(runner.DATA)
    part, gpu = part_of(dataset), dataset_hardware(dataset)
    compiled = {one.problem for one in found}
    asked = {
        "production": [labels for labels in part.production if labels.problem in compiled],
        "unseen": part.unseen,
    }
    seen = {"before": [], "after": comparisons(found, set(), gpu)}
    scores: Row = {"regret": {}, "left by seed": {}}
    for power in POWERS:
        rows: dict[str, dict[str, list[np.ndarray]]] = {}
        for name, compared in seen.items():
            rankers = [
                fit_ranker(part.known, power, hardware=gpu, compared=compared, seed=seed)
                for seed in SEEDS
            ]
            rows[name] = {w: [regret(r, table) for r in rankers] for w, table in asked.items()}
        scores["regret"][power] = {
            name: {
                which: of_shown(np.concatenate(each), [*asked[which]] * len(SEEDS))
                for which, each in by_part.items()
            }
            for name, by_part in rows.items()
        }
        scores["left by seed"][power] = {
            which: [
                round(spread(after[:, 0])["geomean"] / spread(before[:, 0])["geomean"], 3)
                for before, after in zip(*(rows[name][which] for name in seen), strict=True)
            ]
            for which in asked
        }
    return scores


def main() -> None:
    """Do one of the steps."""
    options: ArgumentParser = runner.parser(__file__, __doc__)
    steps = options.add_subparsers(dest="step", required=True)
    steps.add_parser("known").add_argument("path", type=Path)
    times = steps.add_parser("times")
    times.add_argument("model", type=Path)
    times.add_argument("--deadline", type=float, default=300, metavar="SECONDS")
    steps.add_parser("regret")
    asked: Namespace = options.parse_args()
    dataset = read_dataset(runner.DATA)
    if asked.step == "known":
        write_known(asked.path)
    elif asked.step == "times":
        problems = production(part_of(dataset).production)
        print(compile_all(problems, asked.model, asked.deadline), "problems")
    else:
        found = read_autotuned([OWN], dataset_hardware(dataset)).found
        settings = {"dataset": runner.facts(dataset), "k": K, "problems": len(found)}
        settings |= {"seeds": len(SEEDS)}
        settings |= {"measured": {"date": found[0].date, "versions": found[0].versions}}
        runner.write(asked, settings, scored(found))


if __name__ == "__main__":
    main()
