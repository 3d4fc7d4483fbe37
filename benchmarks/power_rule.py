"""What should be taken of what was measured, if the card will run at its power limit?

``python benchmarks/power_rule.py --jobs 2``. A simulation on the shipped data set, with no GPU.
Rankers and trees that had not seen a problem's family say what they expect of their first `K`
configs for it and of the library; each of these is given the time that the hook would have it
measured, a rule picks one, and the pick is scored by both power regimes against the best of the
list. What is measured depends on the card (`CARDS`) and is in error (`autotuner_errors.NOISES`), as
results/inductor_timing.json says.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import runner
from autotuner_errors import DRAWS, NOISES, deviations, misled
from inductor_timing import SLOWER, K
from runner import Row
from selection_regret import Table, read
from simulation import BANDS, band_of, errors

from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.data_collection.timing.protocol import regimes
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.evaluation.evaluation import folds, parts_beside_library, side_by_side
from tilecast.models.evaluation.regret import ORIGINS, groups
from tilecast.models.learning.labels import POWERS, ProblemLabels
from tilecast.models.learning.targets import problem_features
from tilecast.models.runtime.deferral import deferral_features, fit_deferral
from tilecast.models.runtime.ranker import ConfigRanker

CARDS = {"cool": 0.0, "hot": 1.0}
"""How near the card is to its power limit while choices are timed. In graphs a card that was cool
stays so: in the result's repeats long kernels drift by 0.2%. Short kernels never meet that."""
COLUMNS = (
    *(f"{power} {figure}" for power in POWERS for figure in ("geomean", "p95")),
    *("slower than library", "left to library", "robust over today", "not better"),
)
"""Regrets and shares in percent; the difference to `TODAY` in robust log regret in percent, and the
share of resamples without a gain."""


@dataclass(frozen=True)
class Rule:
    """How one of our configs, or the library, is picked; today's unless told otherwise."""

    tie: float = 0.005
    """Configs this close to the best count as equal, and the model's order decides."""
    weight: float = 0.0
    """Exponent of the predicted cost that a measured time is multiplied by, among ours."""
    margin: float = 0.0
    """How much slower than the library ours may be."""
    lead: float = 0.0
    """Exponent of the library's predicted time over our first that its own is multiplied by."""
    corrected: str = ""
    """``sustained``: measured times are taken for burst ones, and multiplied by what the model says
    of the other regime; ``robust``: for the worse of both. Empty: as measured."""
    power: str = "robust"
    """What costs are predicted for."""

    def picks(self, measured: np.ndarray, said: "Said") -> np.ndarray:
        """What is picked; `K` is the library.

        Args:
            measured: float64 [draws, problems, K + 1]: log times.
            said: of the same problems.

        Returns:
            int [draws, problems].
        """
        if self.corrected:
            sustained = measured + said.ratio
            both = np.maximum(_over_best(measured), _over_best(sustained))
            measured = sustained if self.corrected == "sustained" else both
        costs = measured[..., :K] + self.weight * said.cost[self.power]
        ours = (costs <= costs.min(-1, keepdims=True) + np.log1p(self.tie)).argmax(-1)
        library = measured[..., K] + self.lead * said.lead + np.log1p(self.margin)
        taken = np.take_along_axis(measured, ours[..., None], -1)[..., 0] <= library
        return np.where(taken, ours, K)


TODAY = Rule()
RULES = {
    "today": TODAY,
    **{f"tie {tie:g}": Rule(tie) for tie in (0, 0.01, 0.015, 0.02, 0.03, 0.05)},
    **{f"weight {w:g}": Rule(weight=w) for w in (0.25, 0.5, 1, 2)},
    **{f"weight {w:g}, no tie": Rule(0, w) for w in (0.25, 0.5, 1, 2)},
    **{f"weight {w:g} of sustained": Rule(weight=w, power="sustained") for w in (0.25, 0.5, 1, 2)},
    **{
        f"margin {m:g}": Rule(margin=m)
        for m in (-0.02, -0.015, -0.01, -0.005, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05)
    },
    **{f"lead {lead:g}": Rule(lead=lead) for lead in (0.1, 0.25, 0.5)},
    **{f"corrected, {power}": Rule(corrected=power) for power in ("sustained", "robust")},
    **{
        f"corrected, {power}, no tie, margin {m:g}": Rule(0, margin=m, corrected=power)
        for power in ("sustained", "robust")
        for m in (-0.01, -0.005, 0)
    },
    **{f"margin {m:g}, no tie": Rule(0, margin=m) for m in (-0.02, -0.015, -0.01, -0.005)},
    "weight 0.25, no tie, margin -0.01": Rule(0, 0.25, margin=-0.01),
    "corrected, robust, weight 0.25, no tie": Rule(0, 0.25, corrected="robust"),
}


