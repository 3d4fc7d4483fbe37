"""How many problems of new operands have to be measured, where others are known?

``python benchmarks/learner/new_operand.py --deadline 900``. A simulation on the shipped data set,
with no GPU. Each kind of `KINDS` in turn is the new one: a third of its families is held out, and
ranked by rankers of some of its other problems, drawn by whole families, alone and beside a random
third of the problems of all other operands; nothing of the families that are held out is known. It
is a third for the time that a fit takes.
"""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from tilecast.data_collection.dataset.dataset import read_dataset
from tilecast.heuristics.hardware import Hardware
from tilecast.models.learning.fit_ranker import fit_ranker
from tilecast.models.learning.labels import label_table
from tilecast.models.learning.training_sets import dataset_hardware

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import runner
from runner import SHOWN_K, Row
from selection_regret import DIGITS, Table
from simulation import of_shown, regret

POWER = "robust"
KINDS = ("bf16:crr", "int8:rcr>bf16:row-scales", "e4m3:rcr>bf16@fp32:row-scales")
COUNTS = (0, 15, 30, 60, 100)
"""Problems known, or all that are not held out where these are fewer."""
PARTS = 3  # of a kind's families
OTHERS = 3  # one in so many problems of other operands is known
PROBLEM_SECONDS = 531.6 / 340
"""Of one card for a problem of such operands, timed guided and a second time: 340 took 531.6 s."""


@dataclass(frozen=True)
class Round:
    """The kind that is new, and which part of its families is held out."""

    kind: str
    part: int


def dealt(table: Table, asked: Round) -> tuple[Table, Table, Table]:
    """Of a round: its kind's problems to learn from, family by family; all others'; what is held.

    Families are in an order that is drawn once for all parts, so that the first few of the problems
    are a random sample.
    """
    own = [labels for labels in table if labels.problem.operands.text == asked.kind]
    random = np.random.default_rng(0)
    names = random.permutation(sorted({labels.problem.family for labels in own})).tolist()
    held_out = set(map(tuple, names[asked.part :: PARTS]))
    place = {tuple(name): i for i, name in enumerate(names)}
    held = [labels for labels in own if labels.problem.family in held_out]
    pool = [labels for labels in own if labels.problem.family not in held_out]
    others = [
        labels
        for labels in table
        if labels.problem.operands.text != asked.kind and labels.problem.family not in held_out
    ]
    kept = np.sort(random.permutation(len(others))[: len(others) // OTHERS])
    return (
        sorted(pool, key=lambda labels: place[labels.problem.family]),
        [others[i] for i in kept],
        held,
    )


def first(pool: Table, count: int) -> Table:
    """The problems of the first families of a pool, of so many as ``count`` problems need."""
    if count >= len(pool):
        return pool
    families = {labels.problem.family for labels in pool[:count]}
    return [labels for labels in pool if labels.problem.family in families]


def measure(table: Table, gpu: Hardware, asked: Round) -> list[Row]:
    """What rankers lose on what is held out, problem by problem, by what they know."""
    pool, others, held = dealt(table, asked)
    rows = []
    for count in COUNTS:
        known = first(pool, count)
        for name, taught in (("alone", [*known]), ("beside others", [*others, *known])):
            if not taught:
                continue
            ranker = fit_ranker(taught, POWER, hardware=gpu)
            lost = np.round(regret(ranker, held), DIGITS)
            facts = {"kind": asked.kind, "count": count, "known": len(known), "how": name}
            rows.append(facts | {"regret": {str(k): lost[:, k - 1].tolist() for k in SHOWN_K}})
    return rows


def figures(rows: Sequence[Row]) -> Row:
    """Regret over all parts, by kind, problems known, and whether others are."""
    found: Row = {}
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]
        scored = sum(len(row["regret"]["1"]) for row in own if row["count"] == 0)
        cells = dict.fromkeys((row["count"], row["how"]) for row in own)
        known: Row = {}
        for count, how in cells:
            asked = [row for row in own if (row["count"], row["how"]) == (count, how)]
            problems = round(float(np.mean([row["known"] for row in asked])))
            lost = [np.concatenate([row["regret"][str(k)] for row in asked]) for k in SHOWN_K]
            cell = known.setdefault(str(count), {"problems": problems})
            cell["minutes"] = round(problems * PROBLEM_SECONDS / 60, 1)
            cell[how] = of_shown(np.stack(lost, 1), range(len(lost[0])))  # families are not kept
        found[kind] = {"scored": scored, "known": known}
    return found


def rounds() -> dict[str, Round]:
    """All rounds by name, part by part, so that the first few deal with every kind."""
    return {f"{kind} {part}": Round(kind, part) for part, kind in product(range(PARTS), KINDS)}


def main() -> None:
    """Simulate round by round, and keep each."""
    dataset = read_dataset(runner.DATA)
    table, gpu = label_table(dataset), dataset_hardware(dataset)
    settings = {"dataset": runner.facts(dataset), "power": POWER, "others": f"one in {OTHERS}"}
    measuring = partial(nullcontext, partial(measure, table, gpu))
    runner.Sweep("round", rounds(), measuring, figures, 150.0, settings).main(__file__, __doc__)


if __name__ == "__main__":
    main()
