"""How fast is a compiled grouped product with TILECAST, with ATEN,TRITON and in eager code?

``python benchmarks/kernels/grouped_compiled.py`` on one GPU. On layers of `mixtures.grouped`, each
variant compiles with empty caches of Inductor, after another product has taken out what all have in
common. Tilecast compiles twice, and keeps its kernels: the second time they are there. Set
``TILECAST_CACHE`` to an empty folder to begin without any. Then what the variants selected and
``torch._grouped_mm`` are timed side by side as `tilecast collect` times kernels, with rows that are
spread at random. Inductor tunes Triton's kernels with rows that are spread evenly.
"""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F

from tilecast.data_collection.problems.mixtures import grouped
from tilecast.data_collection.timing.protocol import regimes
from tilecast.data_collection.timing.tensors import launch_tensors
from tilecast.data_collection.timing.torch_reference import library_launch
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from compiled_races import CompiledRaces, attempt, with_weight
from races import ROUNDS, Call
from runner import Row, Sweep, ratios
from variants import Variant

EAGER, RIVAL, OURS = "eager", "ATEN,TRITON", "TILECAST k=5"
AGAIN = f"{OURS}, kernels there"
VARIANTS = (Variant(OURS), Variant(RIVAL))
COUNT = 24
WARM_UP = GemmProblem(128, 512, 384, 4, GemmOperands.parse("bf16:rcr:row-groups"))


def experts(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Each group of rows by its own weight, as it is stored: (groups, n, k)."""
    return F.grouped_mm(x, weight.mT, offs=ends)


class LayerRaces(CompiledRaces):
    """Times what variants selected."""

    def __init__(self):
        """Bind the first device that is visible, and have Inductor compile something else."""
        super().__init__()
        self.compile(WARM_UP, Variant("ATEN"))

    def measure(self, problem: GemmProblem) -> list[Row]:
        """Compile a problem with each variant, check what was selected, and time it."""
        # Before all others: it takes away what variants compiled.
        torch._dynamo.reset()
        *_, cold = self.compile(problem, VARIANTS[0])
        torch._dynamo.reset()
        self.calls = {EAGER: library_launch(problem.operands)}
        selected, seconds = {}, {}
        for variant in VARIANTS:
            name = variant.name
            self.calls[name], selected[name], seconds[name] = self.compile(problem, variant)
        seconds = {**seconds, OURS: cold, AGAIN: seconds[OURS]}
        bench = self.bench(problem, careful=False)
        times = {regime: self.timed(bench, regime) for regime in regimes(problem)}
        row = {"selected": selected, "compile_seconds": seconds, "microseconds": times}
        return [{"device": self.card, "operands": problem.operands.text, **row}]

    def compile(self, problem: GemmProblem, variant: Variant) -> tuple[Call, str, float]:
        """A problem compiled by a variant, what was selected for it, and the seconds that it took.

        Raises:
            RuntimeError: it is wrong.
        """
        from torch._inductor.utils import fresh_cache

        a, b, _, ends = launch_tensors(problem)
        with fresh_cache():
            row, call = attempt(experts, variant, (a, b.mT, ends), experts(a, b.mT, ends).float())
        if not call:
            raise RuntimeError(f"{variant.name} is wrong on {problem}: {row}")
        return with_weight(call), row["selected"], row["compile_seconds"]


def figures(rows: Sequence[Row]) -> Row:
    """Times of others over tilecast's by regime, and the share of the rival's compile time."""
    found: Row = {}
    for regime in ROUNDS:
        times = [row["microseconds"][regime] for row in rows if regime in row["microseconds"]]
        if times:
            own = [one[OURS] for one in times]
            found[regime] = {
                f"{name} over {OURS}": ratios([one[name] for one in times], own)
                for name in (EAGER, RIVAL)
            }
    if rows:
        for name in (OURS, AGAIN):
            taken = [row["compile_seconds"] for row in rows if name in row["compile_seconds"]]
            if taken:
                share = ratios([one[name] for one in taken], [one[RIVAL] for one in taken])
                found[f"compile time of {name}"] = share
    return found


PROBLEMS = {f"{problem} {problem.operands.layout}": problem for problem in grouped()[:COUNT]}
SWEEP = Sweep(
    "problem",
    PROBLEMS,
    lambda: nullcontext(LayerRaces().measure),
    figures,
    25.0,
    {"rounds": ROUNDS},
)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
