"""The heuristics that a learned one has to beat, behind the same contract.

Those that learn take labels in ``fit``, one object per training problem, such as
`tilecast.models.labels.ProblemLabels`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice, product
from typing import Protocol, Self

import numpy as np

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmOperands, GemmProblem
from tilecast.kernels.cutlass_sm90.resources import smem_bytes


class Labels(Protocol):
    """The measured configs of one problem."""

    @property
    def problem(self) -> GemmProblem:
        """What was multiplied."""
        ...

    @property
    def configs(self) -> tuple[KernelConfig, ...]:
        """What it was multiplied with."""
        ...

    def cost(self, power: str) -> np.ndarray:
        """What to minimise, of each config."""
        ...


class RandomChoice:
    """Any order, the same for the same problem."""

    name = "random"

    def __init__(self, power: str = "robust", *, seed: int = 0):
        """Store the settings.

        Args:
            power: makes no difference.
            seed: another one is another order.
        """
        self.power = power
        self.seed = seed

    def rank(
        self, problem: GemmProblem, candidates: Sequence[KernelConfig], *, limit: int | None = None
    ) -> list[KernelConfig]:
        """Shuffle the candidates."""
        return random.Random(f"{self.seed} {problem}").sample(
            list(candidates), min(len(candidates), limit or len(candidates))
        )


@lru_cache(maxsize=16)
def stock_configs(operands: GemmOperands, hardware: Hardware) -> tuple[KernelConfig, ...]:
    """The 24 SM90 GEMMs of ``cutlass.operators`` 0.3.0, in the order in which it lists them.

    Tiles and clusters are those that its ``Sm90StaticPersistentGemmOperator`` enumerates; two warp
    groups where its kernel takes two, and as many stages as one CTA's shared memory holds.
    """
    configs = []
    for tile_m, tile_n, cluster_m, cluster_n in product((64, 128), (64, 128, 256), (1, 2), (1, 2)):
        groups = 2 if tile_m > 64 and tile_n > 128 else 1
        empty = KernelConfig(tile_m, tile_n, 64, cluster_m, cluster_n, 0, groups)
        fixed = smem_bytes(empty, operands)
        stage = smem_bytes(replace(empty, stages=1), operands) - fixed
        stages = (hardware.smem_bytes_per_block - fixed) // stage
        configs.append(replace(empty, stages=stages))
    return tuple(configs)


def stock_candidates(
    operands: GemmOperands, hardware: Hardware, candidates: Sequence[KernelConfig]
) -> dict[KernelConfig, KernelConfig]:
    """Which candidate stands for each stock config, in the order of `stock_configs`.

    Tile, cluster, warp groups and CTAs per SM agree and operands are not exchanged; where no such
    candidate is scheduled as the stock kernel is, the nearest swizzle, raster or number of stages
    stands in. Stock configs without any are left out.
    """
    alike: dict[tuple, list[KernelConfig]] = {}
    for config in candidates:
        alike.setdefault(_kernel(config), []).append(config)
    return {
        stock: min(
            alike[_kernel(stock)],
            key=lambda config: (
                config.swizzle != stock.swizzle,
                config.raster != stock.raster,
                abs(config.stages - stock.stages),
                config,
            ),
        )
        for stock in stock_configs(operands, hardware)
        if _kernel(stock) in alike
    }


def _kernel(config: KernelConfig) -> tuple:
    """What `stock_candidates` matches by."""
    return (
        *(config.tile_m, config.tile_n, config.tile_k, config.cluster_m, config.cluster_n),
        *(config.warp_groups, config.ctas_per_sm, config.split_k, config.swap_ab),
    )


class StockDefault:
    """The stock kernels in listing order: what PyTorch takes without nvMatmulHeuristics."""

    name = "default config"

    def __init__(self, hardware: Hardware, power: str = "robust"):
        """Store the settings.

        Args:
            hardware: the GPU, for the stages that fit.
            power: makes no difference.
        """
        self.hardware = hardware
        self.power = power

    def rank(
        self, problem: GemmProblem, candidates: Sequence[KernelConfig], *, limit: int | None = None
    ) -> list[KernelConfig]:
        """The candidates that are stock configs, in the order of `stock_configs`."""
        found = stock_candidates(problem.operands, self.hardware, candidates)
        return list(dict.fromkeys(found.values()))[:limit]


class BestFixedSubset:
    """The same kernels for every problem, chosen greedily for the training problems.

    Attributes:
        subset_: configs in the order in which they were chosen.
    """

    name = "best fixed subset"

    def __init__(self, power: str = "robust", *, size: int = 64):
        """Store the settings.

        Args:
            power: whose cost to minimise.
            size: configs to choose; more than are asked for, since not all suit every problem.
        """
        self.power = power
        self.size = size

    def fit(self, table: Sequence[Labels]) -> Self:
        """Choose one config after another, each the one that lowers the geometric mean regret most.

        A config that a problem was not measured with counts there as the slowest that was.
        """
        configs = sorted({config for labels in table for config in labels.configs})
        index = {config: i for i, config in enumerate(configs)}
        slowdown = np.empty((len(table), len(configs)))
        for row, labels in zip(slowdown, table, strict=True):
            cost = np.log(labels.cost(self.power))
            row[:] = cost.max() - cost.min()
            row[[index[config] for config in labels.configs]] = cost - cost.min()
        best = slowdown.max(axis=1, keepdims=True)
        self.subset_ = []
        chosen = np.zeros(len(configs), bool)
        for _ in range(min(self.size, len(configs))):
            regret = np.minimum(best, slowdown).sum(axis=0)
            choice = int(np.where(chosen, np.inf, regret).argmin())
            chosen[choice] = True
            best = np.minimum(best, slowdown[:, [choice]])
            self.subset_.append(configs[choice])
        return self

    def rank(
        self, problem: GemmProblem, candidates: Sequence[KernelConfig], *, limit: int | None = None
    ) -> list[KernelConfig]:
        """The configs of the subset that are candidates, in the order of choice.

        Raises:
            TilecastError: `fit` has not been called.
        """
        _check_fitted(self, "subset_")
        available = set(candidates)
        return list(islice((config for config in self.subset_ if config in available), limit))


class NearestNeighbour:
    """The ranking of the training problem that lies nearest in log(m, n, k).

    Attributes:
        points_: float64 [problems, 3], log2 of m, n, k.
        rankings_: configs of each problem, best first.
    """

    name = "nearest neighbour"

    def __init__(self, power: str = "robust"):
        """Store the settings.

        Args:
            power: whose cost orders the neighbour's configs.
        """
        self.power = power

    def fit(self, table: Sequence[Labels]) -> Self:
        """Remember every problem and its ranking."""
        self.points_ = np.array([_point(labels.problem) for labels in table])
        self.rankings_ = [
            [labels.configs[i] for i in np.argsort(labels.cost(self.power), kind="stable")]
            for labels in table
        ]
        return self

    def rank(
        self, problem: GemmProblem, candidates: Sequence[KernelConfig], *, limit: int | None = None
    ) -> list[KernelConfig]:
        """The nearest problem's configs that are candidates, then those of the next nearest.

        Raises:
            TilecastError: `fit` has not been called.
        """
        _check_fitted(self, "rankings_")
        available = set(candidates)
        limit = limit or len(available)
        distance = np.linalg.norm(self.points_ - _point(problem), axis=1)
        # A dict keeps what came first and forgets repeats.
        chosen: dict[KernelConfig, None] = {}
        for neighbour in np.argsort(distance, kind="stable"):
            ranking = (c for c in self.rankings_[neighbour] if c in available and c not in chosen)
            chosen |= dict.fromkeys(islice(ranking, limit - len(chosen)))
            if len(chosen) == limit:
                break
        return list(chosen)


def _point(problem: GemmProblem) -> tuple[float, float, float]:
    return math.log2(problem.m), math.log2(problem.n), math.log2(problem.k)


def _check_fitted(heuristic: object, attribute: str) -> None:
    if not hasattr(heuristic, attribute):
        raise TilecastError(
            f"{type(heuristic).__name__} is not fitted; allowed: one that has been; "
            "call fit(table) first"
        )
