"""What does a model gain from what Inductor's autotuner measured, and does it lose elsewhere?

``python benchmarks/learn_from_autotuning.py``. A simulation on the shipped data set, with no GPU.
Three fifths of the families are known, one fifth is production and one stays unseen; each fifth
takes each part once. A ranker of what is known names its first five configs for each problem of
production; their times in ``burst`` are revealed, each with an error drawn from those that were
measured where choices are timed in graphs (results/inductor_timing.json, problems of like run
time), and a ranker is fitted anew. Regret is by the truth, over all problems while they are
production, and while they stay unseen. Real errors of like configs may be alike; here each is drawn
by itself.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import runner
from inductor_timing import OURS, K
from runner import Row
from selection_regret import DIGITS, Table, read
from tables import SHOWN_K

from tilecast.data_collection.autotuned import Autotuned
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.heuristic import rank
from tilecast.models.comparisons import comparisons
from tilecast.models.evaluation import folds
from tilecast.models.labels import POWERS, ProblemLabels
from tilecast.models.ranker import ConfigRanker
from tilecast.models.regret import MAX_K, HeldOut, regrets, spread

POWER = "robust"  # of which further rankers are scored
BANDS = (0.0, 20.0, 60.0, np.inf)
"""Microseconds of the fastest of five; errors are drawn among those of the same band."""


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


def timed() -> list[Row]:
    """What choices were given on problems of results/inductor_timing.json, and careful times."""
    return json.loads((runner.RESULTS / "inductor_timing.json").read_text())["rows"]


def errors() -> list[np.ndarray]:
    """For each band the logarithms of a choice's time over a careful one, less the problem's mean.

    That mean takes part of the error along, which is given back.
    """
    bands: list[list[np.ndarray]] = [[] for _ in BANDS[1:]]
    for row in timed():
        careful = np.log(row["careful"])
        over = np.log(row[OURS]) - careful
        centred = (over - over.mean(1, keepdims=True)) * np.sqrt(K / (K - 1))
        bands[band_of(min(row["careful"]))].append(centred.ravel())
    return [np.concatenate(band) for band in bands]


def band_of(microseconds: float) -> int:
    """Which of `BANDS` a run time lies in."""
    return int(np.searchsorted(BANDS, microseconds, side="right")) - 1


def first(ranker: ConfigRanker, labels: ProblemLabels, count: int) -> list[int]:
    """The places of the configs that a ranker prefers, best first."""
    found = rank(ranker, labels.problem, labels.candidates, limit=count)
    return [labels.candidates.index(config) for config in found]


@dataclass(frozen=True)
class Revealed:
    """What Inductor would have measured of one problem of production."""

    labels: ProblemLabels
    places: list[int]
    microseconds: np.ndarray

    @classmethod
    def of(
        cls, ranker: ConfigRanker, labels: ProblemLabels, drawn: Callable[[float, int], np.ndarray]
    ) -> "Revealed":
        """The first of a ranking, with errors as drawn for a run time and a number of configs."""
        places = first(ranker, labels, K)
        times = labels.truth["burst"][places]
        return cls(labels, places, times * np.exp(drawn(times.min(), len(places))))

    def autotuned(self) -> Autotuned:
        """As the hook writes it down."""
        configs = [self.labels.configs[i] for i in self.places]
        times = dict(zip(configs, (self.microseconds / 1000).tolist(), strict=True))
        return Autotuned(self.labels.problem, times, None, "", "", {}, "")

    def as_labels(self) -> ProblemLabels:
        """As if a collector had measured these configs and no other was a candidate."""
        times = dict.fromkeys(self.labels.label, self.microseconds)
        configs = tuple(self.labels.configs[i] for i in self.places)
        chosen = self.labels.candidates.take(self.places)
        return ProblemLabels(
            self.labels.problem, configs, times, times, self.labels.reference, chosen
        )


def rankers(power: str, part: Part, gpu: Hardware, seed: int) -> dict[str, ConfigRanker]:
    """Rankers by what they have learned from, of which all do not know what stays unseen."""
    known = list(part.known)

    def fit(table: Table = known, seed: int = 0, revealed: Sequence[Revealed] = ()) -> ConfigRanker:
        told = comparisons([one.autotuned() for one in revealed], set(), gpu)
        return ConfigRanker(gpu, power, times=False, seed=seed).fit(table, told)

    source, pools = np.random.default_rng(seed), errors()
    before = fit()

    def reveal(drawn: Callable[[float, int], np.ndarray]) -> list[Revealed]:
        return [Revealed.of(before, labels, drawn) for labels in part.production]

    seen = reveal(lambda time, count: source.choice(pools[band_of(time)], count))
    found = {"before": before, "after": fit(revealed=seen)}
    if power == POWER:
        found["before, another seed"] = fit(seed=1)
        found["after, times without error"] = fit(revealed=reveal(lambda _, n: np.zeros(n)))
        found["after, taken for labels"] = fit([*known, *(one.as_labels() for one in seen)])
    return found


def regret(ranker: ConfigRanker, table: Table) -> np.ndarray:
    """Of some problems at every k; float64 [problems, MAX_K]."""
    picks = tuple(tuple(first(ranker, labels, MAX_K)) for labels in table)
    return regrets(HeldOut(ranker.name, ranker.power, picks), table)


def measure(table: Table, gpu: Hardware) -> Row:
    """Regret by power, ranker and part, at each k of `SHOWN_K`."""
    found: dict[str, dict[str, dict[str, list[np.ndarray]]]] = {}
    for power in POWERS:
        for seed, part in enumerate(parts(table)):
            for name, ranker in rankers(power, part, gpu, seed).items():
                by_part = found.setdefault(power, {}).setdefault(name, {})
                for which in ("production", "unseen"):
                    by_part.setdefault(which, []).append(regret(ranker, getattr(part, which)))
    return {
        power: {
            name: {which: figures(np.concatenate(rows)) for which, rows in by_part.items()}
            for name, by_part in by_ranker.items()
        }
        for power, by_ranker in found.items()
    }


def figures(rows: np.ndarray) -> Row:
    """What some problems lose at each k of `SHOWN_K`."""
    return {str(k): rounded_spread(rows[:, k - 1]) for k in SHOWN_K}


def rounded_spread(values: np.ndarray) -> Row:
    """How some losses spread, as a result keeps it."""
    return {name: round(value, DIGITS) for name, value in spread(values).items()}


def main() -> None:
    """Simulate, and keep the result."""
    start = time.monotonic()
    options, table, gpu, settings = read(runner.parser(__file__, __doc__))
    noise = {f"from {low:g} us": float(e.std()) for low, e in zip(BANDS, errors(), strict=False)}
    found = measure(table, gpu)
    seconds = round(time.monotonic() - start, 1)
    more = {"k": K, "error": {name: round(value, DIGITS) for name, value in noise.items()}}
    runner.write(options, settings | more, {"regret": found, "seconds": seconds})


if __name__ == "__main__":
    main()
