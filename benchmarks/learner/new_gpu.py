"""How little of a new GPU has to be measured, where another one is known?

``python benchmarks/learner/new_gpu.py --jobs 2``. The H100 is the new one: each fold of the
families of its shipped data set is held out, and ranked by models of some problems of the other
folds alone, and by models of these and of the H200's data set, less the families that are held out.
"borrowed" is the shipped model of the H200, asked about the families that it has not seen. A
problem takes a card the time of the data set's last run, whose kernels were compiled before.
"""

import random
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from tilecast.data_collection.dataset.dataset import Dataset, read_dataset, shipped_data
from tilecast.heuristics.hardware import hardware
from tilecast.models.evaluation.evaluation import Splits, folds, held_out, unfitted
from tilecast.models.evaluation.regret import regrets
from tilecast.models.learning.fit_ranker import fit_ranker
from tilecast.models.learning.labels import label_table
from tilecast.models.runtime.artifact import load_shipped
from tilecast.models.runtime.learned import LearnedHeuristic
from tilecast.models.runtime.manifest import learned_families
from tilecast.models.runtime.nearest_gpu import borrowed

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import runner
from runner import Row
from selection_regret import Table, of_shown

NEW, KNOWN = hardware("H100"), hardware("H200")
COUNTS = (0, 15, 60, 250)  # of the new one's problems
POWERS = ("burst", "robust")


def first(table: Table, splits: Splits, count: int, others: bool) -> Splits:
    """The same splits, fitted to some of the new GPU's problems and to others' or not."""
    known = [i for i, labels in enumerate(table) if labels.elsewhere is None]
    random.Random(0).shuffle(known)
    place = {i: at for at, i in enumerate(known)}
    found = []
    for fitted, asked in splits:
        own = sorted((i for i in fitted.tolist() if i in place), key=place.__getitem__)[:count]
        taught = [i for i in fitted.tolist() if i not in place] if others else []
        found.append((np.array(sorted([*own, *taught])), asked))
    return found


def card_seconds(dataset: Dataset) -> float:
    """Seconds of one card a problem in the last run."""
    run = dataset.provenance["runs"][-1]
    cards = [gpu["uuid_hash"] for gpu in run["gpus"]]
    measured = replace(dataset, rows=dataset.rows[dataset.rows["device"].isin(cards)])
    return run["end"]["seconds"] * len(cards) / len(measured.problems())


def main() -> None:
    """Score, and keep the result."""
    start = time.monotonic()
    parser = runner.parser(__file__, __doc__)
    parser.add_argument("--jobs", type=int, default=1, help="fits that run side by side")
    options = parser.parse_args()
    datasets = {gpu: read_dataset(shipped_data(gpu)) for gpu in (NEW, KNOWN)}  # type: ignore[arg-type]
    own = label_table(datasets[NEW])
    table = [*own, *label_table(datasets[KNOWN], KNOWN)]
    splits = folds(table)
    shipped = borrowed(load_shipped(KNOWN), NEW)
    seen = learned_families(shipped.facts)
    new = [labels for labels in own if labels.problem.family not in seen]
    found: dict[str, Row] = {power: {} for power in POWERS}
    for power in POWERS:
        one = LearnedHeuristic(shipped, power)
        asked = held_out(lambda _, __, one=one: one, new, power, unfitted(new))
        found[power]["borrowed"] = of_shown(regrets(asked, new), new)
    fit = partial(fit_ranker, hardware=NEW)
    for count in COUNTS:
        for name in ("alone", "with the H200") if count else ("with the H200",):
            taught = first(table, splits, count, others=name != "alone")
            for power in POWERS:  # which share the rankers of the folds
                asked = held_out(fit, table, power, taught, options.jobs)
                found[power][f"{count} {name}"] = of_shown(regrets(asked, table)[: len(own)], own)
    runner.write(
        options,
        {name: runner.facts(datasets[gpu]) for name, gpu in (("new", NEW), ("known", KNOWN))},
        {
            "problems": len(own),
            "borrowed_problems": len(new),
            "card_seconds_a_problem": card_seconds(datasets[NEW]),
            "regret": found,
            "seconds": round(time.monotonic() - start, 1),
        },
    )


if __name__ == "__main__":
    main()
