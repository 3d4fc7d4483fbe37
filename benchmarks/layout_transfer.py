"""May the model of one layout and dtype rank the kernels of others?

``python benchmarks/layout_transfer.py`` on one GPU. The shipped model has seen bf16 with weights as
``torch.nn.Linear`` stores them (rcr). For other layouts and dtypes the first candidates of its
ranking and a random sample of the others are timed in interleaved rounds; the regret of its first
1, 3 and 5 is taken against the best of all that were timed.
"""

import random
import statistics
from collections.abc import Sequence
from contextlib import nullcontext

from inductor_timing import built
from runner import Row, Sweep

from tilecast.data_collection.protocol import without_drift
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16, GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.models.learned import load_heuristic

OPERANDS = ("bf16:rcr", "bf16:rrr", "bf16:crr", "fp16:rcr")
"""The model's own; gradients of the input and of the weight; half precision."""
EXTENTS = (
    (16, 6400, 2560), (64, 2560, 6912), (128, 9216, 3072), (256, 3072, 8640),
    (512, 6400, 2560), (1024, 2560, 6912), (2048, 9216, 3072), (4096, 3072, 8640),
)  # fmt: skip
"""m, n, k; no (n, k) of them was ever measured for the model."""
RANKED = 20  # timed from the head of the ranking
SAMPLED = 8  # timed from the rest
SCREEN_ROUNDS, FINAL_ROUNDS = 3, 16
NEAR = 1.06  # within this of the best after the screen: timed again


def measure(problem: GemmProblem) -> list[Row]:
    """Microseconds of the head of the model's ranking, in its order, and of the sample."""
    gpu = hardware("H200")
    order = list(load_heuristic(gpu, LINEAR_BF16).rank(problem, candidates(problem, gpu)))
    head, rest = order[:RANKED], order[RANKED:]
    sample = random.Random(0).sample(rest, min(SAMPLED, len(rest)))
    everyone = [*head, *sample]
    bench = built(problem, everyone).bench(problem, careful=False)
    screened = bench.time(everyone, "burst", SCREEN_ROUNDS, give_up=1.5)
    times = {c: statistics.median(t) for c, t in zip(everyone, screened, strict=True)}
    near = [c for c in everyone if times[c] <= NEAR * min(times.values())]
    final = without_drift(bench.time(near, "burst", FINAL_ROUNDS))
    times |= {c: statistics.median(t) for c, t in zip(near, final, strict=True)}
    return [{"ranked": [times[c] for c in head], "sampled": [times[c] for c in sample]}]


def regret(row: Row, k: int) -> float:
    """What the best of the first ``k`` loses against the best of all."""
    return min(row["ranked"][:k]) / min(*row["ranked"], *row["sampled"]) - 1


def figures(rows: Sequence[Row]) -> Row:
    """Regret per kind of operands."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["problem"].partition(" ")[2], []).append(row)
    return {
        name: {
            f"@{k}": {
                "geomean": statistics.geometric_mean([1 + regret(row, k) for row in group]) - 1,
                "max": max(regret(row, k) for row in group),
            }
            for k in (1, 3, 5)
        }
        for name, group in groups.items()
    }


PROBLEMS = (GemmProblem(*mnk, 1, GemmOperands.parse(o)) for o in OPERANDS for mnk in EXTENTS)
ITEMS = {f"{problem} {problem.operands}": problem for problem in PROBLEMS}
SETTINGS = {"ranked": RANKED, "sampled": SAMPLED, "rounds": FINAL_ROUNDS}
SWEEP = Sweep("problem", ITEMS, lambda: nullcontext(measure), figures, 20.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
