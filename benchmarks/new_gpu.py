"""How little of a new GPU has to be measured, where another one is known?

``python benchmarks/new_gpu.py --jobs 2``. The H100 is the new one: each fold of the families of its
shipped data set is held out, and ranked by the model of the H200 as it is lent; by models of some
problems of the other folds alone; and by models of these and of the H200's data set, less the
families that are held out. The card measured its problems in the time that the data set says.
"""

import random
import time
from functools import partial

import numpy as np
import runner
from runner import Row
from selection_regret import Table
from simulation import figures as of_rows

from tilecast.data_collection.dataset import read_dataset, shipped_data
from tilecast.heuristics.hardware import hardware
from tilecast.models.artifact import load_shipped
from tilecast.models.evaluation import MakeHeuristic, Splits, folds, held_out, unfitted
from tilecast.models.labels import label_table
from tilecast.models.learned import LearnedHeuristic
from tilecast.models.lending import lent
from tilecast.models.ranker import ConfigRanker
from tilecast.models.regret import regrets

NEW, KNOWN = hardware("H100"), hardware("H200")
COUNTS = (15, 30, 57)  # of the new one's problems; the last is all of four folds
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
    lender = lent(load_shipped(KNOWN), NEW)
    seconds = sum(run["end"]["seconds"] for run in datasets[NEW].provenance["runs"])
    found: dict[str, Row] = {power: {} for power in POWERS}
    for power in POWERS:

        def ask(make: MakeHeuristic, asking: Splits, power: str = power) -> Row:
            result = held_out(make, table, power, asking, options.jobs)
            return of_rows(regrets(result, table)[: len(own)])

        found[power]["lent"] = ask(partial(LearnedHeuristic, lender), unfitted(own))
        for count in COUNTS:
            for name, others in (("alone", False), ("with the H200", True)):
                make = partial(ConfigRanker, NEW, times=False)
                found[power][f"{count} {name}"] = ask(make, first(table, splits, count, others))
    runner.write(
        options,
        {name: runner.facts(datasets[gpu]) for name, gpu in (("new", NEW), ("known", KNOWN))},
        {
            "problems": len(own),
            "seconds_measured": seconds,
            "regret": found,
            "seconds": round(time.monotonic() - start, 1),
        },
    )


if __name__ == "__main__":
    main()
