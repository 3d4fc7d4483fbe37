"""What the models see of a problem and a config: geometry, traffic and a rough analytic time.

All of it is arithmetic on the problem, the config and the GPU's data sheet; nothing is measured.
Sizes are in bytes, times in microseconds; "log2" marks base-2 logarithms. The kernel's own m and n
are the problem's n and m under swap_ab, which is called "rows" and "columns" here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from threading import Lock

import numpy as np

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import DTYPE_BYTES, GemmOperands, GemmProblem
from tilecast.kernels.cutlass_sm90.resources import accumulator_registers, mma_registers, smem_bytes
from tilecast.kernels.cutlass_sm90.space import L2_BYTES_PER_SECOND

FEATURES_VERSION = 1
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
    "k_steps": "log2 of the pipeline steps of one tile",
    "k_steps_per_stage": "pipeline steps of one tile per stage",
    "busy_sms": "share of the SMs that have a tile at all",
    "ctas_on_sm": "CTAs that a busy SM really holds",
    "mma_efficiency": "share of the tensor core's rate that the instruction's shape can reach",
    "compute_time": "log2 of the time of all multiplications, whole waves counted",
    "dram_time": "log2 of the time to bring every operand through DRAM once",
    "l2_time": "log2 of the time of the loads from L2, multicast counted once",
    "latency_time": "log2 of the time when each pipeline waits for the latency of its loads",
    "epilogue_time": "log2 of the time to store the tiles of one SM",
    "tile_epilogue_share": "time to store a tile over the time to multiply it",
    "serial_time": "log2 of the time when a CTA stores a tile before it multiplies the next",
    "wave_rows": "log2 of the tile rows that one wave touches",
    "wave_columns": "log2 of the tile columns that one wave touches",
    "wave_bytes": "log2 of the distinct bytes that one wave loads, over the L2's size",
    "wave_traffic_time": "log2 of the time to load each wave's distinct bytes from DRAM anew",
    "wave_square": "log2 of the tile rows over the tile columns that one wave touches",
    "compute_to_memory": "log2 of compute time over the slower memory time",
    "analytic_time": "log2 of the analytic time",
    "analytic_to_roofline": "log2 of the analytic time over the roofline",
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

CLUSTERS_AT_ONCE = (0, 132, 66, 44, 30)
"""Clusters of 0 to 4 CTAs that an H200 holds, one CTA per SM: ``cuOccupancyMaxActiveClusters`` for
1, 2 and 4, a third of the SMs for 3, which the space does not use. Fours leave SMs over."""
LOAD_LATENCY = 0.9
"""Microseconds from asking for a tile to having it, under load; its order of magnitude matters."""
LAUNCH_TIME = 2.5
"""Microseconds that a kernel takes beside its tiles: launch, descriptors, first load, drain."""
STORE_TIME = 0.5
"""Microseconds that storing a tile takes beside its bytes."""
MMA_CYCLES_PER_COLUMN = 0.5
"""Cycles of one SM's tensor cores for 64 rows x 1 column x 16 deep in 16-bit operands."""
SMEM_ROWS_PER_CYCLE = 4.0
"""Rows of 16 16-bit operands that shared memory feeds the tensor cores in a cycle (128 bytes)."""


@dataclass(frozen=True, eq=False)
class _ConfigColumns:
    """The fields of many configs, one float64 array each."""

    tile_m: np.ndarray
    tile_n: np.ndarray
    tile_k: np.ndarray
    cluster_m: np.ndarray
    cluster_n: np.ndarray
    stages: np.ndarray
    warp_groups: np.ndarray
    ctas_per_sm: np.ndarray
    swizzle: np.ndarray
    raster_m: np.ndarray
    swap_ab: np.ndarray
    smem_bytes: np.ndarray
    mma_registers: np.ndarray
    accumulator_registers: np.ndarray


def _config_row(config: KernelConfig, operands: GemmOperands) -> tuple[float, ...]:
    """The fields of `_ConfigColumns` for one config."""
    return (
        config.tile_m,
        config.tile_n,
        config.tile_k,
        config.cluster_m,
        config.cluster_n,
        config.stages,
        config.warp_groups,
        config.ctas_per_sm,
        config.swizzle,
        config.raster == "m",
        config.swap_ab,
        smem_bytes(config, operands),
        mma_registers(config),
        accumulator_registers(config),
    )


class _ConfigTable:
    """Rows of every config met so far: a new problem's candidates are looked up, not computed."""

    def __init__(self, operands: GemmOperands):
        self._operands = operands
        self._lock = Lock()
        self._index: dict[KernelConfig, int] = {}
        self._rows = np.empty((0, len(fields(_ConfigColumns))))

    def columns(self, configs: tuple[KernelConfig, ...]) -> _ConfigColumns:
        """Columns of some configs, in their order."""
        try:
            rows = [self._index[config] for config in configs]
        except KeyError:
            self._add(configs)
            rows = [self._index[config] for config in configs]
        return _ConfigColumns(*np.ascontiguousarray(self._rows[rows].T))

    def _add(self, configs: tuple[KernelConfig, ...]) -> None:
        with self._lock:
            new = [config for config in dict.fromkeys(configs) if config not in self._index]
            added = [_config_row(config, self._operands) for config in new]
            added = np.array(added, np.float64).reshape(len(new), self._rows.shape[1])
            first = len(self._rows)
            # Rows before index: a thread that finds an index finds its row.
            self._rows = np.concatenate([self._rows, added])
            self._index.update((config, first + i) for i, config in enumerate(new))