@dataclass(frozen=True, eq=False)
class Said:
    """What the model said of problems that it had not seen, and what is true; all logarithms."""

    problems: tuple[GemmProblem, ...]
    """The problems."""
    times: dict[str, np.ndarray]
    """Regime to float64 [problems, K + 1]: true times of ours, best first, and of the library."""
    cost: dict[str, np.ndarray]
    """Power to float64 [problems, K]: predicted cost of ours over the first's, not falling."""
    ratio: np.ndarray
    """float64 [problems, K + 1]: predicted sustained over burst time, up to a constant of each."""
    lead: np.ndarray
    """float64 [problems]: predicted sustained time of the library over that of our first."""

    @property
    def band(self) -> np.ndarray:
        """Which of `BANDS` the fastest of ours lies in; int [problems]."""
        fastest = np.exp(self.times["burst"][:, :K].min(1))
        return np.array([band_of(microseconds) for microseconds in fastest])

    def regret(self) -> dict[str, np.ndarray]:
        """Power to log regret of each, against the best of the list; float64 [problems, K + 1]."""
        over = {regime: _over_best(times) for regime, times in self.times.items()}
        return over | {"robust": _over_best(np.maximum.reduce([*over.values()]))}


def _over_best(values: np.ndarray) -> np.ndarray:
    """What each of the last axis is above the least."""
    return values - values.min(-1, keepdims=True)


def listed(labels: ProblemLabels) -> bool:
    """Whether a problem has a list to choose from, with the library's time."""
    return not np.isnan([*labels.reference.values()]).any() and len(labels.configs) >= K


def ask(table: Table, gpu: Hardware, jobs: int) -> Said:
    """Hold out each fold, fit rankers and the library's trees without it, and ask about it."""
    splits, found = folds(table), []
    calls = [
        partial(ConfigRanker(gpu, power).fit, [table[i] for i in seen])
        for seen, _ in splits
        for power in POWERS
    ]
    fitted = iter(side_by_side(jobs, calls))
    rankers = [{power: next(fitted) for power in POWERS} for _ in splits]
    parts = {
        regime: parts_beside_library([one[regime] for one in rankers], table, splits)
        for regime in REGIMES
    }
    for place, (_, unseen) in enumerate(splits):
        others = {regime: [*one[:place], *one[place + 1 :]] for regime, one in parts.items()}
        leads = {r: learned[0] for r, one in others.items() if (learned := fit_deferral(one))}
        for labels in (table[i] for i in unseen if listed(table[i])):
            features = problem_features(labels, gpu)
            first = rankers[place]["robust"].order(features)[:K]
            scores = {p: one.model_scores(features[first]) for p, one in rankers[place].items()}
            lead = {
                regime: one.expected(deferral_features(features[first], scores[regime])[:1])
                for regime, one in leads.items()
            }
            blended = {power: one.blended.astype(float) for power, one in scores.items()}
            found.append((labels, first, blended, lead))
    return _said(found)


