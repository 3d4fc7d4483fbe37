"""What would one order of QuACK's configs for every product on Hopper give FlexGEMM?

``python benchmarks/kernels/flex_gemm_static.py``; no GPU. Such an order needs no model in PyTorch.
It is built greedily: each config is the one that lowers the mean log of the time most, given those
in front of it. Times are what the H200's model expects of the 44 configs (robust) on the problems
of its data set, so that the figures are the model's word; how far that holds is in
``flex_gemm_order.json``. Losses are of families (n, k) that the order was not built from.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tilecast.data_collection.dataset.dataset import read_dataset
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates, config_table
from tilecast.models.features.features import featurize
from tilecast.models.runtime.nearest_gpu import shipped_for
from tilecast.models.runtime.objectives import ROBUST

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import runner
from flex_gemm_order import GPU, TRIED, in_stock_order

PARTS = 5
SIZES = (1, 3, 5, TRIED)


def expected(problems: Sequence[GemmProblem], configs: Sequence[KernelConfig]) -> np.ndarray:
    """Log of the time over that of the best of some configs.

    They are seen beside all candidates of a problem, of which they need not be.

    Returns:
        float64 array [problems, configs].
    """
    model, known = shipped_for(GPU), set(configs)
    ranker = replace(model.ranker, objective=ROBUST)
    found = np.empty((len(problems), len(configs)))
    for row, problem in zip(found, problems, strict=True):
        rivals = candidates(problem, GPU, families=model.families)
        others = [config for config in rivals if config not in known]
        every = config_table((*configs, *others), LINEAR_BF16).all()
        row[:] = ranker.scores(featurize(problem, every, GPU))[: len(configs)]
    return found - found.min(1, keepdims=True)


def greedy(losses: np.ndarray, length: int) -> list[int]:
    """Columns in the order in which they lower the mean of the least loss most."""
    chosen: list[int] = []
    so_far = losses.max(1)
    for _ in range(length):
        means = np.minimum(losses, so_far[:, None]).mean(0)
        means[chosen] = np.inf
        chosen.append(int(means.argmin()))
        so_far = np.minimum(so_far, losses[:, chosen[-1]])
    return chosen


def held_out(losses: np.ndarray, families: Sequence[tuple[int, int]]) -> np.ndarray:
    """The least loss of the first of `SIZES` of an order that other families made.

    Returns:
        float64 array [problems, SIZES].
    """
    names = sorted(set(families))
    part = np.array([names.index(family) % PARTS for family in families])
    found = np.empty((len(losses), len(SIZES)))
    for i in range(PARTS):
        order = greedy(losses[part != i], max(SIZES))
        found[part == i] = least(losses[part == i], order)
    return found


def least(losses: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """The least loss of the first of `SIZES` of an order; float64 array [problems, SIZES]."""
    return np.column_stack([losses[:, order[:size]].min(1) for size in SIZES])


def main() -> None:
    """Build the order, score it and PyTorch's, and keep both."""
    options = runner.parser(__file__, __doc__).parse_args()
    dataset = read_dataset(runner.DATA)
    problems = [p for p in dataset.problems() if p.operands == LINEAR_BF16 and p.batch == 1]
    configs = in_stock_order()
    losses = expected(problems, configs)
    ours = held_out(losses, [problem.family for problem in problems])
    stock = least(losses, range(len(configs)))
    figures = {
        name: {
            str(size): {
                "problems": len(column),
                "geomean": round(float(np.exp(column.mean())), 4),
                "p95": round(float(np.exp(np.quantile(column, 0.95))), 4),
            }
            for size, column in zip(SIZES, table.T, strict=True)
        }
        for name, table in (("greedy order, held out", ours), ("PyTorch's order", stock))
    }
    order = [configs[i].name for i in greedy(losses, TRIED)]
    settings = {"dataset": runner.facts(dataset), "configs": len(configs), "parts": PARTS}
    runner.write(options, settings, {**figures, "order": order})


if __name__ == "__main__":
    main()
