"""What does the space of kernels give, and what does each of its knobs?

On the GPUs ``python benchmarks/space_pilot.py measure --gpus 2`` measures every candidate and
``torch.mm`` on problems of three kinds: those where the library led, some of the training suite,
and random ones; then ``schedule`` varies stages and the order of tiles of the configs that were
near the best. Both go on where they were stopped and export ``results/space_pilot*.parquet``;
``derive`` computes the rest anywhere, and the library's time beside the best of the space on the
random problems of the shipped data set, too.
"""

import itertools
import math
import os
import random
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import runner
from runner import Row, ratios

from tilecast.data_collection.dataset import dataset as datasets
from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.data_collection.dataset.select_times import MeasuredProblem, measured_problems
from tilecast.data_collection.jobs.store import MeasurementStore
from tilecast.data_collection.problems.suites import suite
from tilecast.data_collection.run.scheduler import Scheduler, Workload
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.build.builder import compile_all
from tilecast.kernels.candidates import candidates, config_table
from tilecast.kernels.families import family_of
from tilecast.kernels.objects.cache import ObjectCache, default_root
from tilecast.kernels.quack_sm90.config import QuackConfig
from tilecast.kernels.quack_sm90.space import most_stages
from tilecast.kernels.rules import tiles
from tilecast.models.evaluation.regret import BUCKETS

GPU = hardware("H200")
DATASET = runner.RESULTS / "space_pilot.parquet"
SCHEDULES = runner.RESULTS / "space_pilot_schedule.parquet"
NAMED = (
    "1536x1792x12288 4096x576x7168 384x14336x3584 8x1280x8192 4x1152x6912 7x2304x16384 "
    "2048x1152x6912 640x7168x2048 128x4096x4096 256x4096x4096 512x10008x2504 64x64x8192 "
    "1000x16x32768 192x1536x4096 128x576x7168 256x2560x8192 32x1024x8192 16x128x16384 256x512x16384"
)
SUITE, RANDOM = 17, 24  # problems of the other kinds
BANDS = tuple(most for _, most in BUCKETS.values())[:-1]  # of m
NEAR = 3  # configs of a problem and regime whose schedule is varied
ORDERS = tuple(itertools.product("mn", (1, 4, 8, 16)))  # raster and swizzle


def problems() -> list[GemmProblem]:
    """Those named, some spread over the training suite, and random ones, every band of m alike."""
    training = suite("training")
    spread = [training[int((i + 0.5) * len(training) / SUITE)] for i in range(SUITE)]
    draw = random.Random(8)

    def extent(least: int, most: int) -> int:
        return round(math.exp(draw.uniform(math.log(least), math.log(most))))

    bounds = (1, *BANDS, 16384)
    bands = list(itertools.pairwise(bounds))
    drawn: list[GemmProblem] = []
    while len(drawn) < RANDOM:
        n, k = (8 * extent(32, 4096) for _ in range(2))
        problem = GemmProblem(extent(*bands[len(drawn) % len(bands)]), n, k)
        if problem.flops < 4e12:
            drawn.append(problem)
    named = [GemmProblem.parse(text) for text in NAMED.split()]
    return list(dict.fromkeys([*named, *spread, *drawn]))


def workload() -> Workload:
    """All candidates of all problems."""
    return {problem: tuple(candidates(problem, GPU)) for problem in problems()}


def schedule_workload() -> Workload:
    """For each problem its best configs, with fewer stages, and in other orders if they matter."""
    found = {}
    for measured in measured_problems(datasets.read_columns(DATASET)[0]):
        best: dict[KernelConfig, None] = {}
        for times in measured.truth.values():
            best |= dict.fromkeys(measured.configs[i] for i in np.argsort(times)[:NEAR])
        varied = {variant for config in best for variant in schedules(config, measured.problem)}
        found[measured.problem] = tuple(sorted(varied))
    return found


