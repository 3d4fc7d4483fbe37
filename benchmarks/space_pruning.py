"""What of the space may be left out? A pilot measures a wide one on a few problems.

On the GPU ``python benchmarks/space_pruning.py base`` varies tile, cluster, warp groups, CTAs per
SM and swap_ab with as many stages as fit; then ``schedule`` varies stages, raster and swizzle of
the base configs that were near the best. Each goes on where it was stopped and exports a data set,
``results/space_pilot_STEP.parquet``. From both, ``derive`` computes on any machine what
`tilecast.kernels.cutlass_sm90.exclusions` states.
"""

import itertools
import json
import os
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import cast

import numpy as np
import pandas as pd
import runner
from runner import Row

from tilecast.data_collection import dataset as datasets
from tilecast.data_collection.collector import Collector, Workload
from tilecast.data_collection.measurement import REGIMES
from tilecast.data_collection.store import MeasurementStore
from tilecast.data_collection.suites import suite
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.operands import LINEAR_BF16 as OPERANDS
from tilecast.heuristics.problem import PROBLEM_FIELDS, GemmProblem
from tilecast.kernels import rules
from tilecast.kernels.builder import compile_all
from tilecast.kernels.candidates import candidates, config_table
from tilecast.kernels.cutlass_sm90 import space
from tilecast.kernels.cutlass_sm90.config import Sm90Config
from tilecast.kernels.cutlass_sm90.exclusions import pilot_for
from tilecast.kernels.families import parse_config
from tilecast.kernels.family import HARDWARE
from tilecast.kernels.object_cache import ObjectCache, default_root
from tilecast.models.evaluation import spread

GPU = hardware("H200")
PROBLEMS = 32  # of the pilot, spread evenly over the training suite
NEAR = 1.04  # a base config within this of a problem's best has its schedule varied there
MOST = 6  # base configs per problem whose schedule is varied
MARGIN = 0.02  # values are excluded if the best config that has them was so far behind everywhere
FEWEST = 8  # values that exclude fewer configs, of those still kept, are not worth a rule
FOLDS = 4
NAMES = ("tile_m", "tile_n", "tile_k", "cluster", "warp_groups", "ctas_per_sm", "swap_ab")
AXES = {name: attrgetter(name) for name in NAMES}
AXES["cluster"] = attrgetter("cluster_m", "cluster_n")

ValueClass = tuple[Row, np.ndarray]  # values by axis; which configs have all, bool [configs]


def base_workload() -> Workload:
    """Problems spread over the training suite, a different place in each family's list of m.

    Each with all that runs and no arithmetic but the limit on loads from L2 rules out, with the
    most stages that fit, raster m and no swizzle.
    """
    problems = suite("training")
    chosen = [problems[int(i * len(problems) / PROBLEMS)] for i in range(PROBLEMS)]
    # That step never meets 16 < m <= 64, where the small tiles compete.
    chosen += [p for p in problems if 16 < p.m <= 64 and p.n > 1000][::5]
    shapes = (p for p in space.points(OPERANDS) if (p.stages, p.raster, p.swizzle) == (2, "m", 1))
    deepest = (replace(shape, stages=space.most_stages(shape, OPERANDS, GPU)) for shape in shapes)
    rules = [rule for rule in space.CONFIG_RULES if rule.kind == HARDWARE]
    configs = sorted(c for c in deepest if not any(r.violation(c, OPERANDS, GPU) for r in rules))
    columns = config_table(configs, OPERANDS).columns
    inequalities = [rule for rule in space.PROBLEM_RULES if rule.name != "l2-traffic"]

    def kept(problem: GemmProblem) -> np.ndarray:
        sides = (rule.sides(columns, problem, GPU) for rule in inequalities)
        return np.all([value <= limit for value, limit in sides], axis=0)

    return {problem: tuple(itertools.compress(configs, kept(problem))) for problem in chosen}


def schedule_workload(base: MeasurementStore) -> Workload:
    """For each problem, other stages or orders of its best base configs in either regime."""

    def schedules(config: Sm90Config) -> list[Sm90Config]:
        fewer_stages = [replace(config, stages=stages) for stages in range(2, config.stages)]
        orders = itertools.product(space.RASTERS, space.SWIZZLES)
        return fewer_stages + [replace(config, raster=r, swizzle=s) for r, s in orders]

    found = {}
    for problem in sorted(base.measured("race"), key=str):
        near = set()
        for regime in REGIMES:
            rows = [row for row in base.raced(problem)[0] if row.regime == regime]
            times = {r.config: r.microseconds for r in rows if r.config and r.microseconds}
            ranked = sorted(times, key=times.__getitem__)[:MOST]
            near |= {config for config in ranked if times[config] <= NEAR * times[ranked[0]]}
        found[problem] = tuple(sorted({c for config in near for c in schedules(config)}))
    return found


