"""Does a model learn more, in equal device time, from problems that it chooses than from any?

``python benchmarks/choose_problems.py --deadline 7200``. A simulation on the shipped data set, with
no GPU. A third of the random families of `LINEAR_BF16` is held out. A ranker that knows `KNOWN`
problems of the others, or those of no random family alone, says in which order it would measure
what is left; it learns from those for which a batch of time suffices, says so anew, and learns from
a second batch. Strategies of a round begin with the same ranker and hold out the same families.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product

import numpy as np
import runner
from guided import replay_seconds
from runner import Row
from selection_regret import DIGITS, Table
from simulation import figures as of_rows
from simulation import regret
from tables import SHOWN_K

from tilecast.data_collection.dataset.dataset import Dataset, read_dataset
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.models.evaluation.regret import groups
from tilecast.models.features.features import FEATURE_NAMES, featurize
from tilecast.models.learning.labels import ProblemLabels, label_table
from tilecast.models.learning.training_sets import dataset_hardware
from tilecast.models.runtime.ranker import ConfigRanker

POWERS = ("burst", "robust")
GUIDE = "robust"  # whose ranker chooses
KNOWN = 100  # problems at the start, where it is of random families
BATCHES, BATCH = 2, 50
"""How often problems are chosen, and for the device time of how many of the mean problem."""
PARTS, DRAWS = 3, 2
"""Each part of the families is held out once; so often are they dealt, with another seed."""
STARTS = ("random families", "other families")
GAP_SECONDS = 0.005
"""Before each replay in the burst regime, by the protocol that the data were taken with."""
PROBLEM_SECONDS = 3.0
"""Device time of a problem beside its replays: operands, captures, warming up. With these it takes
five to six seconds (docs/train.md)."""
PLACE = ("log_m", "log_n", "log_k", "tiles", "waves", "wave_efficiency", "k_steps")
"""Features of a ranker's first choice that say where a problem lies."""
_PLACE = [FEATURE_NAMES.index(name) for name in PLACE]
_WAVES = PLACE.index("waves")


@dataclass(frozen=True)
class Round:
    """What is held out, what is known at the start, and the seed of all that is drawn."""

    start: str
    draw: int
    part: int


@dataclass(frozen=True, eq=False)
class Looked:
    """What a ranker says of problems without having measured them."""

    places: np.ndarray
    """float64 [problems, PLACE]: in standard deviations."""
    disagreement: np.ndarray
    """float64 [problems]: what the first choice of the trees loses by the network, and the other
    way round; logarithms, of those that the coarse steps leave."""

    @classmethod
    def of(cls, ranker: ConfigRanker, problems: Sequence[GemmProblem]) -> "Looked":
        """Look at all candidates of some problems."""
        places, disagreement = [], []
        for problem in problems:
            features = featurize(problem, candidates(problem, ranker.hardware), ranker.hardware)
            order = ranker.order(features)[: ranker.survivors]
            scores = ranker.model_scores(features[order])
            trees, network = scores.distance, scores.network
            lost = np.ptp(trees[[trees.argmin(), network.argmin()]])
            disagreement.append(lost + np.ptp(network[[trees.argmin(), network.argmin()]]))
            places.append(features[order[0], _PLACE])
        rows = np.array(places, np.float64)
        rows[:, _WAVES] = np.log2(rows[:, _WAVES])
        return cls(rows / rows.std(0), np.array(disagreement, np.float64))


@dataclass(frozen=True, eq=False)
class State:
    """What a strategy sees. Problems are those known, and behind them those left to measure."""

    ranker: ConfigRanker
    known: Table
    left: Table
    random: np.random.Generator

    @cached_property
    def looked(self) -> Looked:
        """What the ranker says of all of them."""
        return Looked.of(self.ranker, [one.problem for one in [*self.known, *self.left]])

    def by_distance(self, worth: np.ndarray) -> list[int]:
        """What is left, `farthest_first` by where its problems lie."""
        known, left = np.split(self.looked.places, [len(self.known)])
        return farthest_first(known, left, worth)

    @property
    def doubt(self) -> np.ndarray:
        """Disagreement of trees and network on what is left."""
        return self.looked.disagreement[len(self.known) :]


