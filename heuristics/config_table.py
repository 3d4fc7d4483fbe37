"""Many configs at once: a table with a column per number, and ordered selections of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from tilecast.heuristics.config import KernelConfig


@dataclass(frozen=True, eq=False)
class Geometry:
    """What rules and features see of configs, whatever their family: an array [configs] each."""

    tile_m: np.ndarray
    """Rows of the output tile of one CTA."""
    tile_n: np.ndarray
    """Columns of the output tile of one CTA."""
    tile_k: np.ndarray
    """Depth of one pipeline stage, in elements."""
    cluster_m: np.ndarray
    """CTAs along m that share loads of B by multicast."""
    cluster_n: np.ndarray
    """CTAs along n that share loads of A by multicast."""
    stages: np.ndarray
    """Stages of the A and B pipeline in shared memory."""
    warp_groups: np.ndarray
    """MMA warp groups of one CTA."""
    ctas_per_sm: np.ndarray
    """CTAs that share one SM."""
    raster_m: np.ndarray
    """Whether consecutive tiles are handed out along m."""
    swizzle: np.ndarray
    """Width in clusters of the band that the raster walks; 1 is no swizzle."""
    swap_ab: np.ndarray
    """Whether out^T = B^T A^T is solved: the tile's m runs along the problem's n."""
    split_k: np.ndarray
    """CTAs that share one tile of the output, a stretch of k each."""
    ping_pong: np.ndarray
    """Whether two warp groups take tiles in turn, one multiplying while the other stores."""

    def __len__(self) -> int:
        """How many configs there are."""
        return len(self.tile_m)

    def at(self, rows: np.ndarray) -> Geometry:
        """Some of the configs, by a mask or by their positions."""
        return Geometry(*(getattr(self, name)[rows] for name in Geometry.__dataclass_fields__))


@dataclass(frozen=True, eq=False)
class ConfigColumns(Geometry):
    """The geometry of configs and what they take from an SM: float64 arrays [configs]."""

    smem_bytes: np.ndarray
    """Shared memory of one CTA."""
    mma_registers: np.ndarray
    """Registers per MMA thread."""
    accumulator_registers: np.ndarray
    """Registers per MMA thread that accumulators take of these."""


@dataclass(frozen=True, eq=False)
class ConfigTable:
    """Configs for some operands, each once, with their columns."""

    configs: tuple[KernelConfig, ...]
    """The configs."""
    values: np.ndarray
    """float64 [columns, configs], in the order of `ConfigColumns`."""

    @cached_property
    def index(self) -> dict[KernelConfig, int]:
        """Row of each config."""
        return {config: row for row, config in enumerate(self.configs)}

    @cached_property
    def columns(self) -> ConfigColumns:
        """The columns of all configs."""
        return ConfigColumns(*self.values)

    def all(self) -> Candidates:
        """Every row, in the table's order."""
        return Candidates(self, np.arange(len(self.configs)))


@dataclass(frozen=True, eq=False)
class Candidates(Sequence[KernelConfig]):
    """Rows of a table, each at most once, in an order that may mean something: a ranking's does."""

    table: ConfigTable
    """Where the rows are."""
    rows: np.ndarray
    """Integers [candidates], indices into the table."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> KernelConfig: ...
    @overload
    def __getitem__(self, index: slice) -> Candidates: ...
    def __getitem__(self, index: int | slice) -> KernelConfig | Candidates:
        """One config, or a stretch of them."""
        if isinstance(index, slice):
            return Candidates(self.table, self.rows[index])
        return self.table.configs[self.rows[index]]

    def __iter__(self) -> Iterator[KernelConfig]:
        """The configs in order."""
        configs = self.table.configs
        return (configs[row] for row in self.rows.tolist())

    def __contains__(self, config: object) -> bool:
        """Whether a config is among them."""
        return config in self._position

    def index(self, value: object, start: int = 0, stop: int | None = None) -> int:
        """Where a config stands.

        Raises:
            ValueError: it is not among them.
        """
        if value not in self._position:
            raise ValueError(f"{value} is not among {len(self)} candidates")
        return self._position[value]

    def take(self, positions: np.ndarray | Sequence[int]) -> Candidates:
        """Those at some positions, in the order of the positions."""
        return Candidates(self.table, self.rows[np.asarray(positions, np.intp)])

    def select(self, configs: Iterable[KernelConfig]) -> Candidates:
        """Those of some configs that are among them, each once, in the order of the configs."""
        positions = (self._position[c] for c in dict.fromkeys(configs) if c in self._position)
        return self.take(list(positions))

    @cached_property
    def columns(self) -> ConfigColumns:
        """The columns of these rows, in their order."""
        return ConfigColumns(*self.table.values[:, self.rows])

    @cached_property
    def _position(self) -> dict[object, int]:
        return {config: position for position, config in enumerate(self)}
