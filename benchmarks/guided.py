"""What does guided collection lose, and what does it save?

``python benchmarks/guided.py``. A simulation on the shipped data set, with no GPU, on its problems
of `LINEAR_BF16` with `WHOLE` configs timed or more: all candidates of the space of their day. A
ranker that knows no family of theirs chooses among what was timed, as guided collection would; the
rest is masked. For each of `SHARES`: the best that would have been timed against the best of all;
device time; and what rankers of the masked labels lose. These are fitted to the problems alone, and
scored on all others of `LINEAR_BF16`, beside a ranker of as many problems with all labels as take
as long; and to the problems beside the rest of the data, of which two fifths of the families are
held out in turn.

Device time is that of all replays, which the rows tell, and of what is around them: least squares
over the cards of the data set whose runs have times, by the protocols that count. A race is as long
as it was, times the finalists among what is chosen over those of all. The problems that are scored
were themselves timed guided, all but these, so what no model would choose counts for nothing there.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import runner
from runner import Row
from selection_regret import Table
from simulation import figures as of_rows
from simulation import regret, rounded_spread

from tilecast.data_collection.dataset.dataset import Dataset, read_dataset
from tilecast.data_collection.dataset.measurement import REFERENCE, REGIMES
from tilecast.data_collection.timing.gpu_session import REPLAY_SECONDS
from tilecast.data_collection.timing.protocol import FINALIST, MAX_FINALISTS
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem
from tilecast.kernels.families import parse_config
from tilecast.models.apply.guidance import Guided
from tilecast.models.evaluation.evaluation import folds
from tilecast.models.learning.labels import ProblemLabels, label_table
from tilecast.models.learning.training_sets import dataset_hardware
from tilecast.models.runtime.ranker import ConfigRanker

POWER = "robust"  # of the ranker that guides, and of those that learn
WHOLE = 500
"""Configs timed of a problem from which on nobody chose them: the guided ones have 200 at most."""
SHARES = ((16, 16, 16), (32, 16, 16), (64, 16, 16), (96, 16, 16), (160, 32, 32))
"""First, neighbours and chance, as in `Guided`."""
DEFAULT = (64, 16, 16)
SEEDS = 3  # rankers of each share, and draws of problems that take as long
HELD_OUT = 2  # of the folds, beside the rest of the data
GAP_SECONDS = 0.001
"""Before each replay in the burst regime, when the data were taken."""
PROTOCOLS, UNTIL = (2, 3), "2026-11-24T12"
"""Those whose gaps were so long; and when runs began last that took them so."""

Share = tuple[int, int, int]
Places = Sequence[np.ndarray]
"""Of each problem the places of the configs that are timed, rising."""


class Around(NamedTuple):
    """Seconds of a card around the replays of a problem, compiling apart."""

    problem: float
    """Of each problem: operands, warming up."""
    candidate: float
    """Of each of its candidates: loading, capturing."""


@dataclass(frozen=True, eq=False)
class Timings:
    """What timing one problem took, replays alone."""

    looks: np.ndarray
    """float64 [configs]: microseconds in the screen."""
    screen: np.ndarray
    """float64 [configs]: seconds of each in the screen."""
    race: float
    """Seconds of races and second timings of all finalists."""

    def finalists(self, places: np.ndarray) -> int:
        """How many of some configs would have been raced."""
        looks = self.looks[places]
        return min(int((looks <= FINALIST * looks.min()).sum()), MAX_FINALISTS)

    def replays(self, places: np.ndarray) -> float:
        """Seconds that the replays of some configs would have taken."""
        raced = self.finalists(places) / self.finalists(np.arange(len(self.looks)))
        return float(self.screen[places].sum()) + self.race * raced


def replay_seconds(rows: Any, gap_seconds: float = GAP_SECONDS) -> np.ndarray:
    """Seconds of the replays of each row, with the idle gaps before them; none of a failure."""
    replay = np.maximum(rows["microseconds"].to_numpy() * 1e-6, REPLAY_SECONDS)
    gaps = np.where(rows["regime"] == "burst", gap_seconds, 0.0)
    return np.nan_to_num(rows["rounds"].to_numpy() * (replay + gaps))


def around(dataset: Dataset) -> Around:
    """What cards took beside their replays: least squares over those that took such gaps.

    A run takes its seconds of each of its cards; cards of a run that does not say them are left
    out.
    """
    seconds: Counter[str] = Counter()
    versions: dict[str, set[int]] = defaultdict(set)
    left_out: set[str] = set()
    for run in dataset.provenance["runs"]:
        for gpu in run["gpus"]:
            card = gpu["uuid_hash"]
            versions[card].add(run["protocol_version"])
            seconds[card] += run.get("end", {}).get("seconds", 0.0)
            if "end" not in run or run["date"] > UNTIL:
                left_out.add(card)
    counts, rest = [], []
    for card in sorted(seconds.keys() - left_out):
        rows: Any = dataset.rows[dataset.rows["device"] == card]
        if not versions[card] <= set(PROTOCOLS) or rows.empty:
            continue
        problems = len(rows[list(PROBLEM_FIELDS)].drop_duplicates())
        counts.append((problems, int((rows["stage"] == "screen").sum())))
        rest.append(seconds[card] - float(replay_seconds(rows).sum()))
    fitted = np.linalg.lstsq(np.array(counts, float), np.array(rest), rcond=None)[0]
    return Around(*map(float, fitted))


def timings(dataset: Dataset, wanted: Table) -> list[Timings]:
    """What timing some problems took; what was timed twice counts by its mean."""
    keys = list(PROBLEM_FIELDS)
    rows: Any = dataset.rows.assign(seconds=replay_seconds(dataset.rows))
    parts = {GemmProblem.from_row(key): part for key, part in rows.groupby(keys, observed=True)}
    found = []
    for labels in wanted:
        cells = ["stage", "regime", "config"]
        means = parts[labels.problem].groupby(cells, observed=True)[["microseconds", "seconds"]]
        means = means.mean()
        screen = means.loc["screen"].droplevel("regime")
        names = {parse_config(name): name for name in screen.index if name != REFERENCE}
        own = screen.loc[[names[config] for config in labels.configs]]
        race = float(means["seconds"].drop("screen", level="stage").sum())
        found.append(Timings(own["microseconds"].to_numpy(), own["seconds"].to_numpy(), race))
    return found


def masked(labels: ProblemLabels, places: np.ndarray) -> ProblemLabels:
    """The labels of some configs of a problem alone."""
    return replace(
        labels,
        configs=tuple(labels.configs[i] for i in places),
        label={regime: times[places] for regime, times in labels.label.items()},
        truth={regime: times[places] for regime, times in labels.truth.items()},
        candidates=labels.candidates.take(places),
    )


def chosen(guide: ConfigRanker, share: Share, whole: Table) -> list[np.ndarray]:
    """What a ranker would have had timed of some problems."""
    first, neighbours, chance = share
    guided = Guided(guide, guide.hardware, first, neighbours=neighbours, chance=chance)
    found = []
    for labels in whole:
        kept = guided(labels.problem, labels.candidates)
        found.append(np.array([labels.candidates.index(config) for config in kept]))
    return found


def lost(whole: Table, places: Places) -> Row:
    """The best of what was chosen over the best of all, less 1, in each regime."""
    found = {}
    for regime in REGIMES:
        times = [labels.truth[regime] for labels in whole]
        pairs = zip(times, places, strict=True)
        found[regime] = rounded_spread(
            np.array([time[p].min() / time.min() - 1 for time, p in pairs])
        )
    return found


def device_time(timed: Sequence[Timings], places: Places, rest: Around) -> Row:
    """Means over the problems: configs, seconds of replays, and seconds of the card."""
    configs = float(np.mean([len(p) for p in places]))
    pairs = zip(timed, places, strict=True)
    replays = float(np.mean([one.replays(p) for one, p in pairs]))
    seconds = rest.problem + rest.candidate * configs + replays
    return {
        "configs": round(configs, 1),
        "replay_seconds": round(replays, 3),
        "seconds": round(seconds, 3),
    }


def learned(gpu: Hardware, tables: Sequence[Table], scored: Table) -> Row:
    """What rankers lose on average, each of a seed and a table of its own."""
    rankers = [
        ConfigRanker(gpu, POWER, times=False, seed=seed).fit(table)
        for seed, table in enumerate(tables)
    ]
    return of_rows(np.concatenate([regret(ranker, scored) for ranker in rankers]))


def as_long(gpu: Hardware, whole: Table, share: float, scored: Table) -> Row:
    """Regret of rankers of a share of some problems, drawn for each, with all of their labels."""
    count = max(1, round(share * len(whole)))
    draws = [np.random.default_rng(seed).permutation(len(whole))[:count] for seed in range(SEEDS)]
    tables = [[whole[i] for i in sorted(draw)] for draw in draws]
    return {"problems": count, **learned(gpu, tables, scored)}


def beside(gpu: Hardware, table: Table, whole: Table, by_name: Mapping[str, Places]) -> Row:
    """Regret, families held out, of rankers of the problems by what is kept, and of all others."""
    found: dict[str, list[np.ndarray]] = defaultdict(list)
    problems = {labels.problem for labels in whole}
    for seen, unseen in folds(table)[:HELD_OUT]:
        known, held = ([table[i] for i in part] for part in (seen, unseen))
        held = [labels for labels in held if labels.problem.operands == LINEAR_BF16]
        for name, places in by_name.items():
            kept = {labels.problem: labels for labels in table}
            kept |= {o.problem: masked(o, p) for o, p in zip(whole, places, strict=True)}
            taught = [kept[labels.problem] for labels in known]
            found[name].append(regret(ConfigRanker(gpu, POWER, times=False).fit(taught), held))
        found["whole"].append(np.array([labels.problem in problems for labels in held]))
    is_whole = np.concatenate(found.pop("whole"))
    rows = {name: np.concatenate(parts) for name, parts in found.items()}
    return {
        "problems": {"all": len(is_whole), "timed whole": int(is_whole.sum())},
        "all": {name: of_rows(row) for name, row in rows.items()},
        "timed whole": {name: of_rows(row[is_whole]) for name, row in rows.items()},
    }


def text(share: Share) -> str:
    """How a result names a share."""
    return "/".join(map(str, share))


def main() -> None:
    """Simulate, and keep the result."""
    start = time.monotonic()
    options = runner.parser(__file__, __doc__).parse_args()
    dataset = read_dataset(runner.DATA)
    table, gpu, rest = label_table(dataset), dataset_hardware(dataset), around(dataset)
    linear = [labels for labels in table if labels.problem.operands == LINEAR_BF16]
    whole = [labels for labels in linear if len(labels.configs) >= WHOLE]
    families = {labels.problem.family for labels in whole}
    guide = ConfigRanker(gpu, POWER, times=False)
    guide.fit([labels for labels in table if labels.problem.family not in families])
    places = {text(share): chosen(guide, share, whole) for share in SHARES}
    places["all"] = [np.arange(len(labels.configs)) for labels in whole]

    timed = timings(dataset, whole)
    took = {name: device_time(timed, kept, rest) for name, kept in places.items()}
    scored = [labels for labels in linear if labels.problem.family not in families]
    shares: dict[str, Row] = {}
    for name, kept in places.items():
        share = took[name]["seconds"] / took["all"]["seconds"]
        taught = [masked(labels, p) for labels, p in zip(whole, kept, strict=True)]
        shares[name] = took[name] | {
            "problems_over_all": round(1 / share, 2),
            "lost": lost(whole, kept),
            "alone": learned(gpu, [taught] * SEEDS, scored),
        }
        if share < 1:
            shares[name]["as_long"] = as_long(gpu, whole, share, scored)
    compared = {name: places[name] for name in (text(DEFAULT), "all")}
    runner.write(
        options,
        {"dataset": runner.facts(dataset), "power": POWER, "seeds": SEEDS, "folds": HELD_OUT},
        {
            "problems": len(whole),
            "families": len(families),
            "scored": len(scored),
            "around": rest._asdict(),
            "shares": shares,
            "beside": beside(gpu, table, whole, compared),
            "seconds": round(time.monotonic() - start, 1),
        },
    )


if __name__ == "__main__":
    main()