def farthest_first(known: np.ndarray, left: np.ndarray, worth: np.ndarray) -> list[int]:
    """Order points: the next has the largest worth times distance to the nearest before or known.

    Args:
        known: float64 [points, dimensions], one at least.
        left: the same of those to order.
        worth: float64 [points left].
    """
    nearest = np.linalg.norm(left[:, None] - known, axis=2).min(1)
    order: list[int] = []
    for _ in range(len(left)):
        free = np.where(np.isin(np.arange(len(left)), order), -np.inf, worth * nearest)
        order.append(int(free.argmax()))
        nearest = np.minimum(nearest, np.linalg.norm(left - left[order[-1]], axis=1))
    return order


Strategy = Callable[[State], Sequence[int] | np.ndarray]
"""Orders what is left, that which is to be measured first first."""


def _falling(values: np.ndarray) -> np.ndarray:
    return np.argsort(-values, kind="stable")


STRATEGIES: Mapping[str, Strategy] = {
    "random": lambda state: state.random.permutation(len(state.left)),
    "disagreement": lambda state: _falling(state.doubt),
    "distance": lambda state: state.by_distance(np.ones(len(state.left))),
    "disagreement x distance": lambda state: state.by_distance(state.doubt),
    # What nobody can know before measuring: a bound for all that look for doubt.
    "known regret": lambda state: _falling(regret(state.ranker, state.left)[:, 0]),
}


def device_seconds(dataset: Dataset) -> dict[GemmProblem, float]:
    """About the time that each problem of a data set took, compiling apart."""
    rows = dataset.rows
    replays = replay_seconds(rows, GAP_SECONDS).tolist()
    seconds: Counter[tuple] = Counter()
    keys = rows[list(PROBLEM_FIELDS)].itertuples(index=False, name=None)
    for key, time in zip(keys, replays, strict=True):
        seconds[key] += time
    return {GemmProblem.from_row(key): PROBLEM_SECONDS + time for key, time in seconds.items()}


@dataclass(frozen=True, eq=False)
class Simulation:
    """The problems that take part."""

    gpu: Hardware
    random: Table
    other: Table
    seconds: Mapping[GemmProblem, float]

    @classmethod
    def of(cls, dataset: Dataset) -> "Simulation":
        """Take those of `LINEAR_BF16` from a data set."""
        table = [one for one in label_table(dataset) if one.problem.operands == LINEAR_BF16]
        drawn = groups([one.problem for one in table])["random families"]
        random, other = ([table[i] for i in np.flatnonzero(mask)] for mask in (drawn, ~drawn))
        return cls(dataset_hardware(dataset), random, other, device_seconds(dataset))

    def dealt(self, asked: Round) -> tuple[Table, Table, Table]:
        """What is known, left and held out at the start of a round."""
        random = np.random.default_rng(asked.draw)
        names = random.permutation(sorted({one.problem.family for one in self.random})).tolist()
        unseen = set(map(tuple, names[asked.part :: PARTS]))
        held = [one for one in self.random if one.problem.family in unseen]
        pool = [one for one in self.random if one.problem.family not in unseen]
        if asked.start != STARTS[0]:
            return self.other, pool, held
        order = random.permutation(len(pool))
        known, left = np.sort(order[:KNOWN]), np.sort(order[KNOWN:])
        return [pool[i] for i in known], [pool[i] for i in left], held

    def measure(self, asked: Round) -> list[Row]:
        """Every strategy's regret on what is held out, by the batches that it has chosen."""
        known, left, held = self.dealt(asked)
        budget = BATCH * float(np.mean([self.time(one) for one in left]))
        start = self.fit(known, asked.draw)
        rows = [{"strategy": "none", "batches": 0, **self.scored(start, held, known)}]
        for name, strategy in STRATEGIES.items():
            state = State(start[GUIDE], known, left, np.random.default_rng(asked.draw))
            for batch in range(1, BATCHES + 1):
                order = [int(i) for i in strategy(state)]
                spent = np.cumsum([self.time(state.left[i]) for i in order])
                chosen = set(order[: int(np.searchsorted(spent, budget, side="right"))])
                table = [*state.known, *(state.left[i] for i in sorted(chosen))]
                rest = [one for i, one in enumerate(state.left) if i not in chosen]
                rankers = self.fit(table, asked.draw)
                facts = {"strategy": name, "batches": batch}
                rows.append({**facts, **self.scored(rankers, held, table)})
                state = State(rankers[GUIDE], table, rest, state.random)
        return rows

    def time(self, labels: ProblemLabels) -> float:
        """About the seconds that measuring a problem took."""
        return self.seconds[labels.problem]

    def fit(self, table: Table, seed: int) -> dict[str, ConfigRanker]:
        """The ranker of each power."""
        makers = {power: ConfigRanker(self.gpu, power, times=False, seed=seed) for power in POWERS}
        return {power: ranker.fit(table) for power, ranker in makers.items()}

    def scored(self, rankers: Mapping[str, ConfigRanker], held: Table, known: Table) -> Row:
        """How much was known, and what is lost on what was held out, by power and k."""
        by_power = {power: of_rows(regret(ranker, held)) for power, ranker in rankers.items()}
        seconds = round(sum(map(self.time, known)), 1)
        return {"problems": len(known), "seconds": seconds, "regret": by_power}


