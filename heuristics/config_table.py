"""Many configs at once: a table with a column per number, and ordered selections of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from tilecast.heuristics.config import Geometry, KernelConfig, Resources


@dataclass(frozen=True, eq=False)
class ConfigColumns:
    """`Geometry` and `Resources` of many configs: float64 arrays, one element per config."""

    tile_m: np.ndarray
    tile_n: np.ndarray
    tile_k: np.ndarray
    cluster_m: np.ndarray
    cluster_n: np.ndarray
    stages: np.ndarray
    warp_groups: np.ndarray
    ctas_per_sm: np.ndarray
    raster_m: np.ndarray
    swizzle: np.ndarray
    swap_ab: np.ndarray
    split_k: np.ndarray
    ping_pong: np.ndarray
    smem_bytes: np.ndarray
    mma_registers: np.ndarray
    accumulator_registers: np.ndarray


_WIDTH = len(ConfigColumns.__dataclass_fields__)


@dataclass(frozen=True, eq=False)
class ConfigTable:
    """Configs for some operands, each once, with their columns."""

    configs: tuple[KernelConfig, ...]
    """The configs."""
    values: np.ndarray
    """float64 [columns, configs], in the order of `ConfigColumns`."""

    @classmethod
    def of(cls, rows: Iterable[tuple[KernelConfig, Geometry, Resources]]) -> ConfigTable:
        """The table of some configs."""
        listed = list(rows)
        # `astuple` would copy each number in turn, which takes as long as making the space.
        values = [
            (*vars(geometry).values(), *vars(taken).values()) for _, geometry, taken in listed
        ]
        table = np.array(values, np.float64).reshape(len(listed), _WIDTH)
        return cls(tuple(row[0] for row in listed), np.ascontiguousarray(table.T))

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
