"""What does a model lose on the locked set, by which nothing was ever chosen?

``python benchmarks/learner/locked_set.py`` scores the shipped model, ``--model FOLDER`` another
one. `DATA` is what ``measure_locked_set.py`` measured. The model is asked about all candidates, as
it is in use.

A set that is asked again and again is one that choices were made by. So every time that it is asked
is written down in the result, with date, commit and the model's digest.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import numpy as np

from tilecast.data_collection.dataset.dataset import read_dataset
from tilecast.data_collection.problems.suites import LOCKED_PROBLEMS, suite
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates, families_in
from tilecast.models.evaluation.regret import HeldOut, by_rows, error_of_mean, regrets
from tilecast.models.features.features import leading
from tilecast.models.learning.fit_deferral import SLOWER, speed
from tilecast.models.learning.labels import MAX_K, ProblemLabels, label_table, noise_floor
from tilecast.models.learning.training_sets import dataset_hardware
from tilecast.models.runtime.learned import LearnedHeuristic, model_for
from tilecast.models.runtime.objectives import OBJECTIVES
from tilecast.models.runtime.ranker import ENTRANTS, SURVIVORS

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import runner
from measure_locked_set import DATA
from runner import SHOWN_K, Row
from selection_regret import of_shown

ALL, HALF_EMPTY = "all", "m 65 to 256"
REGRET_BARS = {1: 0.007, 3: 0.002, 5: 0.001}
HALF_EMPTY_BAR, WORST_BAR = 0.01, 0.08  # at k = 1
BEST_SPEED, FIRST_SPEED = 1.08, 1.07  # over cuBLAS, on average
SLOWER_BAR = 0.01  # share of problems below 0.97x

Table = Sequence[ProblemLabels]


@dataclass(frozen=True)
class Asked:
    """What a model said for one objective."""

    picks: HeldOut
    """The first kernels of each problem that were measured."""
    deferred: np.ndarray
    """Whether it falls back to cuBLAS without a benchmark; bool [problems]."""
    missing: int
    """Kernels of a first five that were not measured, or failed."""


def ask(heuristic: LearnedHeuristic, table: Table, gpu: Hardware) -> Asked:
    """Ask about all candidates of every problem."""
    picks, deferred, missing = [], [], 0
    for labels in table:
        every = heuristic.candidates(labels.problem)
        ranking = [*heuristic.rank(labels.problem, every, limit=SURVIVORS)]
        measured = [labels.configs.index(one) for one in ranking if one in labels.configs]
        missing += sum(one not in labels.configs for one in ranking[: max(SHOWN_K)])
        picks.append(tuple(measured[:MAX_K]))
        deferred.append(heuristic.first(labels.problem, every).deferred)
    found = HeldOut(heuristic.name, heuristic.objective, tuple(picks))
    return Asked(found, np.array(deferred), missing)


def fastest(labels: ProblemLabels, power: str) -> int:
    """Which of a problem's configs is the fastest, by the times that scores count."""
    return int(labels.cost(power, truth=True).argmin())


def masks(problems: Sequence[GemmProblem]) -> dict[str, np.ndarray]:
    """Which problems are reported together, by name; bool [problems]."""
    sources = [row[-1] for row in json.loads(LOCKED_PROBLEMS.read_text())]
    source = dict(zip(suite("locked"), sources, strict=True))
    drawn = np.array([source[problem] == "random" for problem in problems])
    linear = np.array([problem.operands == LINEAR_BF16 for problem in problems])
    found = {ALL: np.ones(len(problems), bool), **by_rows(problems)}
    return found | {"random sizes": drawn, "layers of models": ~drawn, "other operands": ~linear}


def beside_library(logs: np.ndarray, deferred: np.ndarray, table: Table) -> Row:
    """Speeds over cuBLAS, where that was timed; ``logs`` of these where nothing is deferred."""
    timed = np.isfinite(logs)
    logs, deferred = logs[timed], deferred[timed]
    families = [labels.problem.family for labels in compress(table, timed)]
    gained = np.where(deferred, 0.0, logs)[:, None]
    error = error_of_mean(np.expm1(gained), families)[0]
    found = {"problems": len(logs), **speed(logs, deferred), "error": float(error)}
    return {name: round(value, 5) for name, value in found.items()}


