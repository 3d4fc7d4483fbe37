"""Score every heuristic on families of problems that it has not seen: the README's main table.

All of them pass through `tilecast.models.evaluation`: ours and the baselines, at equal numbers of
distinct kernels, in each power regime and for the worst of both. On top, what a ranker trained for
one regime loses in the other, and what choosing among the stock kernels loses where these were all
measured. Writes ``benchmarks/results/selection_regret.json``, from which ``benchmarks/tables.py``
renders tables and ``benchmarks/regret_figure.py`` a figure.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import cast

import numpy as np
import result
from tables import REGRET_TABLES, RESULT, compact

from tilecast.data_collection.dataset import Dataset, read_dataset
from tilecast.data_collection.measurement import REGIMES
from tilecast.data_collection.protocol import regimes
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.files import write_atomically
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.baselines import (
    BestFixedSubset,
    NearestNeighbour,
    RandomChoice,
    StockDefault,
    stock_candidates,
)
from tilecast.models.evaluation import (
    BUCKETS,
    MAX_K,
    HeldOut,
    MakeHeuristic,
    evaluate,
    held_out,
    summarise,
)
from tilecast.models.labels import POWERS, ProblemLabels, label_table
from tilecast.models.nvmatmul import NvMatmulHeuristic
from tilecast.models.ranker import ConfigRanker
from tilecast.models.training import dataset_hardware
from tilecast.models.tree_linear import TreeLinearRanker

DATA = Path(__file__).parents[1] / "data_collection" / "data" / "h200_bf16_rcr.parquet"
PILOT = RESULT.with_name("space_pilot_base.parquet")
FIGURES = ("proposed", "geomean", "p95", "max", "within_2_percent")
DIGITS = 5


Answers = dict[str, dict[GemmProblem, list[KernelConfig]]]
"""Power to problem to the configs that were proposed for it."""


class Remembering(ConfigRanker):
    """Our ranker, keeping what it answered: `evaluate` asks about each problem once, held out."""

    def __init__(self, gpu: Hardware, power: str, answers: Answers):
        """Take the place for the answers."""
        super().__init__(gpu, power)
        self.answers = answers

    def rank(
        self, problem: GemmProblem, candidates: Sequence[KernelConfig], *, limit: int | None = None
    ) -> list[KernelConfig]:
        """Rank, and keep the answer."""
        ranking = super().rank(problem, candidates, limit=limit)
        self.answers.setdefault(self.power, {})[problem] = ranking
        return ranking


def makers(gpu: Hardware, answers: Answers) -> list[MakeHeuristic]:
    """Everything that is scored, ours first."""
    return [
        lambda power: Remembering(gpu, power, answers),
        lambda power: TreeLinearRanker(gpu, power),
        NearestNeighbour,
        BestFixedSubset,
        lambda power: NvMatmulHeuristic(gpu, power),
        lambda power: StockDefault(gpu, power),
        RandomChoice,
    ]


def by_k(rows: Sequence[dict]) -> dict[str, dict]:
    """Rows of `evaluate`: power, then problems, then heuristic, then figure, one number per k."""
    nested: dict[str, dict] = {}
    for row in rows:
        group = nested.setdefault(row["power"], {}).setdefault(row["problems"], {})
        series = group.setdefault(row["heuristic"], {name: [] for name in FIGURES})
        for name in FIGURES:
            series[name].append(round(row[name], DIGITS))
    return nested


def cross_regime(table: Sequence[ProblemLabels], answers: Answers) -> dict[str, object]:
    """What a ranking made for one power loses when the card runs in another.

    Only problems that were raced in both regimes count: on the others the power limit is out of
    reach and both are one. ``oracle`` is the config that is best by the truth of the first power.
    """
    problems = [labels for labels in table if len(regimes(labels.problem)) > 1]
    losses: dict[str, dict] = {"oracle": {}, ConfigRanker.name: {}}
    for made_for in POWERS:
        picks = {
            "oracle": [(_best(labels, made_for),) for labels in problems],
            ConfigRanker.name: [
                tuple(labels.configs.index(c) for c in answers[made_for][labels.problem])
                for labels in problems
            ],
        }
        for name, chosen in picks.items():
            losses[name][made_for] = {
                run_in: _losses(HeldOut(name, run_in, tuple(chosen)), problems) for run_in in POWERS
            }
    changed = [len({_best(labels, regime) for regime in REGIMES}) > 1 for labels in problems]
    return {
        "problems": len(problems),
        "other_winner": round(float(np.mean(changed)), DIGITS),
        "regret": losses,
    }


def _best(labels: ProblemLabels, power: str) -> int:
    return int(labels.cost(power, truth=True).argmin())


class BestStock:
    """The fastest of the stock kernels, known in advance: what no choice among them can beat."""

    name = "best stock kernel"

    def __init__(self, gpu: Hardware, power: str, table: Sequence[ProblemLabels]):
        """Remember the truth of a table."""
        self.gpu = gpu
        self.power = power
        self.truth = {labels.problem: labels for labels in table}

    def rank(
        self, problem: GemmProblem, candidates: Sequence[KernelConfig], *, limit: int | None = None
    ) -> list[KernelConfig]:
        """The stock kernels among the candidates, fastest first."""
        labels = self.truth[problem]
        cost = dict(zip(labels.configs, labels.cost(self.power, truth=True), strict=True))
        found = set(stock_candidates(problem.operands, self.gpu, candidates).values())
        return sorted(found, key=lambda config: cost[config])[:limit]


def among_stock(table: Sequence[ProblemLabels], gpu: Hardware) -> dict[str, object]:
    """Regret of choosing among the stock kernels, over the problems that have one to choose.

    The space leaves some stock kernels out, and arithmetic others: a heuristic that knows no other
    kernel then has little or nothing to propose, which is no judgement of its choice.
    """
    having = [
        labels for labels in table if stock_candidates(labels.problem.operands, gpu, labels.configs)
    ]
    makers: list[MakeHeuristic] = [
        lambda power: BestStock(gpu, power, having),
        lambda power: NvMatmulHeuristic(gpu, power),
        lambda power: StockDefault(gpu, power),
    ]
    everything = np.arange(len(having))
    splits = [(everything[:0], everything)]
    return {
        "problems": len(having),
        "without": len(table) - len(having),
        "regret": {
            power: {
                scored.heuristic: _losses(scored, having)
                for scored in (held_out(make, having, power, splits) for make in makers)
            }
            for power in POWERS
        },
    }


def _losses(asked: HeldOut, problems: Sequence[ProblemLabels]) -> dict[str, list[float]]:
    rows = [row for row in summarise(asked, problems) if row.problems == "all"]
    return {name: [round(getattr(row, name), DIGITS) for row in rows] for name in FIGURES[1:]}


def thinned(table: list[ProblemLabels], count: int | None) -> list[ProblemLabels]:
    """``count`` problems spread evenly over the table, for a quick try."""
    if count is None or count >= len(table):
        return table
    return [table[i * len(table) // count] for i in range(count)]


def described(dataset: Dataset) -> dict[str, object]:
    """Where the measurements come from."""
    runs = dataset.provenance["runs"]
    gpus = [gpu for run in runs for gpu in run["gpus"]]
    return {
        "sha256": dataset.digest,
        "rows": len(dataset.rows),
        "gpu": sorted({gpu["name"] for gpu in gpus}),
        "driver": sorted({gpu["driver_version"] for gpu in gpus}),
        "versions": runs[0]["versions"],
        "dates": [run["date"] for run in runs],
    }


def main() -> None:
    """Score, write the result, print the tables and, last, one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--problems", type=int, metavar="N", help="only N of them, for a quick try")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    start = time.monotonic()
    dataset = read_dataset(options.data)
    gpu = dataset_hardware(dataset)
    table = thinned(label_table(dataset), options.problems)
    answers: Answers = {}
    scored = evaluate(makers(gpu, answers), table, POWERS, options.jobs)
    rows = cast("list[dict]", scored.pop("regret"))
    counts = {row["problems"]: row["count"] for row in rows}
    document = {
        "dataset": described(dataset),
        **scored,
        "counts": {name: counts[name] for name in ("all", *BUCKETS) if name in counts},
        "k": list(range(1, MAX_K + 1)),
        "regret": by_k(rows),
        "cross_regime": cross_regime(table, answers),
        "among_stock": {
            "data set": among_stock(table, gpu),
            "pilot": among_stock(label_table(read_dataset(PILOT)), gpu),
        },
    }
    document["seconds"] = round(time.monotonic() - start, 1)
    scoring = {name: version(name) for name in ("scikit-learn", "nvidia-matmul-heuristics")}
    document["provenance"] = result.provenance() | {"scoring": scoring}
    write_atomically(options.out, lambda path: path.write_text(compact(document)))
    for render in REGRET_TABLES.values():
        print(render(document), end="\n\n")
    ours = {power: document["regret"][power]["all"][ConfigRanker.name] for power in POWERS}
    summary = {power: {name: ours[power][name][:5] for name in FIGURES[1:]} for power in POWERS}
    print(
        json.dumps({"seconds": document["seconds"], "out": str(options.out), "tilecast": summary})
    )


if __name__ == "__main__":
    main()
