"""What the models see of a problem and a config: geometry, traffic and a rough analytic time.

All of it is arithmetic on the problem, the config and the GPU's data sheet, with a few constants.
Sizes are in bytes, times in microseconds; "log2" marks base-2 logarithms. The kernel's own m and n
are the problem's n and m under swap_ab, which is called "rows" and "columns" here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tilecast.heuristics.candidates import Candidates, ConfigColumns, ConfigTable
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import ACTIVATIONS, COLUMN, ROW, GemmOperands
from tilecast.heuristics.problem import GemmProblem

FEATURES_VERSION = 4
"""Raised when a feature changes its meaning."""

FEATURES = {
    "log_m": "log2 of the problem's m",
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
    "tiles": "log2 of the tiles handed out, idle ones of clusters and bands included",
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
    "mma_efficiency": "share of the tensor core's rate that the instruction's shape can reach",
    "compute_time": "log2 of the time of all multiplications, whole waves counted",
    "dram_time": "log2 of the time to bring every operand through DRAM once",
    "l2_time": "log2 of the time of the loads from L2, shared by those that load",
    "latency_time": "log2 of the time when each pipeline waits for the latency of its loads",
    "epilogue_time": "log2 of the time to store the tiles of one SM",
    "tile_epilogue_share": "time to store a tile over the time to multiply it",
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
    "operand_bits": "bits of an element of A",
    "result_bits": "bits of an element of the result",
    "integer": "1 when whole numbers are multiplied",
    "converted": "1 when B is brought to the type of A on its way",
    "promoted": "1 when every stage's sum is added to a more exact one",
    "vectors": "vectors that the epilogue reads",
    "activation": "1 when the epilogue has an activation",
    "load_alignment": "log2 of the bytes that rows of A and B are aligned to, up to 128",
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

CACHE_LINE_BYTES = 128
"""Alignment beyond which nothing is gained: the L2's line."""

# These constants, sums of squares and the root of the CTAs that share a load explain best how the
# times of a problem's configs differ, over 1,286 problems on an H200 (models/EXPERIMENTS.md).
ATTAINED = 2 / 3
"""Share of the data sheet's rates that kernels see of the tensor cores and of DRAM. A GPU that is
described by its own measured rates, some tenths lower, is taken for slower still."""
L2_ATTAINED = 1.4
"""The same of the L2's, which answers neighbours that ask for the same lines at once."""
LOAD_LATENCY = 0.63
"""Microseconds from asking for a tile to having it, under load."""
STAGES_READ = 1.5
"""Stages of a pipeline that are being read, so that nothing is on its way to them."""
LAUNCH_TIME = 4.0
"""Microseconds that a kernel takes beside its tiles: launch, descriptors, first load, drain."""
EXCHANGE_TIME = 0.7
"""Microseconds that CTAs wait for each other where they share a tile, for each doubling of them."""
EXCHANGE_RATE = 20e3
"""Bytes per microsecond that a CTA receives from others of its cluster."""
MMA_CYCLES_PER_COLUMN = 0.5
"""Cycles of one SM's tensor cores for 64 rows x 1 column x 32 bytes of depth."""
SMEM_ROWS_PER_CYCLE = 4.0
"""Rows of 32 bytes that shared memory feeds the tensor cores in a cycle (128 bytes)."""


def featurize(problem: GemmProblem, candidates: Candidates, hardware: Hardware) -> np.ndarray:
    """Compute the features of every config on one problem.

    Args:
        problem: what is to be multiplied.
        candidates: configs that are valid for it: all that compete, since some features compare
            them with each other.
        hardware: the GPU.

    Returns:
        float32 array [len(candidates), len(FEATURE_NAMES)], finite.
    """
    values = (
        vars(candidates.columns) | _of_problem(problem) | _of_configs(problem, candidates, hardware)
    )
    table = np.empty((len(FEATURE_NAMES), len(candidates)), np.float32)
    own = len(FEATURE_NAMES) - len(COMPARED)
    for row, name in zip(table[:own], FEATURE_NAMES[:own], strict=True):
        row[:] = values[name]
    if len(candidates):
        compared = table[_COMPARED_ROWS]
        table[own:] = compared - compared.min(1, keepdims=True)
    return np.ascontiguousarray(table.T)


_COMPARED_ROWS = [FEATURE_NAMES.index(name) for name in COMPARED]