_config_table = lru_cache(maxsize=16)(_ConfigTable)


class _Identity:
    """A key that compares by identity: the same tuple again costs nothing."""

    def __init__(self, configs: tuple[KernelConfig, ...]):
        self.configs = configs

    def __hash__(self) -> int:
        return id(self.configs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.configs is other.configs


@lru_cache(maxsize=256)
def _config_columns(key: _Identity, operands: GemmOperands) -> _ConfigColumns:
    return _config_table(operands).columns(key.configs)


def featurize(
    problem: GemmProblem, configs: Sequence[KernelConfig], hardware: Hardware
) -> np.ndarray:
    """Compute the features of every config on one problem.

    Passing the same tuple again is quicker than passing a list.

    Args:
        problem: what is to be multiplied.
        configs: configs that are valid for its operands: all that compete, since some features
            compare them with each other.
        hardware: the GPU.

    Returns:
        float32 array [len(configs), len(FEATURE_NAMES)], finite.
    """
    columns = _config_columns(_Identity(tuple(configs)), problem.operands)
    values = _features(problem, columns, hardware)
    table = np.empty((len(FEATURE_NAMES), len(configs)), np.float32)
    own = len(FEATURE_NAMES) - len(COMPARED)
    for row, name in zip(table[:own], FEATURE_NAMES[:own], strict=True):
        row[:] = values[name]
    if configs:
        compared = table[_COMPARED_ROWS]
        table[own:] = compared - compared.min(1, keepdims=True)
    return np.ascontiguousarray(table.T)


_COMPARED_ROWS = [FEATURE_NAMES.index(name) for name in COMPARED]


def _log_alignment(elements: int, element_bytes: int) -> float:
    """log2 of the largest power of two that divides a row of so many elements, in bytes."""
    row = elements * element_bytes
    return np.log2(min(row & -row, CACHE_LINE_BYTES))


def _ceil(numerator: np.ndarray | int, denominator: np.ndarray) -> np.ndarray:
    return np.ceil(numerator / denominator)


def _features(
    problem: GemmProblem, config: _ConfigColumns, hardware: Hardware
) -> dict[str, np.ndarray | float]:
    operands = problem.operands
    in_bytes, out_bytes = DTYPE_BYTES[operands.dtype], DTYPE_BYTES[operands.out_dtype]
    contiguous_load = math.gcd(
        problem.k if operands.a_major == "row" else problem.m,
        problem.k if operands.b_major == "col" else problem.n,
    )
    swapped = config.swap_ab > 0
    rows = np.where(swapped, problem.n, problem.m)
    columns = np.where(swapped, problem.m, problem.n)
    along_m = config.raster_m > 0

    # Tiles are handed out in whole clusters, and clusters in whole bands of the swizzle: what pads
    # them takes as long as a real tile.
    tiles_m, tiles_n = _ceil(rows, config.tile_m), _ceil(columns, config.tile_n)
    clusters_m, clusters_n = _ceil(tiles_m, config.cluster_m), _ceil(tiles_n, config.cluster_n)
    band = config.swizzle
    clusters_m = np.where(along_m, clusters_m, _ceil(clusters_m, band) * band)
    clusters_n = np.where(along_m, _ceil(clusters_n, band) * band, clusters_n)
    cluster = config.cluster_m * config.cluster_n
    clusters = clusters_m * clusters_n * problem.batch
    slots = np.take(CLUSTERS_AT_ONCE, cluster.astype(int)) * config.ctas_per_sm
    waves = clusters / slots
    whole_waves = np.ceil(waves)
    resident = np.minimum(clusters, slots) * cluster
    busy_sms = np.minimum(resident, hardware.sm_count)
    ctas_on_sm = resident / busy_sms

    # One wave walks a band of `swizzle` clusters across, then along the raster.
    length = np.where(along_m, clusters_m, clusters_n)
    wave_clusters = np.minimum(slots, clusters_m * clusters_n)
    along = np.minimum(length, _ceil(wave_clusters, band))
    across = band * _ceil(wave_clusters, length * band)
    wave_rows = np.where(along_m, along, across) * config.cluster_m
    wave_columns = np.where(along_m, across, along) * config.cluster_n

    k_steps = _ceil(problem.k, config.tile_k)
    a_bytes = config.tile_m * config.tile_k * in_bytes
    b_bytes = config.tile_n * config.tile_k * in_bytes
    stage_bytes = a_bytes + b_bytes
    bytes_in_flight = config.stages * stage_bytes * ctas_on_sm
    mma_cycles = config.tile_n * MMA_CYCLES_PER_COLUMN
    mma_efficiency = mma_cycles / np.maximum(mma_cycles, (64 + config.tile_n) / SMEM_ROWS_PER_CYCLE)

    sm_flops = hardware.peak(problem.operands.dtype) / hardware.sm_count * 1e-6
    tile_flops = 2 * config.tile_m * config.tile_n * config.tile_k * k_steps
    rounds = whole_waves * ctas_on_sm
    compute = rounds * tile_flops / (sm_flops * mma_efficiency)
    dram_rate = hardware.dram_bytes_per_second * 1e-6
    dram = problem.min_bytes / dram_rate
    loads = k_steps * (a_bytes / config.cluster_n + b_bytes / config.cluster_m)
    l2_rate = L2_BYTES_PER_SECOND / hardware.sm_count * 1e-6
    l2 = rounds * loads / l2_rate
    latency = rounds * k_steps * stage_bytes * LOAD_LATENCY / bytes_in_flight
    epilogue = rounds * config.tile_m * config.tile_n * out_bytes / l2_rate
    wave_bytes = (wave_rows * config.tile_m + wave_columns * config.tile_n) * problem.k * in_bytes
    wave_traffic = np.maximum(dram, waves * wave_bytes / dram_rate)
    memory = np.maximum(np.maximum(dram, l2), latency)
    # A CTA's MMA warps also store its tile, so they do not overlap; those of two CTAs on an SM do.
    tile_multiply = np.maximum(tile_flops / (sm_flops * mma_efficiency), loads / l2_rate)
    tile_store = (
        STORE_TIME + config.tile_m * config.tile_n * out_bytes * hardware.sm_count / dram_rate
    )
    alone = tile_multiply + tile_store
    serial = whole_waves * np.where(ctas_on_sm > 1, np.maximum(2 * tile_multiply, alone), alone)
    analytic = LAUNCH_TIME + np.maximum(serial, memory)
    roofline = 1e6 * hardware.roofline_seconds(
        problem.flops, problem.min_bytes, problem.operands.dtype
    )

    return {
        "log_m": np.log2(problem.m),
        "log_n": np.log2(problem.n),
        "log_k": np.log2(problem.k),
        "log_rows": np.log2(rows),
        "log_columns": np.log2(columns),
        "log_flops": np.log2(problem.flops),
        "problem_intensity": np.log2(problem.flops / problem.min_bytes),
        "swap_ab": config.swap_ab,
        "tile_m": config.tile_m,
        "tile_n": config.tile_n,
        "tile_k": config.tile_k,
        "tile_area": np.log2(config.tile_m * config.tile_n),
        "tile_intensity": 2 * config.tile_m * config.tile_n * config.tile_k / stage_bytes,
        "cluster_m": config.cluster_m,
        "cluster_n": config.cluster_n,
        "stages": config.stages,
        "warp_groups": config.warp_groups,
        "ctas_per_sm": config.ctas_per_sm,
        "raster_m": config.raster_m,
        "swizzle": config.swizzle,
        "smem_bytes": config.smem_bytes,
        "mma_registers": config.mma_registers,
        "accumulator_registers": config.accumulator_registers,
        "bytes_in_flight": bytes_in_flight,
        "tiles_m": np.log2(tiles_m),
        "tiles_n": np.log2(tiles_n),
        "tiles": np.log2(clusters * cluster),
        "waves": waves,
        "last_wave_fill": waves - whole_waves + 1,
        "wave_efficiency": waves / whole_waves,
        "padding_m": rows / (tiles_m * config.tile_m),
        "padding_n": columns / (tiles_n * config.tile_n),
        "padding_k": problem.k / (k_steps * config.tile_k),
        "padding_clusters": tiles_m * tiles_n * problem.batch / (clusters * cluster),
        "k_steps": np.log2(k_steps),
        "k_steps_per_stage": k_steps / config.stages,
        "busy_sms": busy_sms / hardware.sm_count,
        "ctas_on_sm": ctas_on_sm,
        "mma_efficiency": mma_efficiency,
        "compute_time": np.log2(compute),
        "dram_time": np.log2(dram),
        "l2_time": np.log2(l2),
        "latency_time": np.log2(latency),
        "epilogue_time": np.log2(epilogue),
        "tile_epilogue_share": tile_store / tile_multiply,
        "serial_time": np.log2(serial),
        "wave_rows": np.log2(wave_rows),
        "wave_columns": np.log2(wave_columns),
        "wave_bytes": np.log2(wave_bytes / hardware.l2_bytes),
        "wave_traffic_time": np.log2(wave_traffic),
        "wave_square": np.log2(wave_rows * config.tile_m / (wave_columns * config.tile_n)),
        "compute_to_memory": np.log2(compute / memory),
        "analytic_time": np.log2(analytic),
        "analytic_to_roofline": np.log2(analytic / roofline),
        "load_alignment": _log_alignment(contiguous_load, in_bytes),
        "store_alignment": _log_alignment(
            problem.n if operands.out_major == "row" else problem.m, out_bytes
        ),
    }
