"""How fast are grouped products in fp8 with a scale for each row and column?

``python benchmarks/kernels/grouped_fp8.py`` on one GPU. Layers of Qwen3-30B, Mixtral 8x7B and
DeepSeek-V3 (on one GPU of eight) with 64 to 16,384 rows that are dealt to the experts at random,
added up as ``use_fast_accum`` is and is not. The first choices of the shipped model, which learned
from groups in bf16, and candidates of one sample are timed beside ``torch._scaled_grouped_mm`` as
`tilecast collect` times kernels; all are screened and the best raced. Each result is compared with
PyTorch's.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from tilecast.data_collection.gpu import gpu_model
from tilecast.data_collection.timing.protocol import regimes
from tilecast.data_collection.timing.torch_reference import library_launch
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates, spec_for
from tilecast.models.runtime.learned import load_heuristic

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from races import Races, largest_error, medians
from runner import Measure, Row, Sweep, ratios

LIBRARY = "torch._scaled_grouped_mm"
FIRST, DRAWN, MOST, FINALISTS = 5, 3, 30, 5  # configs; those drawn are of each problem
LATER = (9, 14)  # places in the ranking that join the sample
SCREEN_ROUNDS, ROUNDS = 2, {"burst": 10, "sustained": 12}
SUMS = {
    "fast": "e4m3:rcr>bf16:row-groups+row-scales",
    "exact": "e4m3:rcr>bf16@fp32:row-groups+row-scales",
}
LAYERS = (
    *("128x64x1536x2048", "8x512x28672x4096", "32x256x4096x7168", "128x2048x1536x2048"),
    *("8x4096x4096x14336", "32x4096x7168x2048", "128x16384x2048x768", "8x64x28672x4096"),
    *("8x16384x28672x4096", "32x16384x4096x7168", "128x256x2048x768", "32x64x7168x2048"),
)  # groups, rows, n and k


@cache
def timed_configs(gpu: Hardware) -> dict[GemmProblem, list[KernelConfig]]:
    """For each problem the first choices, and candidates of one sample for its sums."""
    draw, found = random.Random(0), {}
    sample: dict[GemmOperands, dict[KernelConfig, None]] = {}
    for problem in PROBLEMS.values():
        every = candidates(problem, gpu)
        ranked = [*load_heuristic(gpu, problem.operands).rank(problem, every, limit=LATER[-1] + 1)]
        found[problem] = ranked[:FIRST]
        drawn = draw.sample(list(every), DRAWN)
        joining = (*ranked[:FIRST], *(ranked[place] for place in LATER), *drawn)
        sample.setdefault(problem.operands, {}).update(dict.fromkeys(joining))
    for problem, first in found.items():
        every = candidates(problem, gpu)
        others = [c for c in sample[problem.operands] if c in every and c not in first]
        first.extend(draw.sample(others, min(len(others), MOST - FIRST)))
    return found


class GroupedRaces(Races):
    """Times kernels by the names of their configs beside PyTorch's operator."""

    def measure(self, problem: GemmProblem) -> list[Row]:
        """Screen and race all on one problem."""
        configs = timed_configs(gpu_model.hardware_of(0))[problem]
        kernels = self.kernels(spec_for(config, problem) for config in configs)
        calls = {spec.config.name: call for spec, call in kernels.items()}
        first, error = [config.name for config in configs[:FIRST]], largest_error(problem, calls)
        self.calls = {LIBRARY: library_launch(problem.operands), **calls}
        timed = partial(medians, self.bench(problem, careful=False))
        screened = timed([*self.calls], "sustained", SCREEN_ROUNDS)
        order = sorted(calls, key=screened.__getitem__)
        racing = list(dict.fromkeys((*first, *order[:FINALISTS], LIBRARY)))
        raced = {regime: timed(racing, regime, ROUNDS[regime]) for regime in regimes(problem)}
        row = {"device": self.card, "first": first, "error": error}
        return [row | {"screened": screened, "microseconds": raced}]


@contextmanager
def measuring() -> Iterator[Measure]:
    """Compile all kernels first."""
    races = GroupedRaces()
    wanted = timed_configs(gpu_model.hardware_of(0)).items()
    races.kernels({spec_for(one, problem): 0 for problem, own in wanted for one in own})
    yield races.measure


def figures(rows: Sequence[Row]) -> Row:
    """PyTorch's time over that of the first choice, of the best of five, and of all, by sums."""
    found: Row = {}
    for sums in SUMS:
        part = [
            row["microseconds"] | {"first": row["first"]} for row in rows if sums in row["problem"]
        ]
        for regime in ROUNDS:
            own = [(row[regime], row["first"]) for row in part if regime in row]
            if own:
                library = [times[LIBRARY] for times, _ in own]
                best = {
                    "first": [times[first[0]] for times, first in own],
                    "of five": [min(times[name] for name in first) for times, first in own],
                    "of all": [
                        min(t for n, t in times.items() if n != LIBRARY) for times, _ in own
                    ],
                }
                found.setdefault(sums, {})[regime] = {
                    name: ratios(library, times) for name, times in best.items()
                }
    return found


PROBLEMS = {
    f"{layer} {sums}": GemmProblem.parse(layer, GemmOperands.parse(text))
    for sums, text in SUMS.items()
    for layer in LAYERS
}
SETTINGS = {"rounds": ROUNDS, "screen_rounds": SCREEN_ROUNDS, "finalists": FINALISTS, "sums": SUMS}
SWEEP = Sweep("problem", PROBLEMS, measuring, figures, 15.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