def _of_problem(problem: GemmProblem) -> dict[str, float]:
    """What all configs share."""
    operands = problem.operands
    a, b = operands.a.dtype, operands.b.dtype
    a_extent = problem.k if operands.a.major == "row" else problem.m
    b_extent = problem.k if operands.b.major == "col" else problem.n
    out_extent = problem.n if operands.out.major == "row" else problem.m
    load_bytes = a.bytes(a_extent), b.bytes(b_extent)
    return {
        "log_m": math.log2(problem.m),
        "log_n": math.log2(problem.n),
        "log_k": math.log2(problem.k),
        "log_flops": math.log2(problem.flops),
        "problem_intensity": math.log2(problem.flops / problem.min_bytes),
        "operand_bits": a.bits,
        "result_bits": operands.out.dtype.bits,
        "integer": a.accumulator == "int32",
        "converted": b.bits < a.bits,
        "promoted": operands.acc.name != a.accumulator,
        "vectors": sum(extra.kind in (ROW, COLUMN) for extra in operands.extras),
        "activation": not ACTIVATIONS.isdisjoint(operands.epilogue),
        "load_alignment": _log_alignment(math.gcd(*map(int, load_bytes))),
        "store_alignment": _log_alignment(int(operands.out.dtype.bytes(out_extent))),
    }


def _log_alignment(row_bytes: int | np.ndarray) -> np.ndarray:
    """log2 of the largest power of two that divides a row of so many bytes, of each."""
    return np.log2(np.minimum(row_bytes & -row_bytes, CACHE_LINE_BYTES))


class _TileNumbers(NamedTuple):
    """What holds of each config whatever the problem's extents; float64 [configs] each."""

    step_bytes: np.ndarray
    """That a CTA loads in a pipeline step."""
    step_loads: np.ndarray
    """The same as the L2 feels it: four CTAs that share a load spare it half."""
    step_flops: np.ndarray
    """Arithmetic of a pipeline step."""
    out_bytes: np.ndarray
    """Of a tile of the result."""
    exchange: np.ndarray
    """Microseconds that the CTAs of a split exchange their sums."""
    mma_efficiency: np.ndarray
    """Share of the tensor core's rate that the instruction's shape can reach."""
    log_area: np.ndarray
    """log2 of the elements of a tile."""
    rows_piece: np.ndarray
    """log2 of the bytes that shared memory swizzles together of what the tile's rows are read from:
    128 where the tile's contiguous side is a multiple of them, 32 for 48 columns of 16 bits."""
    columns_piece: np.ndarray
    """The same of what its columns are read from."""
    rows_along_m: np.ndarray
    """1 where what the tile's rows are read from is contiguous along them."""
    columns_along_n: np.ndarray
    """1 where what its columns are read from is contiguous along them."""


@lru_cache(maxsize=16)
def _tile_numbers(table: ConfigTable, operands: GemmOperands) -> np.ndarray:
    """The rows of `_TileNumbers` for all configs of a table."""
    config = table.columns
    a, b = operands.a.dtype.bytes(1), operands.b.dtype.bytes(1)
    a_along_m, b_along_n = operands.a.major == "col", operands.b.major == "row"
    swapped = config.swap_ab > 0
    row_bytes, column_bytes = np.where(swapped, b, a), np.where(swapped, a, b)
    rows_along_m = np.where(swapped, b_along_n, a_along_m)
    columns_along_n = np.where(swapped, a_along_m, b_along_n)
    row_side = row_bytes * np.where(rows_along_m, config.tile_m, config.tile_k)
    column_side = column_bytes * np.where(columns_along_n, config.tile_n, config.tile_k)
    area = config.tile_m * config.tile_n
    a_bytes = row_bytes * (config.tile_m * config.tile_k)
    b_bytes = column_bytes * (config.tile_n * config.tile_k)
    sums = 4 * area * (1 - 1 / config.split_k)
    cycles = config.tile_n * MMA_CYCLES_PER_COLUMN
    return np.stack(
        _TileNumbers(
            step_bytes=a_bytes + b_bytes,
            step_loads=a_bytes / np.sqrt(config.cluster_n) + b_bytes / np.sqrt(config.cluster_m),
            step_flops=2 * area * config.tile_k,
            out_bytes=area * operands.out.dtype.bytes(1),
            exchange=sums / EXCHANGE_RATE + EXCHANGE_TIME * np.log2(config.split_k),
            mma_efficiency=cycles / np.maximum(cycles, (64 + config.tile_n) / SMEM_ROWS_PER_CYCLE),
            log_area=np.log2(area),
            rows_piece=_log_alignment(row_side.astype(int)),
            columns_piece=_log_alignment(column_side.astype(int)),
            rows_along_m=rows_along_m,
            columns_along_n=columns_along_n,
        )
    )