def schedules(config: KernelConfig, problem: GemmProblem) -> list[QuackConfig]:
    """A config, itself with fewer stages, and in other orders if they matter."""
    assert isinstance(config, QuackConfig)
    columns = config_table([config], LINEAR_BF16).columns
    rows, columns_ = (float(count[0]) for count in tiles(columns, problem))
    several = rows * columns_ > GPU.sm_count * config.ctas_per_sm and min(rows, columns_) > 1
    orders = ORDERS if several and config.split_k == 1 else ()
    fewer = {config.stages - 1, (config.stages + 1) // 2} - {config.stages, 1}
    return [
        config,
        *(replace(config, stages=stages) for stages in sorted(fewer)),
        *(replace(config, raster=raster, swizzle=band) for raster, band in orders),
    ]


def measure(options: Namespace) -> None:
    """Compile and measure a step, and export what was measured."""
    from tilecast.data_collection.gpu.environment import describe
    from tilecast.data_collection.timing.gpu_session import GpuSession

    objects = ObjectCache(default_root())
    first = options.step == "measure"
    dataset = DATASET if first else SCHEDULES
    store = MeasurementStore(dataset.with_suffix(".db"))
    store.begin_run(describe())
    Scheduler(
        store,
        [partial(GpuSession, objects, gpu) for gpu in range(options.gpus)],
        build=partial(compile_all, cache=objects, workers=len(os.sched_getaffinity(0))),
        report=partial(print, flush=True),
        deadline=time.monotonic() + options.deadline,
    ).collect(workload() if first else schedule_workload())
    datasets.write_dataset(store.export(), dataset)


KNOBS: dict[str, Callable[..., bool]] = {
    "split_k": lambda g: g.split_k > 1,
    "ping-pong": lambda g: g.ping_pong,
    "two CTAs per SM": lambda g: g.ctas_per_sm > 1,
    "clusters of four": lambda g: g.cluster_m * g.cluster_n == 4,
    "any multicast": lambda g: g.cluster_m * g.cluster_n > 1,
    "stages of 256 bytes": lambda g: g.tile_k == 128,
    "192 or 320 rows": lambda g: g.tile_m in (192, 320),
    "tile_n no multiple of 32": lambda g: g.tile_n % 32 != 0,
    "swap_ab": lambda g: g.swap_ab,
}
"""What a config may use."""


def band(problem: GemmProblem) -> str:
    """Which band of m a problem is in."""
    return next(name for name, (_, most) in BUCKETS.items() if problem.m <= most)


def fastest(found: MeasuredProblem, regime: str, asked: Callable[[KernelConfig], bool]) -> float:
    """Microseconds of the best config that is asked for; NaN where there is none."""
    kept = np.array([asked(config) for config in found.configs])
    return float(found.truth[regime][kept].min()) if kept.any() else math.nan


def without(knob: str) -> Callable[[KernelConfig], bool]:
    """Whether a config leaves a knob alone."""
    used = KNOBS[knob]
    return lambda config: not used(family_of(config).geometry(config))


def library_over(raced: Sequence[MeasuredProblem], regime: str) -> Row:
    """How many times the best of the space the library takes: on all problems, by band of m."""
    found: dict[str, list[MeasuredProblem]] = {"all": list(raced)}
    for one in raced:
        found.setdefault(band(one.problem), []).append(one)
    return {
        name: ratios(
            [one.reference[regime] for one in some], [one.truth[regime].min() for one in some]
        )
        for name, some in found.items()
    }


def compared(raced: Sequence[MeasuredProblem], regime: str) -> Row:
    """What the space and its knobs give in one power regime."""
    best = [float(found.truth[regime].min()) for found in raced]
    library = [found.reference[regime] for found in raced]
    return {
        "library_over": library_over(raced, regime),
        "without": {
            knob: ratios([fastest(found, regime, without(knob)) for found in raced], best)
            for knob in KNOBS
        },
        "problems": [
            {
                "problem": str(found.problem),
                "library": round(library[i], 3),
                "best": round(best[i], 3),
                "config": str(found.configs[int(found.truth[regime].argmin())]),
            }
            for i, found in enumerate(raced)
        ],
    }


def schedule_choices() -> Row:
    """What one schedule for all configs loses against all that were tried, by power regime."""
    measured = measured_problems(datasets.read_columns(SCHEDULES)[0])

    def deepest(config: KernelConfig) -> bool:
        assert isinstance(config, QuackConfig)
        return config.stages == most_stages(config, LINEAR_BF16, GPU)

    def ordered(*orders: tuple[str, int]) -> Callable[[KernelConfig], bool]:
        return lambda config: (config.raster, config.swizzle) in orders  # pyright: ignore

    chosen = {"deepest": deepest} | {f"{r}{band}": ordered((r, band)) for r, band in ORDERS}
    for band in (1, 4, 8, 16):
        chosen[f"m{band} or n{band}"] = ordered(("m", band), ("n", band))
    losses: Row = {}
    for regime, (name, asked) in itertools.product(REGIMES, chosen.items()):
        raced = [found for found in measured if regime in found.truth]
        if name != "deepest":
            raced = [found for found in raced if len({c.raster for c in found.configs}) > 1]  # pyright: ignore
        best = [float(found.truth[regime].min()) for found in raced]
        losses.setdefault(regime, {})[name] = ratios(
            [fastest(found, regime, asked) for found in raced], best
        )
    return losses


def derive(options: Namespace) -> None:
    """Compare the space with the library and without each knob, and keep the result."""
    dataset = datasets.read_dataset(DATASET)
    measured = measured_problems(dataset.columns(str(DATASET)))
    figures = {
        regime: compared([found for found in measured if regime in found.truth], regime)
        for regime in REGIMES
    }
    if SCHEDULES.exists():
        figures["schedule"] = schedule_choices()
    # Of the shipped data those problems that nobody chose, with the candidates that a model did.
    shipped = datasets.read_dataset(runner.DATA)
    drawn = set(suite("random"))
    random_ones = [
        found
        for found in measured_problems(shipped.columns(str(runner.DATA)))
        if found.problem in drawn
    ]
    figures["random"] = {
        regime: library_over([found for found in random_ones if regime in found.truth], regime)
        for regime in REGIMES
    }
    facts = {"data": runner.facts(dataset), "random": runner.facts(shipped)}
    runner.write(options, facts, figures)


if __name__ == "__main__":
    parser = runner.parser(__file__, __doc__)
    parser.add_argument("step", choices=("measure", "schedule", "derive"))
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--deadline", type=float, default=float("inf"), metavar="SECONDS")
    asked = parser.parse_args()
    (derive if asked.step == "derive" else measure)(asked)