def figures(rows: Sequence[Row]) -> Row:
    """Means over the rounds of each start, and over all."""
    found: Row = {"rounds": len({row["round"] for row in rows})}
    for start in (*STARTS, "all"):
        part = [row for row in rows if start == "all" or row["round"].startswith(start)]
        asked = dict.fromkeys((row["batches"], row["strategy"]) for row in part)
        found[start] = [
            {"strategy": name, "batches": batches, **summary(part, name, batches)}
            for batches, name in sorted(asked, key=lambda one: one[0])
        ]
    return found


def summary(rows: Sequence[Row], strategy: str, batches: int) -> Row:
    """Means of one strategy after some batches, and how far it is from random choice."""
    of, random = (
        {r["round"]: r for r in rows if (r["strategy"], r["batches"]) == (name, batches)}
        for name in (strategy, "random")
    )
    lost = {name: by_k(row) for name, row in of.items()}
    more = np.array([lost[name] - by_k(random[name]) for name in lost if name in random])
    counts = {
        name: round(float(np.mean([row[name] for row in of.values()])), 1)
        for name in ("problems", "seconds")
    }
    found: Row = counts | {"regret": by_power(np.mean([*lost.values()], axis=0))}
    if len(more) > 1 and strategy != "random":
        found["over_random"] = {
            "mean": by_power(more.mean(0)),
            "error": by_power(more.std(0, ddof=1) / len(more) ** 0.5),
            "rounds_ahead": by_power((more < 0).sum(0)),
        }
    return found


def by_k(row: Row) -> np.ndarray:
    """Regret of a row, geometric mean over its problems; float64 [POWERS, SHOWN_K]."""
    return np.array([[row["regret"][p][str(k)]["geomean"] for k in SHOWN_K] for p in POWERS])


def by_power(values: np.ndarray) -> Row:
    """Such an array as a result has it."""
    rounded = np.round(values, DIGITS).tolist()
    return {
        p: dict(zip(map(str, SHOWN_K), row, strict=True))
        for p, row in zip(POWERS, rounded, strict=True)
    }


def rounds() -> dict[str, Round]:
    """All rounds by name; any first few of them deal with every start and part alike."""
    every = product(range(DRAWS), range(PARTS), STARTS)
    return {f"{s} {d} {p}": Round(s, d, p) for d, p, s in every}


def main() -> None:
    """Simulate round by round, and keep each."""
    dataset = read_dataset(runner.DATA)
    simulation = Simulation.of(dataset)

    settings = {
        "dataset": runner.facts(dataset),
        "problems": {"random families": len(simulation.random), "other": len(simulation.other)},
        "guide": GUIDE,
        "batch": BATCH,
        "place": PLACE,
    }
    measuring = partial(nullcontext, simulation.measure)
    runner.Sweep("round", rounds(), measuring, figures, 120.0, settings).main(__file__, __doc__)


if __name__ == "__main__":
    main()