def of_group(asked: Asked, table: Table, wanted: np.ndarray) -> Row:
    """Regret, and speeds beside cuBLAS of the best kernel and of what runs without a benchmark."""
    table, deferred = list(compress(table, wanted)), asked.deferred[wanted]
    picks = [*compress(asked.picks.picks, wanted)]
    power = asked.picks.objective
    lost = regrets(HeldOut(asked.picks.heuristic, power, tuple(picks)), table)
    over = [labels.library_over(power) for labels in table]
    best = [one[fastest(labels, power)] for one, labels in zip(over, table, strict=True)]
    first = [one[pick[0]] for one, pick in zip(over, picks, strict=True)]
    never = np.zeros(len(table), bool)
    return {
        "problems": len(table),
        "regret": of_shown(lost, table),
        "best over cuBLAS": beside_library(np.log(best), never, table),
        "first or cuBLAS over cuBLAS": beside_library(np.log(first), deferred, table),
    }


def bars(by_group: Row) -> dict[str, bool]:
    """Which of the aims an objective reaches."""
    every, half_empty = by_group[ALL], by_group.get(HALF_EMPTY)
    best, first = every["best over cuBLAS"], every["first or cuBLAS over cuBLAS"]
    found = {
        f"regret@{k} at most {most:.1%}": every["regret"][str(k)]["geomean"] <= most
        for k, most in REGRET_BARS.items()
    }
    if half_empty:
        reached = half_empty["regret"]["1"]["geomean"] <= HALF_EMPTY_BAR
        found[f"regret@1 at most {HALF_EMPTY_BAR:.0%} with {HALF_EMPTY}"] = reached
    slower = f"below {SLOWER}x on at most {SLOWER_BAR:.0%}"
    return found | {
        f"worst at k = 1 at most {WORST_BAR:.0%}": every["regret"]["1"]["max"] <= WORST_BAR,
        f"best at least {BEST_SPEED}x cuBLAS": best["geomean"] >= BEST_SPEED,
        f"best {slower}": best["slower"] <= SLOWER_BAR,
        f"first or cuBLAS at least {FIRST_SPEED}x": first["geomean"] >= FIRST_SPEED,
        f"first or cuBLAS {slower}": first["slower"] <= SLOWER_BAR,
    }


def by_chance(table: Table, gpu: Hardware) -> int:
    """On how many problems the fastest kernel is one that was drawn: what was left out may win."""
    found = 0
    for labels in table:
        families = families_in(labels.candidates.table)
        every = candidates(labels.problem, gpu, families=families)
        entrants, _ = leading(labels.problem, every, gpu, ENTRANTS)
        best = labels.configs[fastest(labels, "robust")]
        found += every.index(best) not in entrants
    return found


def scored(model: Path | None, table: Table, gpu: Hardware) -> Row:
    """All figures of a model, None for the shipped one."""
    artifact, found = model_for(gpu, model), {}
    groups = {name: mask for name, mask in masks([x.problem for x in table]).items() if mask.any()}
    missing = {}
    for power in OBJECTIVES:
        asked = ask(LearnedHeuristic(artifact, power), table, gpu)
        found[power] = {name: of_group(asked, table, mask) for name, mask in groups.items()}
        missing[power] = asked.missing
    return {
        "gpu": gpu.name,
        "model": artifact.digest,
        "regret and speed": found,
        "bars": {power: bars(by_group) for power, by_group in found.items()},
        "noise_floor": {power: noise_floor(table, power) for power in OBJECTIVES},
        "best was drawn by chance": by_chance(table, gpu),
        "families of the best": Counter(
            labels.configs[fastest(labels, "robust")].family for labels in table
        ),
        "not measured of the first five": missing,
    }


def commit() -> str:
    """The commit of the working tree, with a + where files differ from it."""
    return subprocess.check_output(
        ["git", "describe", "--always", "--abbrev=12", "--dirty=+"],
        cwd=Path(__file__).parent,
        text=True,
    ).strip()


def main() -> None:
    """Score, and write down that it was done."""
    parser = runner.parser(__file__, __doc__)
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="default: the shipped one")
    parser.add_argument("--data", type=Path, default=DATA, help="default: %(default)s")
    options = parser.parse_args()
    dataset = read_dataset(options.data)
    figures = scored(options.model, label_table(dataset), dataset_hardware(dataset))
    now, short = runner.provenance(), {}
    for power, found in figures["regret and speed"].items():
        short[power] = [found[ALL]["regret"][str(k)]["geomean"] for k in SHOWN_K]
    with runner.changing(options) as document:
        document["provenance"].append(now)
        run = {"run": len(document["provenance"]) - 1, "date": now["date"], "commit": commit()}
        document["rows"].append(run | {"model": figures["model"], "regret": short})
        document["settings"] = runner.facts(dataset)
        document["figures"] = figures | {"asked": len(document["rows"])}
        shown = {"out": str(options.out), "asked": len(document["rows"]), "regret": short}
    print(json.dumps(shown | {"bars": figures["bars"]}))


if __name__ == "__main__":
    main()
