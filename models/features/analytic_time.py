"""A rough time of every config by arithmetic alone, and the parts that it is made of."""

from __future__ import annotations

import math

import numpy as np

from tilecast.heuristics.config import ConfigColumns
from tilecast.heuristics.hardware import Hardware
from tilecast.heuristics.problem import GemmProblem
from tilecast.models.features.group_tiles import expected
from tilecast.models.features.l2_loads import Loads
from tilecast.models.features.tile_numbers import TileNumbers
from tilecast.models.features.tile_waves import Waves

# These constants, sums of squares and the root of the CTAs that share a load explain best how the
# times of a problem's configs differ, over 1,286 problems on an H200; those of stores and tiles, of
# cut lines, conversion and promotion over 2,343 of all operands (models/EXPERIMENTS.md).
ATTAINED = 2 / 3
"""Share of the data sheet's rates that kernels see of the tensor cores and of DRAM. A GPU that is
described by its own measured rates, some tenths lower, is taken for slower still."""
L2_ATTAINED = 1.4
"""The same of the L2's, which answers neighbours that ask for the same lines at once."""
LOAD_LATENCY = 0.63
"""Microseconds from asking for a tile to having it, under load."""
STAGES_READ = 1.5
"""Stages of a pipeline that are being read, so that nothing is on its way to them."""
STORE_ATTAINED = 0.85
"""The same of DRAM's for a tile that is stored, which the L2 puts off."""
TILE_TIME = 0.25
"""Microseconds from a tile to the next of a CTA in which nothing is multiplied, stored or loaded,
where no other warp group multiplies meanwhile."""
LAUNCH_TIME = 4.0
"""Microseconds that a kernel takes beside its tiles: launch, descriptors, first load, drain."""


def times(
    problem: GemmProblem,
    config: ConfigColumns,
    tile: TileNumbers,
    waves: Waves,
    loads: Loads,
    hardware: Hardware,
) -> tuple[dict[str, np.ndarray | float], dict[str, np.ndarray]]:
    """What each part of the work would take alone, in microseconds, and what they take together.

    Returns:
        By the names of the features: those as they are, float64 [configs] or what all share; and
        those of which the feature is the base-2 logarithm, float64 [configs].
    """
    dtype = problem.operands.a.dtype
    sm_flops = ATTAINED * hardware.peak(dtype) / hardware.sm_count * 1e-6
    dram_rate = ATTAINED * hardware.dram_bytes_per_second * 1e-6
    l2_rate = L2_ATTAINED * hardware.l2_bytes_per_second * 1e-6
    multiplied = waves.k_steps * tile.step_flops / (sm_flops * tile.mma_efficiency)
    loaded = waves.k_steps * loads.step_bytes / l2_rate
    waited = waves.k_steps * LOAD_LATENCY / np.maximum(config.stages - STAGES_READ, 0.5)
    store_rate = STORE_ATTAINED * hardware.dram_bytes_per_second * 1e-6
    stored = tile.store_bytes * (hardware.sm_count / store_rate)
    turns = config.ping_pong > 0
    ending = stored / waves.whole
    among, waited_squared = (stored - ending) ** 2, waited**2
    apart = stored + tile.exchange + TILE_TIME * ~turns

    def wave(clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The time of a wave of so many clusters: that of its loads, and of all that its CTAs do.

        The fewer CTAs, the more of the L2 for each. A CTA's MMA warps also store its tile, so they
        do not overlap; of two warp groups that take turns, one stores while the other multiplies,
        which slow each other down.
        """
        ctas = clusters * waves.cluster
        on_sm = ctas / np.minimum(ctas, hardware.sm_count)
        together = ctas * loaded
        in_turn = turns & (on_sm <= 1)
        squares = (on_sm * multiplied) ** 2 + together**2 + waited_squared
        busy = np.sqrt(squares + np.where(in_turn, among, 0))
        return together, busy + np.where(in_turn, ending, apart)

    full = np.floor(waves.clusters / waves.slots)
    last = waves.clusters - full * waves.slots
    full_loads, full_wave = wave(waves.slots)
    last_loads, last_wave = wave(np.maximum(last, 1))
    l2 = expected(full * full_loads + np.where(last > 0, last_loads, 0))
    serial = full * full_wave + np.where(last > 0, last_wave, 0)
    rounds = waves.whole * waves.ctas_on_sm
    compute, latency = rounds * multiplied, waves.whole * waited
    dram = problem.min_bytes / dram_rate
    wave_bytes = problem.k * (waves.rows * tile.row_bytes + waves.columns * tile.column_bytes)
    memory = np.maximum(np.maximum(dram, l2), latency)
    analytic = LAUNCH_TIME + expected(np.sqrt(serial**2 + dram**2)) + tile.summing
    roofline = 1e6 * hardware.roofline_seconds(problem.flops, problem.min_bytes, dtype)
    alone = np.maximum(multiplied, expected(np.where(full > 0, full_loads, last_loads)))
    plain: dict[str, np.ndarray | float] = {
        "dram_time": math.log2(dram),
        "tile_epilogue_share": stored / alone,
    }
    return plain, {
        "compute_time": compute,
        "l2_time": l2,
        "latency_time": latency,
        "epilogue_time": rounds * stored,
        "serial_time": expected(serial),
        "wave_bytes": wave_bytes / hardware.l2_bytes,
        "wave_traffic_time": np.maximum(dram, waves.count * wave_bytes / dram_rate),
        "compute_to_memory": compute / memory,
        "analytic_time": analytic,
        "analytic_to_roofline": analytic / roofline,
    }
