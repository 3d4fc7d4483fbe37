"""What the models see of a problem and a config: geometry, traffic and a rough analytic time.

All of it is arithmetic on the problem, the config and the GPU's data sheet; nothing is measured.
Sizes are in bytes, times in microseconds; "log2" marks base-2 logarithms. The kernel's own m and n
are the problem's n and m under swap_ab, which is called "rows" and "columns" here.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from tilecast.heuristics.candidates import Candidates, ConfigTable
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.operands import ACTIVATIONS, COLUMN, ROW, GemmOperands
from tilecast.heuristics.problem import GemmProblem

FEATURES_VERSION = 3
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
    "rows_along_m": "1 when what the tile's rows are read from is contiguous along them",
    "columns_along_n": "1 when what its columns are read from is contiguous along them",
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

LOAD_LATENCY = 0.9
"""Microseconds from asking for a tile to having it, under load; its order of magnitude matters."""
LAUNCH_TIME = 2.5
"""Microseconds that a kernel takes beside its tiles: launch, descriptors, first load, drain."""
STORE_TIME = 0.5
"""Microseconds that storing a tile takes beside its bytes."""
EXCHANGE_TIME = 0.7
"""Microseconds that CTAs wait for each other where they share a tile; an order of magnitude."""
EXCHANGE_RATE = 100e3
"""Bytes per microsecond that a CTA receives from others of its cluster; an order of magnitude."""
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


def _log_alignment(row_bytes: int) -> float:
    """log2 of the largest power of two that divides a row, in bytes."""
    return math.log2(min(row_bytes & -row_bytes, CACHE_LINE_BYTES))


@lru_cache(maxsize=16)
def _tile_numbers(table: ConfigTable, operands: GemmOperands) -> np.ndarray:
    """What holds of each config of a table whatever the problem; float64 array [6, configs].

    Of a pipeline step: bytes of A, bytes of B, arithmetic. Of a tile: bytes of the result, log2 of
    its elements, and the share of the tensor core's rate that the instruction's shape can reach.
    """
    config = table.columns
    a, b = operands.a.dtype.bytes(1), operands.b.dtype.bytes(1)
    area = config.tile_m * config.tile_n
    cycles = config.tile_n * MMA_CYCLES_PER_COLUMN
    return np.stack(
        [
            np.where(config.swap_ab > 0, b, a) * (config.tile_m * config.tile_k),
            np.where(config.swap_ab > 0, a, b) * (config.tile_n * config.tile_k),
            2 * area * config.tile_k,
            area * operands.out.dtype.bytes(1),
            np.log2(area),
            cycles / np.maximum(cycles, (64 + config.tile_n) / SMEM_ROWS_PER_CYCLE),
        ]
    )


def _of_configs(
    problem: GemmProblem, candidates: Candidates, hardware: Hardware
) -> dict[str, np.ndarray | float]:
    """How tiles and waves cover the problem and the GPU, and what each part of the work takes."""
    config, dtype = candidates.columns, problem.operands.a.dtype
    numbers = _tile_numbers(candidates.table, problem.operands)[:, candidates.rows]
    a_bytes, b_bytes, step_flops, out_bytes, log_area, mma_efficiency = numbers
    along_m, band = config.raster_m > 0, config.swizzle
    swapped, operands = config.swap_ab > 0, problem.operands
    rows = np.where(swapped, problem.n, problem.m)
    columns = np.where(swapped, problem.m, problem.n)
    a_along_m, b_along_n = operands.a.major == "col", operands.b.major == "row"
    out_along_m = operands.out.major == "col"
    all_steps = np.ceil(problem.k / config.tile_k)
    k_steps = np.ceil(all_steps / config.split_k)

    # Tiles are handed out in whole clusters, and clusters in whole bands of the swizzle: what pads
    # them takes as long as a real tile.
    tiles_m, tiles_n = np.ceil(rows / config.tile_m), np.ceil(columns / config.tile_n)
    clusters_m = np.ceil(tiles_m / config.cluster_m)
    clusters_n = np.ceil(tiles_n / config.cluster_n)
    cluster = config.cluster_m * config.cluster_n * config.split_k
    clusters = clusters_m * clusters_n * problem.batch
    handed_out = clusters * cluster
    slots = np.take(hardware.clusters_at_once, cluster.astype(int)) * config.ctas_per_sm
    waves = clusters / slots
    whole_waves = np.ceil(waves)
    resident = np.minimum(clusters, slots) * cluster
    busy_sms = np.minimum(resident, hardware.sm_count)
    ctas_on_sm = resident / busy_sms

    # One wave walks a band of `swizzle` clusters across, then along the raster.
    length = np.where(along_m, clusters_m, clusters_n)
    wave_clusters = np.minimum(slots, clusters_m * clusters_n)
    along = np.minimum(length, np.ceil(wave_clusters / band))
    across = band * np.ceil(wave_clusters / (length * band))
    wave_rows = np.where(along_m, along, across) * config.cluster_m
    wave_columns = np.where(along_m, across, along) * config.cluster_n

    # What each part of the work would take alone.
    sm_flops = hardware.peak(dtype) / hardware.sm_count * 1e-6
    dram_rate = hardware.dram_bytes_per_second * 1e-6
    l2_rate = hardware.l2_bytes_per_second / hardware.sm_count * 1e-6
    step_bytes = a_bytes + b_bytes
    in_flight = config.stages * step_bytes * ctas_on_sm
    rounds = whole_waves * ctas_on_sm
    tile_compute = step_flops * k_steps / (sm_flops * mma_efficiency)
    loads = k_steps * (a_bytes / config.cluster_n + b_bytes / config.cluster_m)
    compute, l2 = rounds * tile_compute, rounds * loads / l2_rate
    dram = problem.min_bytes / dram_rate
    latency = rounds * k_steps * step_bytes * LOAD_LATENCY / in_flight
    epilogue = rounds * out_bytes / l2_rate
    k_bytes = dtype.bytes(problem.k)
    wave_bytes = (wave_rows * config.tile_m + wave_columns * config.tile_n) * k_bytes
    wave_traffic = np.maximum(dram, waves * wave_bytes / dram_rate)
    memory = np.maximum(np.maximum(dram, l2), latency)

    # A CTA's MMA warps also store its tile, so they do not overlap; those of two CTAs on an SM do.
    tile_multiply = np.maximum(tile_compute, loads / l2_rate)
    exchanged = out_bytes / problem.operands.out.dtype.bytes(1) * 4 * (config.split_k - 1)
    exchange = exchanged / config.split_k / EXCHANGE_RATE + EXCHANGE_TIME * (config.split_k > 1)
    tile_store = STORE_TIME + out_bytes * hardware.sm_count / dram_rate
    alone = tile_multiply + tile_store + exchange
    overlapped = np.maximum(2 * tile_multiply, alone)
    # Of two warp groups that take turns, one stores while the other multiplies.
    in_turn = (whole_waves * tile_multiply + tile_store) / whole_waves
    one_cta = np.where(config.ping_pong > 0, in_turn, alone)
    serial = whole_waves * np.where(ctas_on_sm > 1, overlapped, one_cta)
    analytic = LAUNCH_TIME + np.maximum(serial, memory)
    roofline = 1e6 * hardware.roofline_seconds(problem.flops, problem.min_bytes, dtype)
    return {
        "log_rows": np.log2(rows),
        "log_columns": np.log2(columns),
        "rows_along_m": np.where(swapped, b_along_n, a_along_m),
        "columns_along_n": np.where(swapped, a_along_m, b_along_n),
        "store_along_rows": out_along_m != swapped,
        "tile_area": log_area,
        "tile_intensity": step_flops / step_bytes,
        "tiles_m": np.log2(tiles_m),
        "tiles_n": np.log2(tiles_n),
        "tiles": np.log2(handed_out),
        "waves": waves,
        "last_wave_fill": waves - whole_waves + 1,
        "wave_efficiency": waves / whole_waves,
        "padding_m": rows / (tiles_m * config.tile_m),
        "padding_n": columns / (tiles_n * config.tile_n),
        "padding_k": problem.k / (k_steps * config.split_k * config.tile_k),
        "padding_clusters": tiles_m * tiles_n * problem.batch * config.split_k / handed_out,
        "k_steps": np.log2(k_steps),
        "k_steps_per_stage": k_steps / config.stages,
        "exchange_time": np.log2(1 + exchange),
        "busy_sms": busy_sms / hardware.sm_count,
        "ctas_on_sm": ctas_on_sm,
        "wave_rows": np.log2(wave_rows),
        "wave_columns": np.log2(wave_columns),
        "wave_square": np.log2(wave_rows * config.tile_m / (wave_columns * config.tile_n)),
        "bytes_in_flight": in_flight,
        "mma_efficiency": mma_efficiency,
        "compute_time": np.log2(compute),
        "dram_time": math.log2(dram),
        "l2_time": np.log2(l2),
        "latency_time": np.log2(latency),
        "epilogue_time": np.log2(epilogue),
        "tile_epilogue_share": tile_store / tile_multiply,
        "serial_time": np.log2(serial),
        "wave_bytes": np.log2(wave_bytes / hardware.l2_bytes),
        "wave_traffic_time": np.log2(wave_traffic),
        "compute_to_memory": np.log2(compute / memory),
        "analytic_time": np.log2(analytic),
        "analytic_to_roofline": np.log2(analytic / roofline),
    }