@dataclass(frozen=True, eq=False)
class _Waves:
    """How the tiles of a problem are handed out to the SMs, for each config."""

    extent_m: np.ndarray
    """The problem's extent along the kernel's rows."""
    extent_n: np.ndarray
    """The same along its columns."""
    tiles_m: np.ndarray
    """Tiles along the kernel's rows."""
    tiles_n: np.ndarray
    """Tiles along its columns."""
    k_steps: np.ndarray
    """Pipeline steps of a CTA for a tile."""
    cluster: np.ndarray
    """CTAs of a cluster."""
    clusters: np.ndarray
    """Clusters in all: tiles are handed out in whole ones."""
    slots: np.ndarray
    """Clusters that the GPU holds at once."""
    count: np.ndarray
    """Waves, with the part of one at the end."""
    rows: np.ndarray
    """Tile rows that one wave touches: it walks a band of `swizzle` clusters, along the raster."""
    columns: np.ndarray
    """Tile columns that it touches."""
    ctas_on_sm: np.ndarray
    """CTAs that a busy SM holds."""
    busy_sms: np.ndarray
    """SMs that have a tile at all."""

    @classmethod
    def of(cls, problem: GemmProblem, config: ConfigColumns, hardware: Hardware) -> _Waves:
        swapped, along_m, band = config.swap_ab > 0, config.raster_m > 0, config.swizzle
        extent_m = np.where(swapped, problem.n, problem.m)
        extent_n = np.where(swapped, problem.m, problem.n)
        tiles_m = np.ceil(extent_m / config.tile_m)
        tiles_n = np.ceil(extent_n / config.tile_n)
        clusters_m = np.ceil(tiles_m / config.cluster_m)
        clusters_n = np.ceil(tiles_n / config.cluster_n)
        cluster = config.cluster_m * config.cluster_n * config.split_k
        clusters = clusters_m * clusters_n * problem.batch
        slots = np.take(hardware.clusters_at_once, cluster.astype(int)) * config.ctas_per_sm
        length = np.where(along_m, clusters_m, clusters_n)
        held = np.minimum(slots, clusters_m * clusters_n)
        along = np.minimum(length, np.ceil(held / band))
        across = band * np.ceil(held / (length * band))
        resident = np.minimum(clusters, slots) * cluster
        busy_sms = np.minimum(resident, hardware.sm_count)
        return cls(
            extent_m,
            extent_n,
            tiles_m,
            tiles_n,
            np.ceil(np.ceil(problem.k / config.tile_k) / config.split_k),
            cluster,
            clusters,
            slots,
            clusters / slots,
            np.where(along_m, along, across) * config.cluster_m,
            np.where(along_m, across, along) * config.cluster_n,
            resident / busy_sms,
            busy_sms,
        )


def _of_configs(
    problem: GemmProblem, candidates: Candidates, hardware: Hardware
) -> dict[str, np.ndarray | float]:
    """How tiles and waves cover the problem and the GPU, and what each part of the work takes."""
    config = candidates.columns
    waves = _Waves.of(problem, config, hardware)
    out_along_m = problem.operands.out.major == "col"
    tiles, handed_out = waves.tiles_m * waves.tiles_n, waves.clusters * waves.cluster
    whole_waves = np.ceil(waves.count)
    return {
        "log_rows": np.log2(waves.extent_m),
        "log_columns": np.log2(waves.extent_n),
        "store_along_rows": out_along_m != (config.swap_ab > 0),
        "tiles_m": np.log2(waves.tiles_m),
        "tiles_n": np.log2(waves.tiles_n),
        "tiles": np.log2(handed_out),
        "waves": waves.count,
        "last_wave_fill": waves.count - whole_waves + 1,
        "wave_efficiency": waves.count / whole_waves,
        "padding_m": waves.extent_m / (waves.tiles_m * config.tile_m),
        "padding_n": waves.extent_n / (waves.tiles_n * config.tile_n),
        "padding_k": problem.k / (waves.k_steps * config.split_k * config.tile_k),
        "padding_clusters": tiles * problem.batch * config.split_k / handed_out,
        "k_steps": np.log2(waves.k_steps),
        "k_steps_per_stage": waves.k_steps / config.stages,
        "busy_sms": waves.busy_sms / hardware.sm_count,
        "ctas_on_sm": waves.ctas_on_sm,
        "wave_rows": np.log2(waves.rows),
        "wave_columns": np.log2(waves.columns),
        "wave_square": np.log2(waves.rows * config.tile_m / (waves.columns * config.tile_n)),
    } | _times(problem, candidates, hardware, waves)


