"""Configs, points of a tuning space: one, many in a table, and ordered selections of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, overload

import numpy as np


@dataclass(frozen=True, order=True)
class KernelConfig:
    """How a kernel is cut up, whatever it multiplies; a family adds its knobs as fields.

    Configs of one family are ordered by their fields, and a name belongs to one config of one
    family.
    """

    family: ClassVar[str]
    """Name of the kernel family."""

    @property
    def name(self) -> str:
        """A stable, readable key, which `tilecast.kernels.families.parse_config` reads."""
        raise NotImplementedError

    def __str__(self) -> str:
        """The name."""
        return self.name


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
        return self._position(config) >= 0

    def index(self, value: object, start: int = 0, stop: int | None = None) -> int:
        """Where a config stands.

        Raises:
            ValueError: it is not among them.
        """
        position = self._position(value)
        if position < 0:
            raise ValueError(f"{value} is not among {len(self)} candidates")
        return position

    def take(self, positions: np.ndarray | Sequence[int]) -> Candidates:
        """Those at some positions, in the order of the positions."""
        return Candidates(self.table, self.rows[np.asarray(positions, np.intp)])

    def select(self, configs: Iterable[KernelConfig]) -> Candidates:
        """Those of some configs that are among them, each once, in the order of the configs."""
        positions = map(self._position, dict.fromkeys(configs))
        return self.take([position for position in positions if position >= 0])

    @property
    def columns(self) -> ConfigColumns:
        """The columns of these rows, in their order; made anew each time, as they are large."""
        return ConfigColumns(*self.table.values.take(self.rows, axis=1))

    def _position(self, config: Any) -> int:
        """Where a config stands; -1 if it is not among them."""
        row = self.table.index.get(config)
        return -1 if row is None else int(self._positions[row])

    @cached_property
    def _positions(self) -> np.ndarray:
        """The position of each row of the table; -1 for those that are not among them."""
        positions = np.full(len(self.table.configs), -1, np.int32)
        positions[self.rows] = np.arange(len(self.rows))
        return positions
