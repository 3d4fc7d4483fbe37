"""What the models see of a problem and a config: geometry, traffic and a rough analytic time.

All of it is arithmetic on the problem, the config and the GPU's data sheet, with a few constants.
Sizes are in bytes, times in microseconds; "log2" marks base-2 logarithms. The kernel's own m and n
are the problem's n and m under swap_ab, which is called "rows" and "columns" here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tilecast.heuristics.config import Candidates, ConfigColumns
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import COLUMN, GROUP_ROWS, ROW
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.candidates import candidates, families_in
from tilecast.models.features.analytic_time import times
from tilecast.models.features.group_tiles import expected
from tilecast.models.features.l2_loads import Loads
from tilecast.models.features.tile_numbers import (
    TILE_FEATURES,
    TileNumbers,
    log_alignment,
    tile_table,
)
from tilecast.models.features.tile_waves import Waves

FEATURES_VERSION = 5
"""Raised when a feature changes its meaning."""

FEATURES = {
    "log_m": "log2 of the problem's m; of grouped rows, of those of a group",
    "log_n": "log2 of the problem's n",
    "log_k": "log2 of the problem's k",
    "log_rows": "log2 of the extent that the tile's m runs along",
    "log_columns": "log2 of the extent that the tile's n runs along",
    "log_flops": "log2 of the problem's arithmetic",
    "problem_intensity": "log2 of the problem's FLOP per byte of DRAM",
    "swap_ab": "1 when the transposed problem is solved",
    "tile_m": "rows of the tile",
    "tile_n": "columns of the tile",
    "tile_k": "depth of one pipeline stage",
    "tile_area": "log2 of tile_m x tile_n",
    "tile_intensity": "FLOP per byte that a CTA loads, without multicast",
    "cluster_m": "CTAs that share loads of B",
    "cluster_n": "CTAs that share loads of A",
    "stages": "stages of the pipeline",
    "warp_groups": "MMA warp groups",
    "ctas_per_sm": "CTAs that share an SM",
    "raster_m": "1 when tiles are handed out along rows",
    "swizzle": "width of the raster's band, in clusters",
    "split_k": "CTAs that share a tile, a stretch of k each",
    "ping_pong": "1 when two warp groups take tiles in turn",
    "smem_bytes": "shared memory of one CTA",
    "mma_registers": "registers per MMA thread",
    "accumulator_registers": "accumulators per MMA thread",
    "bytes_in_flight": "bytes that the pipelines of one SM can have on their way",
    "tiles_m": "log2 of the tiles along rows",
    "tiles_n": "log2 of the tiles along columns",
    "tiles": "log2 of the tiles handed out, one a stretch of k, idle ones of clusters included",
    "waves": "rounds of tiles that the GPU needs",
    "last_wave_fill": "share of the GPU that the last wave keeps busy",
    "wave_efficiency": "rounds of tiles over whole rounds",
    "padding_m": "share of the tile rows that lie inside the problem",
    "padding_n": "share of the tile columns that lie inside the problem",
    "padding_k": "share of the k steps that lies inside the problem",
    "padding_clusters": "share of the tiles handed out that lies inside the problem",
    "k_steps": "log2 of the pipeline steps of one CTA for a tile",
    "k_steps_per_stage": "pipeline steps of one CTA for a tile per stage",
    "exchange_time": "log2 of 1 plus the time to bring the sums of a split together",
    "busy_sms": "share of the SMs that have a tile at all",
    "ctas_on_sm": "CTAs that a busy SM really holds",
    "mma_efficiency": "share of the tensor core's rate that shape, conversion and promotion leave",
    "compute_time": "log2 of the time of all multiplications, whole waves counted",
    "dram_time": "log2 of the time to bring every operand through DRAM once",
    "l2_time": "log2 of the time of the loads from L2, shared by those that load",
    "latency_time": "log2 of the time when each pipeline waits for the latency of its loads",
    "epilogue_time": "log2 of the time to store the tiles of one SM",
    "tile_epilogue_share": "time to store a tile over the longer of loading and multiplying it",
    "serial_time": "log2 of the time of all waves, when a CTA stores a tile before the next",
    "wave_rows": "log2 of the tile rows that one wave touches",
    "wave_columns": "log2 of the tile columns that one wave touches",
    "wave_bytes": "log2 of the distinct bytes that one wave loads, over the L2's size",
    "wave_traffic_time": "log2 of the time to load each wave's distinct bytes from DRAM anew",
    "wave_square": "log2 of the tile rows over the tile columns that one wave touches",
    "compute_to_memory": "log2 of compute time over the slower memory time",
    "analytic_time": "log2 of the analytic time",
    "analytic_to_roofline": "log2 of the analytic time over the roofline",
    "rows_along_m": "1 when what the tile's rows are read from is contiguous along them",
    "columns_along_n": "1 when what its columns are read from is contiguous along them",
    "rows_piece": "log2 of the bytes of the tile's rows that lie side by side in shared memory",
    "columns_piece": "log2 of the bytes of its columns that do",
    "store_along_rows": "1 when the result is contiguous along the tile's rows",
    "store_columns": "columns of the tile that are stored at once",
    "operand_bits": "bits of an element of A",
    "result_bits": "bits of an element of the result",
    "integer": "1 when whole numbers are multiplied",
    "converted": "1 when B is brought to the type of A on its way",
    "promoted": "1 when every stage's sum is added to a more exact one",
    "vectors": "vectors that the epilogue reads",
    "activation": "1 when the epilogue has an activation",
    "rows_alignment": "log2 of the bytes that what the tile's rows are read from is aligned to",
    "columns_alignment": "log2 of the bytes that what its columns are read from is aligned to",
    "store_alignment": "log2 of the bytes that rows of the output are aligned to, up to 128",
}
"""Name and meaning of every feature of a config by itself, in the order of the columns."""

COMPARED = (
    "waves",
    "wave_efficiency",
    "tiles",
    "k_steps",
    "compute_time",
    "l2_time",
    "latency_time",
    "epilogue_time",
    "serial_time",
    "wave_bytes",
    "wave_traffic_time",
    "analytic_time",
)
"""Features that are also given as the distance from the least among the configs that compete."""

FEATURES |= {
    f"{name}_over_least": f"{FEATURES[name]}: distance from the least of all candidates"
    for name in COMPARED
}

FEATURE_NAMES = tuple(FEATURES)
ANALYTIC = FEATURE_NAMES.index("analytic_time")
"""Column of the analytic time."""

_LOG_2 = np.log(np.float32(2))
_COLUMN = {name: column for column, name in enumerate(FEATURE_NAMES)}
_COMPARED_COLUMNS = [_COLUMN[name] for name in COMPARED]
_TILE_COLUMNS = [_COLUMN[name] for name in TILE_FEATURES]


def featurize(problem: GemmProblem, configs: Candidates, hardware: Hardware) -> np.ndarray:
    """Compute the features of some configs on one problem, beside all candidates of the problem.

    The configs are valid for it: its candidates, some of them, or others beside them.

    Returns:
        float32 array [len(configs), len(FEATURE_NAMES)], finite.
    """
    quantities = _Quantities.of(problem, configs, hardware)
    return quantities.features(np.arange(len(configs)), _least(quantities, problem, hardware))


def leading(
    problem: GemmProblem, configs: Candidates, hardware: Hardware, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """The indices of the first ``count`` configs by analytic time, and their features.

    That is quicker than `featurize`: logarithms are taken of these alone.
    """
    quantities = _Quantities.of(problem, configs, hardware)
    analytic = np.log2(quantities.logged["analytic_time"]).astype(np.float32)
    order = _smallest(analytic * _LOG_2, count)
    return order, quantities.features(order, _least(quantities, problem, hardware))


def _smallest(values: np.ndarray, count: int) -> np.ndarray:
    """Indices of the ``count`` smallest, from the smallest on; of equal ones the earlier first."""
    within = np.arange(len(values))
    if count < len(values):
        within = within[values <= np.partition(values, count)[count]]
    return within[np.argsort(values[within], kind="stable")[:count]]


def log_analytic(features: np.ndarray) -> np.ndarray:
    """Natural logarithm of the analytic time in microseconds; features are [rows, features]."""
    return features[:, ANALYTIC] * _LOG_2


@dataclass(frozen=True, eq=False)
class _Quantities:
    """What the features of some configs are made of, but for those of the tiles by themselves."""

    configs: Candidates
    tiles: np.ndarray
    """`TILE_FEATURES` of each config of the table; float32 [configs, features]."""
    plain: Mapping[str, np.ndarray | float]
    """Features as they are; [configs], or what all share."""
    logged: Mapping[str, np.ndarray]
    """Those of which the feature is the base-2 logarithm; float64 [configs]."""

    @classmethod
    def of(cls, problem: GemmProblem, configs: Candidates, hardware: Hardware) -> _Quantities:
        """Those of configs by themselves; groups along k count as `GemmProblem.evenly` says."""
        problem = problem.evenly()
        table = tile_table(configs.table, problem.operands)
        tile = TileNumbers(*table.numbers.take(configs.rows, axis=1))
        plain, logged = _of_configs(problem, configs.columns, tile, hardware)
        return cls(configs, table.features, _of_problem(problem) | plain, logged)

    def least(self) -> np.ndarray:
        """The least of each of `COMPARED`; float32."""
        return np.array(
            [
                np.log2(self.logged[name].min(initial=np.inf))
                if name in self.logged
                else np.min(self.plain[name], initial=np.inf)
                for name in COMPARED
            ],
            np.float32,
        )

    def features(self, rows: np.ndarray, least: np.ndarray) -> np.ndarray:
        """The features of some of the configs, beside the ``least`` of all candidates."""
        table = np.empty((len(rows), len(FEATURE_NAMES)), np.float32)
        table[:, _TILE_COLUMNS] = self.tiles.take(self.configs.rows[rows], axis=0)
        for name, value in self.plain.items():
            table[:, _COLUMN[name]] = value[rows] if isinstance(value, np.ndarray) else value
        logged = np.log2([values[rows] for values in self.logged.values()])
        table[:, [_COLUMN[name] for name in self.logged]] = logged.T
        table[:, -len(COMPARED) :] = table[:, _COMPARED_COLUMNS] - least
        return table


def _least(quantities: _Quantities, problem: GemmProblem, hardware: Hardware) -> np.ndarray:
    """The least of each of `COMPARED` among all candidates of a problem, and the configs' own.

    All are those of the families that the configs' table has some of.
    """
    own, families = quantities.least(), families_in(quantities.configs.table) or None
    if quantities.configs is candidates(problem, hardware, families=families):
        return own
    return np.minimum(own, _least_of_all(problem, hardware, families))


@lru_cache(maxsize=4096)
def _least_of_all(
    problem: GemmProblem, hardware: Hardware, families: frozenset[str] | None
) -> np.ndarray:
    every = candidates(problem, hardware, families=families)
    return _Quantities.of(problem, every, hardware).least()


def _of_problem(problem: GemmProblem) -> dict[str, float | np.ndarray]:
    """What all configs share."""
    operands = problem.operands
    a = operands.a.dtype
    out_extent = problem.out_n if operands.out.major == "row" else problem.m
    return {
        "log_m": math.log2(problem.rows),
        "log_n": math.log2(problem.n),
        "log_k": math.log2(problem.k),
        "log_flops": math.log2(problem.flops),
        "problem_intensity": math.log2(problem.flops / problem.min_bytes),
        "operand_bits": a.bits,
        "result_bits": operands.out.dtype.bits,
        "integer": a.accumulator == "int32",
        "converted": operands.converted,
        "promoted": operands.promoted,
        "vectors": sum(extra.kind in (ROW, GROUP_ROWS, COLUMN) for extra in operands.extras),
        "activation": bool(operands.activation),
        "store_alignment": log_alignment(int(operands.out.dtype.bytes(out_extent))),
    }


def _of_configs(
    problem: GemmProblem, config: ConfigColumns, tile: TileNumbers, hardware: Hardware
) -> tuple[dict[str, np.ndarray | float], dict[str, np.ndarray]]:
    """How tiles and waves cover the problem and the GPU, and what each part of the work takes.

    Returns:
        Features as they are, and those of which the feature is the base-2 logarithm.
    """
    waves = Waves.of(problem, config, tile, hardware)
    loads = Loads.of(problem, config, tile)
    tiles, handed_out = waves.tiles_m * waves.tiles_n, expected(waves.clusters) * waves.cluster
    parts, part_times = times(problem, config, tile, waves, loads, hardware)
    plain = parts | {
        "rows_alignment": loads.rows_alignment,
        "columns_alignment": loads.columns_alignment,
        "waves": waves.count,
        "last_wave_fill": waves.count - waves.whole + 1,
        "wave_efficiency": waves.count / waves.whole,
        "padding_m": waves.extent_m / (waves.tiles_m * config.tile_m),
        "padding_n": waves.extent_n / (waves.tiles_n * config.tile_n),
        "padding_k": problem.k / (waves.k_steps * config.split_k * config.tile_k),
        "padding_clusters": tiles * problem.products * config.split_k / handed_out,
        "k_steps_per_stage": waves.k_steps / config.stages,
        "bytes_in_flight": config.stages * tile.step_bytes * waves.ctas_on_sm,
        "busy_sms": waves.busy_sms / hardware.sm_count,
        "ctas_on_sm": waves.ctas_on_sm,
    }
    logged = part_times | {
        "log_rows": waves.extent_m,
        "log_columns": waves.extent_n,
        "tiles_m": waves.tiles_m,
        "tiles_n": waves.tiles_n,
        "tiles": handed_out,
        "k_steps": waves.k_steps,
        "wave_rows": waves.rows,
        "wave_columns": waves.columns,
        "wave_square": waves.rows * config.tile_m / (waves.columns * config.tile_n),
    }
    return plain, logged