def measure(options: Namespace) -> None:
    """Compile and measure a step, and export what was measured."""
    from tilecast.data_collection.environment import describe
    from tilecast.data_collection.gpu_session import GpuSession

    deadline = time.monotonic() + options.deadline
    stores = {step: MeasurementStore(p.with_suffix(".db")) for step, p in runner.PILOTS.items()}
    base = options.step == "base"
    workload = base_workload() if base else schedule_workload(stores["base"])
    store, objects = stores[options.step], ObjectCache(default_root())
    store.begin_run(describe())
    build = partial(compile_all, cache=objects, workers=len(os.sched_getaffinity(0)))
    tell, sessions = partial(print, flush=True), [partial(GpuSession, objects, 0)]
    Collector(store, sessions, build=build, report=tell, deadline=deadline).collect(workload)
    datasets.write_dataset(store.export(), runner.PILOTS[options.step])


@dataclass(frozen=True, eq=False)
class Pilot:
    """One step of the pilot, one row per problem and power regime that it was raced in."""

    problems: tuple[GemmProblem, ...]  # of each row
    configs: tuple[Sm90Config, ...]  # of each column, sorted
    slowdown: np.ndarray
    """float64 [rows, configs]: time over the row's best; infinite where it was no candidate."""

    def loss(self, kept: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """What the best of the kept configs, bool [(rows,) configs], loses on each of some rows."""
        return np.where(kept, self.slowdown, np.inf)[rows].min(axis=1) - 1


def read_pilot(dataset: datasets.Dataset) -> Pilot:
    """Times of the race, else of the screen, brought to the race's level by their median ratio."""
    rows = dataset.rows.loc[~datasets.is_reference(dataset.rows)]
    problems, times = [], []
    for key, group in rows.groupby(list(PROBLEM_FIELDS), observed=True):
        passes = {
            name: part.set_index("config")["microseconds"].astype(float)
            for name, part in group.groupby(["stage", "regime"], observed=True)
        }
        screened = passes["screen", "sustained"]
        for regime in ("sustained", "burst"):
            raced = passes.get(("race", regime))
            if raced is not None:
                level = (raced / screened.reindex(raced.index)).median()
                problems.append(GemmProblem.from_row(cast("tuple", key)))
                times.append(raced.combine_first(screened * level))
    table = pd.DataFrame(times).rename(columns=parse_config).sort_index(axis=1)
    slowdown = table.div(table.min(axis=1), axis=0).fillna(np.inf)
    return Pilot(tuple(problems), tuple(table.columns), slowdown.to_numpy())


def classes(configs: Sequence[Sm90Config], most: int) -> list[ValueClass]:
    """Every combination of at most ``most`` values: single ones first, then by decreasing size."""
    found = []
    for names in (n for count in range(most) for n in itertools.combinations(AXES, count + 1)):
        of = [tuple(AXES[name](config) for name in names) for config in configs]
        for values in sorted(set(of)):
            members = np.array([value == values for value in of])
            found.append((dict(zip(names, values, strict=True)), members))
    # The sort is stable, so classes of one size stay in the order of axes and values.
    return sorted(found, key=lambda each: (len(each[0]), -int(each[1].sum())))


def exclude(
    pilot: Pilot, ordered: Sequence[ValueClass], rows: np.ndarray | slice = slice(None)
) -> tuple[np.ndarray, list[Row]]:
    """Drop one class after another that stays `MARGIN` behind on all of some rows.

    Returns:
        bool [configs], what is kept; and in order what was excluded: its values, how many configs
        of those still kept, and how far behind the best was where it came closest.
    """
    kept, excluded = np.ones(len(pilot.configs), bool), []
    for values, members in ordered:
        configs = int((kept & members).sum())
        if configs < FEWEST:
            continue
        # Members that an earlier class excluded count, too: a margin is a fact of the values alone.
        margin = float(pilot.loss(members, rows).min())
        if margin >= MARGIN:
            kept &= ~members
            excluded.append({"values": values, "configs": configs, "margin": round(margin, 5)})
    return kept, excluded


def described(loss: np.ndarray) -> dict[str, float]:
    """Geometric mean, 95th percentile and maximum of losses, as shares."""
    return {name: round(value, 6) for name, value in spread(loss).items()}


def value_classes(pilot: Pilot) -> tuple[np.ndarray, Row]:
    """What pairs leave, and what excluding single values, pairs and triples costs.

    The loss on each problem is of exclusions that were derived without a quarter that holds it.
    """
    names = [str(problem) for problem in pilot.problems]
    fold = np.unique(names, return_inverse=True)[1] % FOLDS
    compared, found = {}, {}
    for most, name in enumerate(("single values", "pairs", "triples"), 1):
        ordered = classes(pilot.configs, most)
        losses = np.empty(len(names))
        for held_out in range(FOLDS):
            kept, _ = exclude(pilot, ordered, fold != held_out)
            losses[fold == held_out] = pilot.loss(kept, fold == held_out)
        found[name] = kept, excluded = exclude(pilot, ordered)
        counts = {"exclusions": len(excluded), "kept": int(kept.sum())}
        compared[name] = counts | {"held_out_loss": described(losses)}
    kept, never_near = found["pairs"]
    loss = described(pilot.loss(kept))
    return kept, {"compared": compared, "loss": loss, "never_near": never_near}


def schedule_choices(pilot: Pilot) -> Row:
    """What trying fewer stages and raster orders loses against all that the pilot tried."""
    most = np.array([space.most_stages(config, OPERANDS, GPU) for config in pilot.configs])
    stages = np.array([config.stages for config in pilot.configs])
    order = [(config.raster, config.swizzle) for config in pilot.configs]
    depths = {
        "deepest": stages == most,
        "deepest and one fewer": stages >= most - 1,
        "deepest, one fewer, half": (stages >= most - 1) | (stages == (most + 1) // 2),
        "all": stages <= most,
    }
    tried = pilot_for(OPERANDS, GPU).schedules
    orders = {"first": tried[:1], "three": tried, "all": order}
    rule = next(rule for rule in space.CONFIG_RULES if rule.name == "schedule")
    by_rule = [rule.violation(config, OPERANDS, GPU) is None for config in pilot.configs]
    losses = {
        f"stages: {depth}; orders: {name}": pilot.loss(deep & [one in allowed for one in order])
        for depth, deep in depths.items()
        for name, allowed in orders.items()
    }
    loss = {name: described(found) for name, found in losses.items()}
    of_rule = described(pilot.loss(np.array(by_rule)))
    return {"schedules": tried, "loss": loss, "loss_of_rule": of_rule}


def l2_limit(pilot: Pilot, kept: np.ndarray) -> Row:
    """How near the limit on loads from L2 the good configs come, and what it costs those kept."""
    rule = next(rule for rule in space.PROBLEM_RULES if rule.name == "l2-traffic")
    columns = config_table(pilot.configs, OPERANDS).columns
    sides = [rule.sides(columns, problem, GPU) for problem in pilot.problems]
    floors = np.array([rules.L2_SLACK * value / limit for value, limit in sides])
    measured, within = np.isfinite(pilot.slowdown), floors <= rules.L2_SLACK
    return {
        "limit": rules.L2_SLACK,
        "most_floors_of_configs": {
            f"within {near:.0%}": round(float(floors[pilot.slowdown <= 1 + near].max()), 3)
            for near in (0.0, 0.02, 0.05)
        },
        "loss_of_limit": described(pilot.loss(within)),
        "loss_of_limit_and_exclusions": described(pilot.loss(within & kept)),
        "share_of_configs_left": round(float((within & measured).sum() / measured.sum()), 4),
    }


def derive(options: Namespace) -> None:
    """Derive everything, and keep the result."""
    settings, pilots = {}, []
    for step, path in runner.PILOTS.items():
        dataset = datasets.read_dataset(path)
        pilots.append(pilot := read_pilot(dataset))
        counts = {"problems": len(dataset.problems()), "configs": len(pilot.configs)}
        counts["problem_regimes"] = len(pilot.problems)
        settings[step] = runner.facts(dataset) | counts
    base, schedule = pilots
    kept, pairs = value_classes(base)
    counts = [len(candidates(problem, GPU)) for problem in set(base.problems)]
    counted: Row = {"problems": len(counts)}
    counted |= runner.quantiles(counts, fewest=0.0, median=0.5, most=1.0)
    _, printed = runner.python("-m", "tilecast.cli.main", "space", "--json")
    points, *rules = json.loads(printed)["families"][Sm90Config.family]
    left_after = {"points": points["left"]} | {rule["rule"]: rule["left"] for rule in rules}
    figures = {
        "pairs": pairs,
        "schedule": schedule_choices(schedule),
        "l2_traffic": l2_limit(base, kept),
        "space": {"left_after": left_after, "candidates_of_pilot": counted},
    }
    runner.write(options, {"pilot": settings}, figures)


if __name__ == "__main__":
    parser = runner.parser(__file__, __doc__)
    parser.add_argument("step", choices=(*runner.PILOTS, "derive"))
    parser.add_argument("--deadline", type=float, default=float("inf"), metavar="SECONDS")
    asked = parser.parse_args()
    (derive if asked.step == "derive" else measure)(asked)
