"""How fast are grouped products of mixtures of experts?

``python benchmarks/kernels/grouped_speed.py`` on one GPU. On layers of `mixtures.grouped`, which
are in no order, so that a run that is cut short stands for all: a fixed sample of configs, the
first of the shipped model of dense products, and ``torch._grouped_mm``. Timed as
`tilecast collect` times kernels: CUDA graphs over several operand sets, from a clean L2, rounds
interleaved. All are screened and the best raced with rows that are spread at random (`group_ends`),
and the best few again with rows that are spread evenly.
"""

# This operator of torch is not exported, and is what Inductor calls.
# pyright: reportPrivateImportUsage=false

import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch

from tilecast.data_collection.gpu import gpu_model
from tilecast.data_collection.problems.mixtures import grouped
from tilecast.data_collection.timing.protocol import regimes
from tilecast.data_collection.timing.torch_reference import library_launch
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import Hardware, hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates, config_table, spec_for
from tilecast.kernels.families import parse_config
from tilecast.models.runtime.learned import LearnedHeuristic, model_for

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from races import Call, Races, largest_error, medians
from runner import SHOWN_K, Measure, Row, Sweep, ratios, shown_regret

LIBRARY = "torch._grouped_mm"
FREQUENT, DRAWN = 28, 12  # configs of the fixed sample
RANKED = 8  # configs of the model that are timed
SCREEN_ROUNDS, FINALISTS, EVEN = 2, 8, 4
ROUNDS = {"burst": 8, "sustained": 12}
COUNT = 96
ROWS = {
    "all": (0, 2**31),
    "up to 128 rows": (0, 128),
    "129 to 2,048": (129, 2048),
    "more": (2049, 2**31),
}  # of all experts together


@cache
def heuristic(gpu: Hardware) -> LearnedHeuristic:
    """The shipped model of dense products, without that of groups."""
    return LearnedHeuristic(replace(model_for(gpu, None), groups={}))


@cache
def ranked(problem: GemmProblem, gpu: Hardware) -> tuple[KernelConfig, ...]:
    """The first configs of that model."""
    return tuple(heuristic(gpu).rank(problem, candidates(problem, gpu), limit=RANKED))


@cache
def sample(gpu: Hardware) -> tuple[KernelConfig, ...]:
    """The configs that that model ranks first most often, and some that are drawn."""
    draw, drawn = random.Random(0), set()
    often: Counter[KernelConfig] = Counter()
    for problem in PROBLEMS.values():
        often.update(ranked(problem, gpu)[:5])
        drawn.add(draw.choice(list(candidates(problem, gpu))))
    frequent = [config for config, _ in often.most_common(FREQUENT)]
    others = sorted(drawn - set(frequent), key=str)
    return (*frequent, *draw.sample(others, min(DRAWN, len(others))))


def timed_configs(problem: GemmProblem, gpu: Hardware) -> list[KernelConfig]:
    """The configs that are timed on a problem: candidates of the sample, and the model's."""
    wanted = candidates(problem, gpu).select(sample(gpu))
    return list(dict.fromkeys((*ranked(problem, gpu), *wanted)))


def even_ends(problem: GemmProblem) -> torch.Tensor:
    """Ends of groups of as many rows each, but for one."""
    ends = np.arange(1, problem.batch + 1) * problem.m // problem.batch
    return torch.tensor(ends, dtype=torch.int32, device="cuda")


