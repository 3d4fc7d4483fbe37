"""What does the model lose on operands that it knows little of, or nothing?

``python benchmarks/learner/operand_transfer.py --jobs 2``. Each fold of families is held out. Of
every kind of operands the regret is given of rankers that were fitted to all kinds, as the shipped
one is; to all kinds but this one, as for operands that it has not seen; and to ``bf16:rcr`` alone.
"""

import sys
import time
from functools import partial
from itertools import compress
from pathlib import Path

from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.models.evaluation.evaluation import Splits, folds, held_out
from tilecast.models.evaluation.regret import regrets
from tilecast.models.learning.fit_ranker import fit_ranker

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import runner
from selection_regret import Table, kinds, read
from simulation import figures

POWER = "robust"


def compared(table: Table) -> dict[str, Splits]:
    """What rankers are fitted to and asked about, by what they know.

    Each asks about every problem once.
    """
    every, by_kind = folds(table), kinds(table)
    linear = by_kind[LINEAR_BF16.text]
    without = [
        (seen[~of_kind[seen]], asked)
        for of_kind in by_kind.values()
        for seen, unseen in every
        if (asked := unseen[of_kind[unseen]]).size
    ]
    alone = [(seen[linear[seen]], unseen) for seen, unseen in every]
    return {"all": every, "without": without, LINEAR_BF16.text: alone}


def main() -> None:
    """Score, and keep the result."""
    start = time.monotonic()
    options, table, gpu, settings = read(runner.parser(__file__, __doc__))
    fit = partial(fit_ranker, hardware=gpu)
    lost = {
        name: regrets(held_out(fit, table, POWER, splits, options.jobs), table)
        for name, splits in compared(table).items()
    }
    found = {
        kind: {"problems": int(of_kind.sum())}
        | {
            name: figures(regret[of_kind], [*compress(table, of_kind)])
            for name, regret in lost.items()
        }
        for kind, of_kind in kinds(table).items()
    }
    seconds = round(time.monotonic() - start, 1)
    runner.write(options, settings | {"power": POWER}, {"kinds": found, "seconds": seconds})


if __name__ == "__main__":
    main()
