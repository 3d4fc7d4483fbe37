"""What does letting the model choose k gain over a fixed k, at equal numbers of compiled kernels?

``python benchmarks/learner/adaptive_k.py --jobs 2``. Nested: each fold of families is held out; on
the others the rankers are fitted as for shipping, and the rule that chooses k is learned from folds
among these. Nothing that is scored was seen by either. A fixed k of 3.4 stands for 4 on two
problems in five, drawn at random, and 3 on the rest.
"""

import sys
import time
import timeit
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilecast.heuristics.hardware import Hardware
from tilecast.models.evaluation.regret import error_of_mean
from tilecast.models.learning.fit_stopping import first_candidates, fit_stopping
from tilecast.models.learning.folds import folds
from tilecast.models.learning.held_out import ask, ask_about_unseen
from tilecast.models.learning.training import fit_rankers
from tilecast.models.runtime.objectives import OBJECTIVES
from tilecast.models.runtime.ranker import ModelScores
from tilecast.models.runtime.stopping import MAX_TAKEN as MOST
from tilecast.models.runtime.stopping import MEANS, StoppingRule, stop_features

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import runner
from runner import DIGITS, Row
from selection_regret import Table, read


@dataclass(frozen=True, eq=False)
class Asked:
    """What a ranking and the rule said of problems that neither had seen."""

    log_regret: np.ndarray
    """Log of the best measured slowdown of the first k; float64 [problems, MOST]."""
    sizes: dict[int, np.ndarray]  # by mean, the chosen k of each problem
    families: list[tuple[int, int]]  # of each problem

    def chosen(self, mean: int) -> np.ndarray:
        """Log regret at the chosen k, of each problem."""
        return np.take_along_axis(self.log_regret, self.sizes[mean][:, None] - 1, 1)[:, 0]

    def fixed(self, mean: int) -> tuple[np.ndarray, np.ndarray]:
        """Log regrets at the whole k below and above the mean of those chosen; their weights."""
        low, share = divmod(float(self.sizes[mean].mean()), 1)
        return self.log_regret[:, [int(low) - 1, int(low)]], np.array([1 - share, share])

    def regret(self, log_regret: np.ndarray, weights: np.ndarray) -> Row:
        """Geometric mean, its error and 95th percentile, of [problems, choices] and [choices]."""
        mean = np.expm1(log_regret @ weights)
        error = error_of_mean(mean[:, None], self.families)[0]
        every = np.broadcast_to(weights, log_regret.shape).ravel()
        p95 = np.quantile(log_regret.ravel(), 0.95, weights=every, method="inverted_cdf")
        found = {"geomean": np.expm1(np.log1p(mean).mean()), "p95": np.expm1(p95), "error": error}
        return {name: round(float(value), DIGITS) for name, value in found.items()}

    def compared(self, mean: int) -> Row:
        """Chosen k beside the fixed k of the same mean, and the fixed k that finds as much."""
        chosen, by_k = self.chosen(mean), self.log_regret.mean(0)
        # By k the series falls; where it reaches the level need not be whole.
        needed = np.interp(-chosen.mean(), -by_k, np.arange(1, MOST + 1))
        return {
            "mean": round(float(self.sizes[mean].mean()), DIGITS),
            "sizes": np.bincount(self.sizes[mean], minlength=MOST + 1)[1:].tolist(),
            "adaptive": self.regret(chosen[:, None], np.ones(1)),
            "fixed": self.regret(*self.fixed(mean)),
            "fixed_for_the_same": round(float(needed), 3),
        }


def scored(table: Table, gpu: Hardware, jobs: int) -> tuple[dict[str, Asked], list[StoppingRule]]:
    """Hold out each fold; learn rankers and rule without it; ask about it."""
    learned = []
    families = [labels.problem.family for labels in table]
    asked = {
        power: Asked(
            np.empty((len(table), MOST)), {m: np.empty(len(table), int) for m in MEANS}, families
        )
        for power in OBJECTIVES
    }
    for fitted, unseen in folds(table):
        known = [table[i] for i in fitted]
        splits = folds(known)
        ranker, *validated = fit_rankers(gpu, known, splits, jobs=jobs)
        parts = ask_about_unseen(validated, known, splits)
        every = [first_candidates(one, p) for part in parts for one in part for p in OBJECTIVES]
        learned.append(fit_stopping(every))
        for i in unseen.tolist():
            answered = ask(ranker, table[i])
            for power in OBJECTIVES:
                found = first_candidates(answered, power)
                row = np.log(np.minimum.accumulate(found.slowdowns))
                asked[power].log_regret[i] = np.pad(row, (0, MOST - len(row)), mode="edge")
                for mean, sizes in asked[power].sizes.items():
                    sizes[i] = learned[-1].size(found.features, mean)
    return asked, learned


def not_better(found: Mapping[str, Asked], table: Table, mean: int) -> Row:
    """The mean difference of log regret over all powers, and how often a resample has none."""
    differences = np.zeros(len(table))
    for asked in found.values():
        both, weights = asked.fixed(mean)
        differences += (asked.chosen(mean) - both @ weights) / len(found)
    share = runner.share_without_gain([labels.problem.family for labels in table], differences)
    return {"difference": round(float(differences.mean()), 6), "not_better": share}


def main() -> None:
    """Score, and keep the result."""
    start = time.monotonic()
    options, table, gpu, settings = read(runner.parser(__file__, __doc__))
    found, rules = scored(table, gpu, options.jobs)
    # What the trees say is known by then, from ranking.
    scores = np.zeros((2, MOST), np.float32)
    seconds = timeit.repeat(
        lambda: rules[0].size(stop_features(ModelScores(*scores)), MEANS[0]), number=1, repeat=1000
    )
    figures = {
        "means": MEANS,
        "fixed": {
            p: [a.regret(a.log_regret[:, [k]], np.ones(1)) for k in range(MOST)]
            for p, a in found.items()
        },
        "powers": {p: [asked.compared(mean) for mean in MEANS] for p, asked in found.items()},
        "over_powers": [not_better(found, table, mean) for mean in MEANS],
        "rules": [{"constant": rule.constant, "weights": rule.weights} for rule in rules],
        "rule_microseconds": round(1e6 * float(np.median(seconds)), 1),
        "seconds": round(time.monotonic() - start, 1),
    }
    runner.write(options, settings, figures)


if __name__ == "__main__":
    main()
