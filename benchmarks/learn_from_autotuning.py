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

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import runner
from inductor_timing import K
from runner import Row
from selection_regret import DIGITS, Table, read
from simulation import BANDS, Part, band_of, errors, figures, first, parts, regret

from tilecast.data_collection.dataset.autotuned import Autotuned
from tilecast.heuristics.hardware import Hardware
from tilecast.models.learning.autotune_pairs import comparisons
from tilecast.models.learning.labels import POWERS, ProblemLabels
from tilecast.models.runtime.ranker import ConfigRanker

POWER = "robust"  # of which further rankers are scored


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
