"""What does the order give in which FlexGEMM (PyTorch 2.15) tries QuACK's configs on Hopper?

``python benchmarks/kernels/flex_gemm_order.py --gpus 4``. On every problem of `held_out_problems`
the first twelve in PyTorch's order, the first twelve in the model's and all 44 are screened; the
best of each are then timed side by side with the first of each order. tilecast kernels of the same
tiles, clusters and schedules stand for QuACK's, so that nothing is fused and any PyTorch will do.
"""

import dataclasses
import runpy
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.inductor_hook.select.selection import ranked
from tilecast.inductor_hook.settings import Settings
from tilecast.inductor_hook.stock_kernels.flex_gemm import quack_config
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.spec import KernelSpec

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import runner
from held_out_problems import PROBLEMS
from races import FINALISTS, RACED, SCREENED, Call, Races
from runner import Row, ratios

GPU = hardware("H200")
TRIED = 12  # what FlexGEMM benchmarks where it has no order of its own
DEFAULT = ((128, 192), (2, 1), "pong", False)  # tile, cluster, schedule and side


def in_stock_order() -> list[QuackConfig]:
    """What QuACK allows on Hopper as FlexGEMM has it: the default first, then QuACK's order."""
    (folder,) = cast("list[str]", find_spec("quack").submodule_search_locations)  # type: ignore[union-attr]
    every = runpy.run_path(f"{folder}/gemm_config.py")["get_all_configs"]()
    known: list[Any] = [quack_config(dataclasses.asdict(one), LINEAR_BF16) for one in every]

    def is_other(c: QuackConfig) -> bool:
        tile, cluster = (c.tile_m, c.tile_n), (c.cluster_m, c.cluster_n)
        return (tile, cluster, c.schedule, c.swap_ab) != DEFAULT

    return sorted(filter(None, known), key=is_other)


class OrderRaces(Races):
    """Times what either order tries first."""

    def measure(self, problem: GemmProblem) -> list[Row]:
        """Screen both dozens and all, then race the best of each with both firsts."""
        stock = in_stock_order()
        model = ranked(Settings(), problem, GPU, tuple(stock), len(stock))
        specs = [KernelSpec(config, problem.operands) for config in stock]
        launches = {spec.config: launch for spec, launch in self.kernels(specs).items()}

        def named(kind: str, configs: Iterable[KernelConfig]) -> dict[str, Call]:
            return {f"{kind} {config}": launches[config] for config in configs}

        kinds = [named("stock-12", stock[:TRIED]), named("model-12", model[:TRIED])]
        firsts = named("stock-1", stock[:1]) | named("model-1", model[:1])
        times = self.race(problem, [*kinds, named("all", stock)], firsts)
        return [{"device": self.card, "microseconds": times}]


def figures(rows: Sequence[Row]) -> Row:
    """By regime how many times the best of all each takes."""
    found: Row = {}
    for regime in RACED:
        best: dict[str, list[float]] = {}
        for row in rows:
            times = row["microseconds"][regime]
            of_kind: dict[str, float] = {}
            for name, time in times.items():
                kind = name.split()[0]
                of_kind[kind] = min(time, of_kind.get(kind, time))
            for kind, time in of_kind.items():
                best.setdefault(kind, []).append(time / min(times.values()))
        found[regime] = {kind: ratios(over, [1.0] * len(over)) for kind, over in best.items()}
    return found


ITEMS = {str(problem): problem for problem in PROBLEMS}
SETTINGS = {"rounds": RACED, "screened_rounds": SCREENED, "finalists": FINALISTS, "tried": TRIED}
SWEEP = runner.Sweep(
    "problem", ITEMS, lambda: nullcontext(OrderRaces().measure), figures, 20.0, SETTINGS
)

if __name__ == "__main__":
    SWEEP.main(__file__, __doc__)
