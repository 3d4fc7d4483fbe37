"""What does the model lose on operands that it knows little of, or nothing?

``python benchmarks/operand_transfer.py --jobs 2``. Each fold of families is held out. Of every kind
of operands the regret is given of rankers that were fitted to all kinds, as the shipped one is; to
all kinds but this one, as of those that the model is lent to; and to ``bf16:rcr`` alone.
"""

import time
from functools import partial

import numpy as np
import runner
from learn_from_autotuning import figures as of_rows
from runner import Row
from selection_regret import Table, read

from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.models.evaluation import folds, held_out
from tilecast.models.ranker import ConfigRanker
from tilecast.models.regret import HeldOut, regrets

POWER = "robust"


def kinds(table: Table) -> dict[str, np.ndarray]:
    """Places of the problems of each kind of operands, sorted by their texts."""
    texts = np.array([one.problem.operands.text for one in table])
    return {str(text): np.flatnonzero(texts == text) for text in np.unique(texts)}


def asked(
    table: Table, gpu: Hardware, jobs: int, fitted: np.ndarray, wanted: np.ndarray
) -> HeldOut:
    """What rankers propose for wanted problems, each fitted to what of some is in other folds."""
    splits = [
        (np.intersect1d(seen, fitted), np.intersect1d(unseen, wanted))
        for seen, unseen in folds(table)
    ]
    make = partial(ConfigRanker, gpu, times=False)
    return held_out(make, table, POWER, [s for s in splits if s[1].size], jobs)


def figures(result: HeldOut, table: Table, places: np.ndarray) -> Row:
    """Regret of some problems at each k of `SHOWN_K`."""
    return of_rows(regrets(result, table)[places])


def main() -> None:
    """Score, and keep the result."""
    start = time.monotonic()
    options, table, gpu, settings = read(runner.parser(__file__, __doc__))
    every, found = np.arange(len(table)), {}
    by_kind = kinds(table)
    ask = partial(asked, table, gpu, options.jobs)
    whole = ask(every, every)
    lender = ask(by_kind[LINEAR_BF16.text], every)
    for kind, places in by_kind.items():
        untrained = ask(np.setdiff1d(every, places), places)
        results = {"all": whole, "without": untrained, LINEAR_BF16.text: lender}
        found[kind] = {"problems": len(places)} | {
            name: figures(result, table, places) for name, result in results.items()
        }
    seconds = round(time.monotonic() - start, 1)
    runner.write(options, settings | {"power": POWER}, {"kinds": found, "seconds": seconds})


if __name__ == "__main__":
    main()
