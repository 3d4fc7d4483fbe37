"""How fast are fused and 8-bit products beside PyTorch's own, and beside the plain product?

``python benchmarks/fused_speed.py --gpus 2``. For each operands and problem some dozens of configs
that won elsewhere are screened, fused and, for 16 bits, plain; the best of each are then timed side
by side with what PyTorch runs, as `tilecast collect` times kernels: CUDA graphs over several
operand sets, from a clean L2, rounds interleaved, with idle gaps and under load.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from itertools import product
from typing import cast

import numpy as np
import runner
from races import FINALISTS, RACED, SCREENED, Call, Races
from runner import Row, ratios
from space_pilot import DATASET

from tilecast.data_collection.dataset.dataset import read_columns
from tilecast.data_collection.dataset.select_times import measured_problems
from tilecast.data_collection.timing.torch_reference import torch_launch
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import GemmOperands
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.quack_sm90.space import CONFIG_RULES, most_stages
from tilecast.kernels.spec import KernelSpec

GPU = hardware("H200")
OPERANDS = (
    "bf16:rcr:bias",
    "bf16:rcr:bias+gelu",
    "int8:rcr>int32",
    "e4m3:rcr>bf16:tensor-scales",
    "bf16:rcr:beta-c",
    "int8:rcr>bf16:row-scales",
    "e4m3:rcr>bf16:row-scales",
    "e4m3:rcr>bf16@fp32:tensor-scales",
)
SHAPES = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (8192, 8192), (2304, 9216))
M = (32, 64, 256, 1024, 4096)
FIRST = 2  # of each problem of the pilot, in each regime: what is screened


@cache
def winners() -> list[QuackConfig]:
    """The configs that were among the first on some problem of the pilot, for bf16."""
    found: dict[KernelConfig, None] = {}
    for measured in measured_problems(read_columns(DATASET)[0]):
        for times in measured.truth.values():
            found |= dict.fromkeys(measured.configs[i] for i in np.argsort(times)[:FIRST])
    return sorted(cast("dict[QuackConfig, None]", found))


def configs(operands: GemmOperands) -> list[KernelConfig]:
    """The winners with stages as deep in bytes, as many as fit, for other operands."""
    scale = 16 // operands.a.dtype.bits
    deep = [replace(config, tile_k=config.tile_k * scale) for config in winners()]
    deepest = [replace(config, stages=most_stages(config, operands, GPU)) for config in deep]
    return [
        config
        for config in dict.fromkeys(deepest)
        if not any(rule.violation(config, operands, GPU) for rule in CONFIG_RULES)
    ]


class FusedRaces(Races):
    """Times kernels by name, fused, plain and the library's, on the inputs of a fused problem."""

    def measure(self, problem: GemmProblem) -> list[Row]:
        """Screen, then race the best with each other and with the library."""
        operands = problem.operands
        kinds = [self._loaded(operands, "fused")]
        if operands.a.dtype.bits == 16:
            bare = GemmOperands.product(operands.a, operands.b, operands.out)
            # A plain kernel is given the fused problem's inputs, too.
            kinds.append(
                {
                    name: lambda a, b, out, *extras, launch=launch: launch(a, b, out)
                    for name, launch in self._loaded(bare, "plain").items()
                }
            )
        times = self.race(problem, kinds, {"library": torch_launch(operands)})
        return [{"device": self.card, "screened": sum(map(len, kinds)), "microseconds": times}]

    def _loaded(self, operands: GemmOperands, kind: str) -> dict[str, Call]:
        """Every config's kernel by its name."""
        loaded = self.kernels(KernelSpec(config, operands) for config in configs(operands))
        return {f"{kind} {spec.config}": launch for spec, launch in loaded.items()}


def figures(rows: Sequence[Row]) -> Row:
    """Of each operands and regime how the best fused kernel stands, as ratios."""
    found: Row = {}
    for row, regime in product(rows, RACED):
        text = row["problem"].split()[1]
        times = row["microseconds"][regime]
        fused = min(time for name, time in times.items() if name.startswith("fused"))
        plain = min((t for name, t in times.items() if name.startswith("plain")), default=math.nan)
        pairs = found.setdefault(text, {}).setdefault(regime, {"library": [], "plain": []})
        pairs["library"].append((times["library"], fused))
        if plain == plain and int(row["problem"].split("x")[0]) >= 64:
            pairs["plain"].append((fused, plain))
    return {
        text: {
            regime: {
                "library_over_fused": ratios(*zip(*pairs["library"], strict=True)),
                "fused_over_plain": pairs["plain"] and ratios(*zip(*pairs["plain"], strict=True)),
            }
            for regime, pairs in regimes.items()
        }
        for text, regimes in found.items()
    }


ITEMS = {
    f"{problem} {text}": problem
    for text, (n, k), m in product(OPERANDS, SHAPES, M)
    for problem in [GemmProblem(m, n, k, operands=GemmOperands.parse(text))]
}
SETTINGS = {"rounds": RACED, "screened_rounds": SCREENED, "finalists": FINALISTS, "first": FIRST}
SWEEP = runner.Sweep(
    "problem", ITEMS, lambda: nullcontext(FusedRaces().measure), figures, 20.0, SETTINGS
)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
