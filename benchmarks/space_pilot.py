"""Measure a wide space on a few problems, to learn which of its axes pay.

Two steps, each on the GPU: ``base`` varies tile, cluster, warp groups, CTAs per SM and swap_ab with
as many stages as fit; ``schedule`` varies stages, raster and swizzle of the base configs that were
near the best. Both export ``benchmarks/results/space_pilot_*.parquet``, which
``benchmarks/space_pruning.py`` reads.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tilecast.data_collection.collector import Collector
from tilecast.data_collection.dataset import write_dataset
from tilecast.data_collection.environment import describe
from tilecast.data_collection.gpu_session import GpuSessionFactory
from tilecast.data_collection.measurement import REGIMES
from tilecast.data_collection.store import MeasurementStore
from tilecast.data_collection.suites import suite
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import LINEAR_BF16, GemmProblem
from tilecast.kernels.builder import compile_all
from tilecast.kernels.cutlass_sm90.space import (
    CLUSTERS,
    CTAS_PER_SM,
    PROBLEM_RULES,
    RASTERS,
    RULES,
    SWIZZLES,
    TILE_K,
    TILE_M,
    TILE_N,
    WARP_GROUPS,
    ConfigColumns,
    most_stages,
)
from tilecast.kernels.object_cache import ObjectCache
from tilecast.kernels.spec import KernelSpec

GPU = hardware("H200")
RESULTS = Path(__file__).with_name("results")

PROBLEMS = 32
"""Problems of the pilot, spread evenly over the training suite."""
NEAR = 1.04
"""A base config within this of a problem's best has its schedule varied there."""
MOST = 6
"""Most base configs per problem whose schedule is varied."""


def pilot_problems() -> list[GemmProblem]:
    """Problems spread over the training suite, a different place in each family's list of m."""
    problems = suite("training")
    step = len(problems) / PROBLEMS
    spread = [problems[int(i * step)] for i in range(PROBLEMS)]
    # That step never meets 16 < m <= 64, where the small tiles compete.
    return spread + [p for p in problems if 16 < p.m <= 64 and p.n > 1000][::5]


def base_configs() -> list[KernelConfig]:
    """Everything that runs, with the most stages that fit, raster m and no swizzle."""
    configs = []
    for tm, tn, tk, (cm, cn), groups, ctas, swap in itertools.product(
        TILE_M, TILE_N, TILE_K, CLUSTERS, WARP_GROUPS, CTAS_PER_SM, (False, True)
    ):
        shape = KernelConfig(tm, tn, tk, cm, cn, 2, groups, ctas, swap_ab=swap)
        config = replace(shape, stages=most_stages(shape, LINEAR_BF16, GPU))
        if not any(rule.complaint(config, LINEAR_BF16, GPU) for rule in RULES):
            configs.append(config)
    return sorted(configs)


def schedules(base: KernelConfig) -> list[KernelConfig]:
    """Configs that differ from ``base`` in stages alone, or in raster and swizzle alone."""
    fewer_stages = [replace(base, stages=stages) for stages in range(2, base.stages)]
    orders = [replace(base, raster=r, swizzle=s) for r in RASTERS for s in SWIZZLES]
    return fewer_stages + orders


def schedule_plan(base: MeasurementStore) -> dict[GemmProblem, tuple[KernelConfig, ...]]:
    """For each problem, the schedules of its best base configs in either regime."""
    plan = {}
    for problem in sorted(base.measured("race"), key=str):
        rows, _ = base.raced(problem)
        near = set()
        for regime in REGIMES:
            times = {
                row.config: row.microseconds
                for row in rows
                if row.regime == regime and row.config and row.microseconds
            }
            ranked = sorted(times, key=lambda config: times[config])[:MOST]
            near |= {config for config in ranked if times[config] <= NEAR * times[ranked[0]]}
        plan[problem] = tuple(sorted({c for config in near for c in schedules(config)}))
    return plan


def candidates_among(
    configs: Sequence[KernelConfig], problem: GemmProblem
) -> tuple[KernelConfig, ...]:
    """The configs that no arithmetic rules out; the limit on loads from L2 is learned here."""
    columns = ConfigColumns.of(tuple(configs))
    kept = np.ones(len(configs), bool)
    for rule in PROBLEM_RULES:
        if rule.name != "l2-traffic":
            value, limit = rule.sides(columns, problem, GPU)
            kept &= value <= limit
    return tuple(itertools.compress(configs, kept))


def main() -> None:
    """Compile and measure one step; print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=("base", "schedule"))
    parser.add_argument("--objects", type=Path, required=True, help="object cache")
    parser.add_argument("--store", type=Path, required=True, help="SQLite store")
    parser.add_argument("--base", type=Path, help="store of the base step")
    parser.add_argument("--compile-only", action="store_true", help="needs no GPU")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds")
    arguments = parser.parse_args()
    start = time.monotonic()

    if arguments.step == "base":
        plan = {p: candidates_among(base_configs(), p) for p in pilot_problems()}
    else:
        plan = schedule_plan(MeasurementStore(arguments.base))
    objects = ObjectCache(arguments.objects)
    specs = {KernelSpec.for_problem(c, p) for p, configs in plan.items() for c in configs}
    failed = {}
    compiled = compile_all(sorted(specs, key=str), objects, os.cpu_count() or 1)
    for done, result in enumerate(compiled):
        if result.error:
            failed[result.spec] = result.error
            print(result.spec.config, result.error[:120], flush=True)
        if done % 100 == 0:
            print(f"compiled {done} of {len(specs)}, {time.monotonic() - start:.0f} s", flush=True)
    if arguments.compile_only:
        return
    store = MeasurementStore(arguments.store)
    store.begin_run(describe())
    store.add_checks(failed)
    factories = [GpuSessionFactory(objects, device) for device in range(arguments.devices)]
    Collector(
        store,
        factories,
        report=lambda p: print(
            f"{p.phase} {p.done}/{p.total} {p.measurements} rows {p.seconds:.0f} s", flush=True
        ),
        deadline=start + arguments.budget,
    ).collect(plan)
    failures = {key: why for key, why in store.checks().items() if why}
    rows = store.count()
    write_dataset(store.export(), RESULTS / f"space_pilot_{arguments.step}.parquet")
    store.close()
    seconds = time.monotonic() - start
    print(json.dumps({"rows": rows, "seconds": seconds, "failures": failures}))


if __name__ == "__main__":
    main()
