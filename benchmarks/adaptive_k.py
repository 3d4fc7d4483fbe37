"""What letting the model choose k gains over a fixed k, at equal numbers of compiled kernels.

Nested: each fold of families is held out; on the others the rankers are fitted as for shipping, and
the rule that chooses k is learned from folds among these. Nothing that is scored was seen by
either. A fixed k of 3.4 stands for 4 on two problems in five, drawn at random, and 3 on the rest.
``benchmarks/tables.py`` renders ``benchmarks/results/adaptive_k.json`` as a table.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import result
from selection_regret import DATA, described, thinned

from tilecast.data_collection.dataset import read_dataset
from tilecast.heuristics.hardware import Hardware
from tilecast.models.evaluation import folds
from tilecast.models.labels import POWERS, ProblemLabels, label_table
from tilecast.models.shortlist import MEANS, MOST, Head, ShortlistRule, doubts, head
from tilecast.models.training import dataset_hardware, fit_rankers, shortlist_rule

DIGITS = 5
RESAMPLES = 10_000
"""Draws of families with replacement, that say how far a difference is to be trusted."""
DECISIONS = 1000
"""Timed, for what one takes."""


@dataclass(frozen=True, eq=False)
class Asked:
    """What rule and ranking said of problems that neither had seen."""

    rules: Sequence[ShortlistRule]
    """Of each problem, the rule that was learned without its family."""
    heads: Sequence[Head]
    """Of each problem, the head of its ranking."""

    def log_regret(self) -> np.ndarray:
        """Log of the best measured slowdown of the first k; float64 [problems, MOST]."""
        rows = [np.log(np.minimum.accumulate(h.slowdowns)) for h in self.heads]
        return np.stack([np.pad(row, (0, MOST - len(row)), mode="edge") for row in rows])

    def sizes(self, mean: int) -> np.ndarray:
        """The chosen k of each problem."""
        pairs = zip(self.rules, self.heads, strict=True)
        return np.array([rule.size(h.doubts, mean) for rule, h in pairs])


def ask(
    table: Sequence[ProblemLabels], gpu: Hardware, jobs: int
) -> tuple[dict[str, Asked], list[ShortlistRule]]:
    """Hold out each fold; learn rankers and rule without it; ask about it."""
    rules: dict[int, ShortlistRule] = {}
    heads: dict[str, dict[int, Head]] = {power: {} for power in POWERS}
    learned = []
    for fitted, asked in folds(table):
        known = [table[i] for i in fitted]
        splits = folds(known)
        inner = [[known[i] for i in seen] for seen, _ in splits]
        rankers, *without = fit_rankers(gpu, [known, *inner], jobs=jobs)
        learned.append(shortlist_rule(without, known, splits))
        for i in asked.tolist():
            rules[i] = learned[-1]
            for power, ranker in rankers.items():
                heads[power][i] = head(ranker, table[i])
    order = range(len(table))
    everyone = {
        power: Asked([rules[i] for i in order], [found[i] for i in order])
        for power, found in heads.items()
    }
    return everyone, learned


def fixed(log_regret: np.ndarray, mean: float) -> tuple[np.ndarray, np.ndarray]:
    """A fixed k that need not be whole: log regrets of every problem at both k, and their weights.

    Args:
        log_regret: float64 [problems, MOST].
        mean: k, 1 or more and below `MOST`.
    """
    low = int(mean)
    share = np.repeat([1 - (mean - low), mean - low], len(log_regret))
    return log_regret[:, [low - 1, low]].T.ravel(), share


def figures(log_regret: np.ndarray, weights: np.ndarray | None = None) -> dict[str, float]:
    """Geometric mean and 95th percentile of regret."""
    weights = np.ones(len(log_regret)) if weights is None else weights
    p95 = np.quantile(log_regret, 0.95, weights=weights, method="inverted_cdf")
    return {
        "geomean": round(float(np.expm1(np.average(log_regret, weights=weights))), DIGITS),
        "p95": round(float(np.expm1(p95)), DIGITS),
    }


def compared(log_regret: np.ndarray, sizes: np.ndarray) -> dict[str, object]:
    """Chosen k beside the fixed k of the same mean, and the fixed k that would find as much."""
    chosen = log_regret[np.arange(len(sizes)), sizes - 1]
    return {
        "mean": round(float(sizes.mean()), DIGITS),
        "sizes": np.bincount(sizes, minlength=MOST + 1)[1:].tolist(),
        "adaptive": figures(chosen),
        "fixed": figures(*fixed(log_regret, float(sizes.mean()))),
        "fixed_for_the_same": round(_needed(log_regret.mean(0), float(chosen.mean())), 3),
    }


def _needed(by_k: np.ndarray, level: float) -> float:
    """The k, not always whole, at which a falling series reaches a level."""
    return float(np.interp(-level, -by_k, np.arange(1, len(by_k) + 1)))


def not_better(
    found: dict[str, Asked], table: Sequence[ProblemLabels], mean: int
) -> dict[str, float]:
    """The mean difference of log regret over all powers, and how often a resample has none.

    Families are drawn, not problems: those of a family are right or wrong together.
    """
    differences = np.zeros(len(table))
    for asked in found.values():
        log_regret, sizes = asked.log_regret(), asked.sizes(mean)
        both, weights = fixed(log_regret, float(sizes.mean()))
        expected = (both * weights).reshape(2, -1).sum(0)
        differences += (log_regret[np.arange(len(sizes)), sizes - 1] - expected) / len(found)
    names = sorted({labels.problem.family for labels in table})
    family = [names.index(labels.problem.family) for labels in table]
    sums = np.bincount(family, differences)
    draws = np.random.default_rng(0).integers(len(sums), size=(RESAMPLES, len(sums)))
    return {
        "difference": round(float(differences.mean()), 6),
        "not_better": float((sums[draws].sum(1) >= 0).mean()),
    }


def rule_microseconds(rule: ShortlistRule) -> float:
    """Median time of one decision; what the trees say is known by then, from ranking."""
    distance, order = np.zeros((2, MOST), np.float32)
    times = []
    for _ in range(DECISIONS):
        start = time.perf_counter()
        rule.size(doubts(distance, order), MEANS[0])
        times.append(time.perf_counter() - start)
    return round(1e6 * float(np.median(times)), 1)


def main() -> None:
    """Score, and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, metavar="N", help="only N of them, for a quick try")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    result.add_out(parser)
    options = parser.parse_args()
    start = time.monotonic()
    dataset = read_dataset(DATA)
    table = thinned(label_table(dataset), options.problems)
    found, learned = ask(table, dataset_hardware(dataset), options.jobs)
    regrets = {power: asked.log_regret() for power, asked in found.items()}
    document = {
        "dataset": described(dataset),
        "problems": len(table),
        "families": len({labels.problem.family for labels in table}),
        "means": list(MEANS),
        "fixed": {
            power: [figures(log_regret[:, k]) for k in range(MOST)]
            for power, log_regret in regrets.items()
        },
        "powers": {
            power: [compared(regrets[power], asked.sizes(mean)) for mean in MEANS]
            for power, asked in found.items()
        },
        "over_powers": [not_better(found, table, mean) for mean in MEANS],
        "rules": [{"constant": rule.constant, "weights": rule.weights} for rule in learned],
        "rule_microseconds": rule_microseconds(learned[0]),
        "seconds": round(time.monotonic() - start, 1),
    }
    result.finish(document, options.out)


if __name__ == "__main__":
    main()