class GroupedRaces(Races):
    """Times kernels by the names of their configs beside ``torch._grouped_mm``."""

    def __init__(self, gpu: Hardware):
        """Bind the first device; ``gpu`` describes it."""
        super().__init__()
        self.gpu = gpu

    def measure(self, problem: GemmProblem) -> list[Row]:
        """Screen and race all on one problem."""
        specs = [spec_for(c, problem) for c in timed_configs(problem, self.gpu)]
        kernels = self.kernels(specs)
        calls: dict[str, Call] = {spec.config.name: kernels[spec] for spec in specs}
        error = largest_error(problem, calls)
        self.calls = {LIBRARY: library_launch(problem.operands), **calls}
        bench = self.bench(problem, careful=False)
        screened = medians(bench, [*self.calls], "sustained", SCREEN_ROUNDS)
        order = sorted(calls, key=screened.__getitem__)
        first = [config.name for config in ranked(problem, self.gpu)[:5]]
        racing = list(dict.fromkeys((*order[:FINALISTS], *first, LIBRARY)))
        raced = {
            regime: medians(bench, racing, regime, ROUNDS[regime]) for regime in regimes(problem)
        }
        ends = even_ends(problem)
        self.calls = {
            name: partial(_with_ends, self.calls[name], ends) for name in (*order[:EVEN], LIBRARY)
        }
        even = medians(bench, [*self.calls], "burst", ROUNDS["burst"])
        return [
            {
                "device": self.card,
                "gpu": self.gpu.name,
                "operands": problem.operands.text,
                "ranked": [config.name for config in ranked(problem, self.gpu)],
                "error": error,
                "screened": screened,
                "microseconds": raced,
                "even": even,
            }
        ]


def _with_ends(call: Call, ends: torch.Tensor, a, b, out, _) -> None:
    call(a, b, out, ends)


@contextmanager
def measuring() -> Iterator[Measure]:
    """Compile the sample, and what the model ranks first, for the first problems."""
    gpu = gpu_model.hardware_of(0)
    races = GroupedRaces(gpu)
    wanted = {
        spec_for(config, problem)
        for problem in list(PROBLEMS.values())[:COUNT]
        for config in timed_configs(problem, gpu)
    }
    races.kernels(sorted(wanted, key=str))
    yield races.measure


def lost(row: Row) -> list[float]:
    """What the first `SHOWN_K` of the model's order lose to the best, of all that were screened."""
    times = {name: time for name, time in row["screened"].items() if name != LIBRARY}
    problem = problem_of(row)
    gpu = hardware(row.get("gpu", "H200"))
    known = [config for name in times if (config := parse_config(name)) in candidates(problem, gpu)]
    table = config_table(known, problem.operands).all()
    order = [config.name for config in heuristic(gpu).rank(problem, table)]
    return [min(times[name] for name in order[:k]) / min(times.values()) - 1 for k in SHOWN_K]


def figures(rows: Sequence[Row]) -> Row:
    """Times of PyTorch over the best, and what choices of configs lose."""
    found: Row = {}
    for name, (least, most) in ROWS.items():
        part = [row for row in rows if least <= problem_of(row).m <= most]
        if not part:
            continue
        here = found[name] = {}
        for regime in ROUNDS:
            raced = [row["microseconds"] for row in part if regime in row["microseconds"]]
            if raced:
                here[regime] = over_best([times[regime] for times in raced])
        here["burst, even"] = over_best([row["even"] for row in part])
        regret = np.array([lost(row) for row in part])
        here["regret"] = shown_regret(regret, [problem_of(row).family for row in part])
    return found


def over_best(times: Sequence[dict[str, float]]) -> Row:
    """How many times PyTorch's time is that of the best config."""
    best = [min(t for name, t in own.items() if name != LIBRARY) for own in times]
    return ratios([own[LIBRARY] for own in times], best)


def problem_of(row: Row) -> GemmProblem:
    """What a row is about."""
    text, _ = row["problem"].split()
    return GemmProblem.parse(text, GemmOperands.parse(row["operands"]))


PROBLEMS = {f"{problem} {problem.operands.layout}": problem for problem in grouped()[:COUNT]}
SETTINGS = {"rounds": ROUNDS, "screen_rounds": SCREEN_ROUNDS, "finalists": FINALISTS}
SWEEP = Sweep("problem", PROBLEMS, measuring, figures, 12.0, SETTINGS)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
