"""How near does decoding come to the speed of memory? Few rows, weights beyond the L2.

``python benchmarks/decode_bandwidth.py --gpus 2``. The first candidates by the shipped model are
screened; the best are timed side by side with `torch.mm` and with a copy of the weight, which reads
and writes it. Shares are the product's bytes a second (A and B read, out written) over the copy's.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import product

import runner
import torch
from races import RACED, Races
from runner import Row, quantiles

from tilecast.data_collection.timing.torch_reference import torch_launch
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates
from tilecast.kernels.spec import KernelSpec
from tilecast.models.runtime.learned import load_heuristic

SHAPES = {
    "Llama 3.1 8B gate and up": (28672, 4096),
    "Llama 3.1 8B down": (4096, 14336),
    "Llama 3.1 8B head": (128256, 4096),
    "Llama 3.1 70B QKV": (10240, 8192),
    "Llama 3.1 70B attention output": (8192, 8192),
    "Llama 3.1 70B down": (8192, 28672),
    "Qwen 2.5 32B gate and up": (55296, 5120),
}  # n, k
M = (1, 4, 8, 16)
CANDIDATES = 20


class DecodeRaces(Races):
    """Times a product's kernels beside the library's and a copy of its weight."""

    def measure(self, problem: GemmProblem) -> list[Row]:
        """Race, and say what share of the copy's bandwidth the best kernel has."""
        first = HEURISTIC.rank(problem, candidates(problem, GPU), limit=CANDIDATES)
        specs = [KernelSpec.for_problem(config, problem) for config in first]
        kernels = {str(spec.config): launch for spec, launch in self.kernels(specs).items()}
        copied = torch.empty(problem.n, problem.k, dtype=torch.bfloat16, device="cuda")
        beside = {
            "library": torch_launch(problem.operands),
            "copy": lambda a, b, out: copied.copy_(b.t()),
        }
        times = self.race(problem, [kernels], beside)
        weight = problem.operands.b.dtype.bytes(problem.n * problem.k)
        shares = {
            regime: {
                name: problem.min_bytes / time * found["copy"] / (2 * weight)
                for name, time in found.items()
                if name != "copy"
            }
            for regime, found in times.items()
        }
        return [{"device": self.card, "microseconds": times, "share_of_copy": shares}]


def figures(rows: Sequence[Row]) -> Row:
    """Shares of the copy's bandwidth, of the best kernel and of the library."""
    found: Row = {}
    for regime in RACED:
        shares = [row["share_of_copy"][regime] for row in rows]
        best = [max(v for name, v in row.items() if name != "library") for row in shares]
        library = [row["library"] for row in shares]
        found[regime] = {
            who: {
                "geomean": math.exp(sum(map(math.log, values)) / len(values)),
                **quantiles(values, least=0.0, most=1.0),
            }
            for who, values in (("ours", best), ("library", library))
        }
        found[regime]["bars"] = {"geomean_85_percent": found[regime]["ours"]["geomean"] >= 0.85}
    return found


GPU = hardware("H200")
HEURISTIC = load_heuristic(GPU, LINEAR_BF16)
ITEMS = {f"{m}x{n}x{k}": GemmProblem(m, n, k) for (n, k), m in product(SHAPES.values(), M)}
SETTINGS = {"rounds": RACED, "candidates": CANDIDATES, "shapes": SHAPES}
SWEEP = runner.Sweep(
    "problem", ITEMS, lambda: nullcontext(DecodeRaces().measure), figures, 20.0, SETTINGS
)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