def _times(
    problem: GemmProblem, candidates: Candidates, hardware: Hardware, waves: _Waves
) -> dict[str, np.ndarray | float]:
    """What each part of the work would take alone, in microseconds, and what they take together."""
    config, dtype = candidates.columns, problem.operands.a.dtype
    tile = _TileNumbers(*_tile_numbers(candidates.table, problem.operands)[:, candidates.rows])
    sm_flops = ATTAINED * hardware.peak(dtype) / hardware.sm_count * 1e-6
    dram_rate = ATTAINED * hardware.dram_bytes_per_second * 1e-6
    l2_rate = L2_ATTAINED * hardware.l2_bytes_per_second * 1e-6
    whole_waves = np.ceil(waves.count)
    multiplied = waves.k_steps * tile.step_flops / (sm_flops * tile.mma_efficiency)
    loaded = waves.k_steps * tile.step_loads / l2_rate
    waited = waves.k_steps * LOAD_LATENCY / np.maximum(config.stages - STAGES_READ, 0.5)
    stored = tile.out_bytes * hardware.sm_count / dram_rate

    def wave(clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The loads of a wave of so many clusters, and all that its CTAs do.

        The fewer CTAs, the more of the L2 for each. A CTA's MMA warps also store its tile, so they
        do not overlap; of two warp groups that take turns, one stores while the other multiplies.
        """
        ctas = clusters * waves.cluster
        on_sm = ctas / np.minimum(ctas, hardware.sm_count)
        loads = ctas * loaded
        multiply = np.sqrt((on_sm * multiplied) ** 2 + loads**2 + waited**2)
        in_turn = (config.ping_pong > 0) & (on_sm <= 1)
        return loads, multiply + np.where(in_turn, stored / whole_waves, stored + tile.exchange)

    full = np.floor(waves.count)
    last = waves.clusters - full * waves.slots
    full_loads, full_wave = wave(waves.slots)
    last_loads, last_wave = wave(np.maximum(last, 1))
    l2 = full * full_loads + np.where(last > 0, last_loads, 0)
    serial = full * full_wave + np.where(last > 0, last_wave, 0)
    rounds = whole_waves * waves.ctas_on_sm
    compute, latency = rounds * multiplied, whole_waves * waited
    dram = problem.min_bytes / dram_rate
    touched = waves.rows * config.tile_m + waves.columns * config.tile_n
    wave_bytes = touched * dtype.bytes(problem.k)
    memory = np.maximum(np.maximum(dram, l2), latency)
    analytic = LAUNCH_TIME + np.sqrt(serial**2 + dram**2)
    roofline = 1e6 * hardware.roofline_seconds(problem.flops, problem.min_bytes, dtype)
    alone = np.maximum(multiplied, np.where(full > 0, full_loads, last_loads))
    return {
        "tile_area": tile.log_area,
        "tile_intensity": tile.step_flops / tile.step_bytes,
        "mma_efficiency": tile.mma_efficiency,
        "rows_piece": tile.rows_piece,
        "columns_piece": tile.columns_piece,
        "rows_along_m": tile.rows_along_m,
        "columns_along_n": tile.columns_along_n,
        "bytes_in_flight": config.stages * tile.step_bytes * waves.ctas_on_sm,
        "exchange_time": np.log2(1 + tile.exchange),
        "compute_time": np.log2(compute),
        "dram_time": math.log2(dram),
        "l2_time": np.log2(l2),
        "latency_time": np.log2(latency),
        "epilogue_time": np.log2(rounds * stored),
        "tile_epilogue_share": stored / alone,
        "serial_time": np.log2(serial),
        "wave_bytes": np.log2(wave_bytes / hardware.l2_bytes),
        "wave_traffic_time": np.log2(np.maximum(dram, waves.count * wave_bytes / dram_rate)),
        "compute_to_memory": np.log2(compute / memory),
        "analytic_time": np.log2(analytic),
        "analytic_to_roofline": np.log2(analytic / roofline),
    }
