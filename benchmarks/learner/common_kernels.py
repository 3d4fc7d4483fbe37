"""How many kernels does a warm cache need? What the most common ones cover, held out.

``python benchmarks/learner/common_kernels.py``; no GPU. What `tilecast compile --common N` would
build is counted over some problems, and tested on others whose (n, k) none of these has: the share
of their first choices that are among the N, of all their first five, and of problems whose first
five all are. Random families are tested in two halves, each by what is counted without it.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilecast.data_collection.problems.suites import suite
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.models.apply.frequent_configs import (
    ASKED_RANDOM,
    ASKED_SUITES,
    FIRST,
    by_frequency,
    common_problems,
)
from tilecast.models.runtime.learned import load_heuristic

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import runner
from held_out_problems import PROBLEMS
from runner import Row

SIZES = (100, 200, 500, 1000, 1500, 2000)
Shortlists = Mapping[GemmProblem, Sequence[KernelConfig]]
Split = tuple[Sequence[GemmProblem], Sequence[GemmProblem]]  # counted, tested


def without(problems: Sequence[GemmProblem], tested: Sequence[GemmProblem]) -> list[GemmProblem]:
    """The problems whose (n, k) is not among those of others."""
    families = {problem.family for problem in tested}
    return [problem for problem in problems if problem.family not in families]


def splits() -> dict[str, list[Split]]:
    """What is counted and what is tested, by name."""
    random, every = suite("random")[:ASKED_RANDOM], common_problems(LINEAR_BF16)
    families = list(dict.fromkeys(problem.family for problem in random))
    halves = [[p for p in random if p.family in set(families[start::2])] for start in (0, 1)]
    layers = without(PROBLEMS, every)
    return {
        "random families, by others": [(without(random, half), half) for half in halves],
        "random families, by all suites": [(without(every, half), half) for half in halves],
        "layers of other models, by all suites": [(every, layers)],
    }


def covered(parts: Sequence[Split], firsts: Shortlists) -> Row:
    """What the most common kernels cover over all parts, by how many they are."""
    ranked = [(by_frequency(firsts[p] for p in counted), tested) for counted, tested in parts]
    found: Row = {"problems": sum(len(tested) for _, tested in parts), "covered": {}}
    found["named"] = [len(configs) for configs, _ in ranked]
    for size in SIZES:
        hits = [
            [config in common for config in firsts[problem]]
            for configs, tested in ranked
            for common in [set(configs[:size])]
            for problem in tested
        ]
        shares = {
            "first": sum(hit[0] for hit in hits) / len(hits),
            "first_five": sum(map(sum, hits)) / sum(map(len, hits)),
            "all_five": sum(map(all, hits)) / len(hits),
        }
        found["covered"][str(size)] = {name: round(share, 4) for name, share in shares.items()}
    return found


def main() -> None:
    """Count, test, and keep the result."""
    options = runner.parser(__file__, __doc__).parse_args()
    gpu, parts = hardware("H200"), splits()
    heuristic = load_heuristic(gpu, LINEAR_BF16)
    met = {p for split in parts.values() for part in split for problems in part for p in problems}
    firsts = {p: list(heuristic.rank(p, candidates(p, gpu), limit=FIRST)) for p in met}
    settings = {
        "suites": ASKED_SUITES,
        "random": ASKED_RANDOM,
        "first": FIRST,
        "power": heuristic.objective,
    }
    settings |= {"model": heuristic.artifact.digest, "operands": LINEAR_BF16.text, "gpu": gpu.name}
    runner.write(options, settings, {name: covered(part, firsts) for name, part in parts.items()})


if __name__ == "__main__":
    main()
