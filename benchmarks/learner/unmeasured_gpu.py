"""What can be expected on a GPU of which nobody has measured anything?

``python benchmarks/learner/unmeasured_gpu.py``. Two GPUs whose truth is known are taken as new.
"analytic time" ranks without any measurement (`tilecast.models.runtime.unmeasured`), though its
constants were fitted on the H200; "constants" has what its first five lose where one of them is
twice or half as large. "borrowed" ranks by the other GPU's measurements alone, and is asked about
the families that these do not have: the shipped model of the H200; of the H100, whose shipped model
has learned from the H200, too, a ranker of its own data. What holds of nvMatmulHeuristics stands in
``selection_regret.json``.

"rules" asks of each rule of the space that was measured on an H200, or that rests on constants,
whether it holds at a sixth of the matrix rate: how much faster the best config would be without it,
by the analytic time, on an H200 and on an H20.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from tilecast.data_collection.dataset.dataset import read_dataset, shipped_data
from tilecast.heuristics.config import Candidates
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.heuristic import Heuristic
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.kernels.candidates import config_table
from tilecast.kernels.families import FAMILIES
from tilecast.kernels.quack_sm90.axes import STAGES
from tilecast.kernels.rules import MEASURED, PROBLEM
from tilecast.models.evaluation.evaluation import Fit, held_out, unfitted
from tilecast.models.evaluation.regret import regrets
from tilecast.models.features import analytic_time
from tilecast.models.features.features import leading, log_analytic
from tilecast.models.learning.fit_ranker import fit_ranker
from tilecast.models.learning.labels import label_table
from tilecast.models.runtime.artifact import load_shipped
from tilecast.models.runtime.learned import LearnedHeuristic
from tilecast.models.runtime.manifest import learned_families
from tilecast.models.runtime.nearest_gpu import borrowed
from tilecast.models.runtime.objectives import ROBUST
from tilecast.models.runtime.unmeasured import OFFERED, AnalyticOrder

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import runner
from runner import Row
from selection_regret import Table, of_shown

MOST = 280  # problems of a GPU
RULED = 40  # problems that rules are asked about
CONSTANTS = (
    *("ATTAINED", "L2_ATTAINED", "LOAD_LATENCY", "STAGES_READ"),
    *("STORE_ATTAINED", "TILE_TIME", "LAUNCH_TIME"),
)
ASKED_RULES = ("never-near", "split-sharing", "split-waves", "split-stretch", "l2-traffic")


def problems_of(gpu: Hardware) -> Table:
    """Labels of as many as are taken, evenly from all that were measured in bf16."""
    data = shipped_data(gpu)
    assert data
    whole = [one for one in label_table(read_dataset(data)) if one.problem.operands == LINEAR_BF16]
    count = min(MOST, len(whole))
    return [whole[i * len(whole) // count] for i in range(count)]


def lent(measured: Table) -> dict[str, tuple[Heuristic, set[tuple[int, int]]]]:
    """What ranks for each GPU by the other one's measurements, and the families of these."""
    h200, h100 = hardware("H200"), hardware("H100")
    shipped = borrowed(load_shipped(h200), h100)
    ranker = fit_ranker(measured, hardware=h100)
    return {
        "H200": (replace(ranker, hardware=h200), {one.problem.family for one in measured}),
        "H100": (LearnedHeuristic(shipped, ROBUST), set(learned_families(shipped.facts))),
    }


def losses(fit: Fit, table: Table) -> Row:
    """Regret at 1, 3 and 5 kernels."""
    return of_shown(regrets(held_out(fit, table, ROBUST, unfitted(table)), table), table)


@contextmanager
def changed(name: str, factor: float) -> Iterator[None]:
    """A constant of the analytic time is another one inside."""
    before = getattr(analytic_time, name)
    setattr(analytic_time, name, before * factor)
    try:
        yield
    finally:
        setattr(analytic_time, name, before)


def without_rule(name: str, gpu: Hardware, table: Table) -> list[float]:
    """By how much the best analytic time of each problem is less where a rule is dropped."""
    family = FAMILIES["quack_sm90"]
    geometry = family.points(LINEAR_BF16, gpu)
    # Points have the deepest pipeline alone, and one of the rules says so.
    geometry = geometry.at(np.repeat(np.arange(len(geometry)), len(STAGES)))
    geometry = replace(geometry, stages=np.resize(STAGES, len(geometry)))
    for rule in family.config_rules:
        if rule.name != name:
            geometry = geometry.at(~rule.broken(geometry, LINEAR_BF16, gpu))
    every = config_table(family.configs(geometry), LINEAR_BF16)
    kept = np.ones(len(geometry), bool)
    for rule in family.config_rules:
        kept &= ~rule.broken(geometry, LINEAR_BF16, gpu)
    gains = []
    for one in table:
        excluded = {
            rule.name: rule.broken(every.columns, one.problem, gpu) for rule in family.problem_rules
        }
        others = ~np.logical_or.reduce([x for key, x in excluded.items() if key != name])
        ruled = others & kept & ~excluded.get(name, np.zeros(len(kept), bool))
        best = [
            float(log_analytic(leading(one.problem, Candidates(every, rows), gpu, 1)[1])[0])
            for rows in (np.flatnonzero(others), np.flatnonzero(ruled))
        ]
        gains.append(float(np.expm1(best[1] - best[0])))
    return gains


def rules(table: Table) -> Row:
    """What dropping each rule gives, by the analytic time, in percent of the best."""
    found: Row = {}
    family = FAMILIES["quack_sm90"]
    for rule in (*family.config_rules, *family.problem_rules):
        if rule.name not in ASKED_RULES:
            continue
        assert rule.kind in (MEASURED, PROBLEM)
        for name in ("H200", "H20"):
            gains = np.array(without_rule(rule.name, hardware(name), table))
            found.setdefault(rule.name, {})[name] = {
                "mean": round(float(gains.mean()), 5),
                "most": round(float(gains.max()), 5),
                "problems": int((gains > 0.01).sum()),
            }
    return found


def main() -> None:
    """Score, and keep the result."""
    start = time.monotonic()
    options = runner.parser(__file__, __doc__).parse_args()
    regret: Row = {}
    counts: Row = {}
    tables = {name: problems_of(hardware(name)) for name in ("H200", "H100")}
    for name, (heuristic, seen) in lent(tables["H100"]).items():
        gpu, table = hardware(name), tables[name]
        new = [labels for labels in table if labels.problem.family not in seen]
        counts[name] = {"problems": len(table), "borrowed": len(new)}
        regret[name] = {
            "analytic time": losses(lambda *_, gpu=gpu: AnalyticOrder(gpu), table),
            "borrowed": losses(lambda *_, one=heuristic: one, new),
        }
    gpu, constants = hardware("H200"), {}
    for name in CONSTANTS:
        for factor in (0.5, 2.0):
            with changed(name, factor):
                found = losses(lambda *_: AnalyticOrder(gpu), tables["H200"])
            constants.setdefault(name, {})[str(factor)] = found[str(OFFERED)]["geomean"]
    runner.write(
        options,
        {"power": ROBUST, "counts": counts, "ruled": RULED},
        {
            "regret": regret,
            "constants": constants,
            "rules": rules(tables["H200"][:: max(1, MOST // RULED)]),
            "seconds": round(time.monotonic() - start, 1),
        },
    )


if __name__ == "__main__":
    main()