def _said(found: Sequence[tuple[ProblemLabels, np.ndarray, Row, Row]]) -> Said:
    """Stack problems with their first configs, the scores of these, and the library's lead."""
    times = {
        regime: np.log([[*one.truth[regime][i], one.reference[regime]] for one, i, *_ in found])
        for regime in REGIMES
    }
    scores = {power: np.array([blended[power] for *_, blended, _ in found]) for power in POWERS}
    lead = {regime: np.array([one[regime] for *_, one in found]) for regime in REGIMES}
    ours = scores["sustained"] - scores["burst"]
    library = ours[:, 0] + lead["sustained"] - lead["burst"]
    return Said(
        tuple(labels.problem for labels, *_ in found),
        times,
        {p: np.maximum.accumulate(one - one[:, :1], axis=1) for p, one in scores.items()},
        np.column_stack([ours, library]),
        lead["sustained"],
    )


def measured(said: Said, card: str, noise: str, seed: int = 0) -> np.ndarray:
    """Log times that would be measured; float64 [DRAWS, problems, K + 1]."""
    random = np.random.default_rng(seed)
    limited = (said.band == len(BANDS) - 2)[:, None]
    burst, sustained = (said.times[regime] for regime in REGIMES)
    times = burst + limited * CARDS[card] * (sustained - burst)
    shape = (DRAWS, *times.shape)
    if noise == "repeats":
        return times + random.normal(size=shape) * deviations()[said.band][:, None]
    drawn, pools = np.empty(shape), errors()
    for place, band in enumerate(said.band):
        drawn[:, place] = random.choice(pools[band], (DRAWS, K + 1))
    return times + drawn


def scored(picks: np.ndarray, today: np.ndarray, said: Said, among: np.ndarray) -> list[float]:
    """The `COLUMNS` of what a rule and today's pick, int [draws, problems], among some problems."""

    def of(values: np.ndarray, picks: np.ndarray) -> np.ndarray:
        return values[np.arange(len(values)), picks][:, among]

    regret = said.regret()
    found = []
    for power in POWERS:
        lost = of(regret[power], picks)
        found += [np.expm1(lost.mean()), np.expm1(np.quantile(lost, 0.95))]
    sustained = said.times["sustained"]
    slower = of(sustained - sustained[:, K:], picks) > np.log1p(SLOWER)
    found += [slower.mean(), (picks[:, among] == K).mean()]
    difference = (of(regret["robust"], picks) - of(regret["robust"], today)).mean(0)
    families = [said.problems[i].family for i in np.flatnonzero(among)]
    found += [difference.mean(), runner.share_without_gain(families, difference)]
    return [round(100 * float(value), 3) for value in found]


def figures(said: Said) -> Row:
    """Every rule on every card with all errors, by group; and what no rule can do better."""
    known = groups(said.problems)
    both = np.array([len(regimes(problem)) > 1 for problem in said.problems])
    linear = both & [problem.operands == LINEAR_BF16 for problem in said.problems]
    names = {name: known[name] & linear for name in ("all", *ORIGINS, "other families")}
    # On problems of one regime the power limit is out of reach.
    masks = {"both regimes": both, "one regime": ~both} | {
        f"bf16, {n}": m for n, m in names.items()
    }
    masks = {name: mask for name, mask in masks.items() if mask.any()}
    rules: Row = {}
    for card in CARDS:
        for noise in NOISES:
            times = measured(said, card, noise)
            today = TODAY.picks(times, said)
            found = {name: rule.picks(times, said) for name, rule in RULES.items()}
            rules.setdefault(card, {})[noise] = {
                group: {name: scored(picks, today, said, mask) for name, picks in found.items()}
                for group, mask in masks.items()
            }
    best = said.regret()["robust"].argmin(1)[None]
    return {
        "counts": {name: int(mask.sum()) for name, mask in masks.items()},
        "deviations": deviations().round(4).tolist(),
        "misled": misled(),
        "best of the list": {n: scored(best, best, said, m)[:8] for n, m in masks.items()},
        "rules": rules,
    }


def main() -> None:
    """Score, and keep the result."""
    start = time.monotonic()
    options, table, gpu, settings = read(runner.parser(__file__, __doc__))
    found = figures(ask(table, gpu, options.jobs))
    shown = {"k": K, "draws": DRAWS, "columns": COLUMNS, "slower": SLOWER}
    seconds = {"seconds": round(time.monotonic() - start, 1)}
    runner.write(options, settings | shown, found | seconds)


if __name__ == "__main__":
    main()
