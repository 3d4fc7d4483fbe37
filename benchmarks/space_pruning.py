"""Derive the exclusions of the pilot, and count what each rule of the space leaves.

Reads ``benchmarks/results/space_pilot_base.parquet`` and ``space_pilot_schedule.parquet``, which
``benchmarks/space_pilot.py`` measured; writes ``space_pruning.json`` beside them. Needs no GPU.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
import result

from tilecast.data_collection.dataset import Dataset, is_reference, problem_of, read_dataset
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.hardware import hardware
from tilecast.heuristics.problem import LINEAR_BF16, GemmProblem
from tilecast.kernels.cutlass_sm90.exclusions import SCHEDULES
from tilecast.kernels.cutlass_sm90.space import (
    CLUSTERS,
    CTAS_PER_SM,
    L2_SLACK,
    MEASURED_RULES,
    PROBLEM_RULES,
    RASTERS,
    RULES,
    STAGES,
    SWIZZLES,
    TILE_K,
    TILE_M,
    TILE_N,
    WARP_GROUPS,
    ConfigColumns,
    candidates,
    most_stages,
    points,
    valid_configs,
)

RESULTS = Path(__file__).with_name("results")
GPU = hardware("H200")

MARGIN = 0.02
"""Values are excluded if the best config that has them all was this far behind everywhere."""
FEWEST = 8
"""Values that exclude fewer configs than this, of those still kept, are not worth a rule."""
FOLDS = 4

AXES: dict[str, Callable[[KernelConfig], object]] = {
    "tile_m": lambda config: config.tile_m,
    "tile_n": lambda config: config.tile_n,
    "tile_k": lambda config: config.tile_k,
    "cluster": lambda config: (config.cluster_m, config.cluster_n),
    "warp_groups": lambda config: config.warp_groups,
    "ctas_per_sm": lambda config: config.ctas_per_sm,
    "swap_ab": lambda config: config.swap_ab,
}
"""What the base step varied."""


@dataclass(frozen=True, eq=False)
class Pilot:
    """One step of the pilot, one row per problem and power regime that it was raced in."""

    problems: tuple[GemmProblem, ...]
    """The problem of each row."""
    configs: tuple[KernelConfig, ...]
    """The config of each column, sorted."""
    slowdown: np.ndarray
    """float64 [rows, configs]: time over the row's best; infinite where it was no candidate."""

    def loss(self, kept: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """What the best of the kept configs loses, row by row.

        Args:
            kept: bool [configs], or [rows, configs].
            rows: which rows.
        """
        return np.where(kept, self.slowdown, np.inf)[rows].min(axis=1) - 1


@dataclass(frozen=True, eq=False)
class ValueClass:
    """All configs that agree in some values."""

    values: dict[str, object]
    """Axis to value."""
    members: np.ndarray
    """bool [configs]."""


@dataclass(frozen=True)
class Exclusion:
    """A class that was never near the best."""

    values: dict[str, object]
    """Axis to value."""
    configs: int
    """How many it excluded of those still kept."""
    margin: float
    """How far behind its best config was where it came closest."""


def read_pilot(dataset: Dataset) -> Pilot:
    """Times of the race, else of the screen, brought to the race's level by their median ratio."""
    rows = dataset.rows.loc[~is_reference(dataset.rows)]
    keys = ["m", "n", "k", "batch", "dtype", "out_dtype", "layout"]
    problems, times = [], []
    for key, group in rows.groupby(keys, observed=True):
        passes = {
            name: part.set_index("config")["microseconds"].astype(float)
            for name, part in group.groupby(["stage", "regime"], observed=True)
        }
        screened = passes["screen", "sustained"]
        for regime in ("sustained", "burst"):
            raced = passes.get(("race", regime))
            if raced is not None:
                level = (raced / screened.reindex(raced.index)).median()
                problems.append(problem_of(*cast("tuple", key)))
                times.append(raced.combine_first(screened * level))
    table = pd.DataFrame(times).rename(columns=KernelConfig.parse).sort_index(axis=1)
    slowdown = table.div(table.min(axis=1), axis=0).fillna(np.inf)
    return Pilot(tuple(problems), tuple(table.columns), slowdown.to_numpy())


def classes(configs: Sequence[KernelConfig], most: int) -> list[ValueClass]:
    """Every combination of at most ``most`` values: single ones first, then by decreasing size."""
    found = []
    for count in range(1, most + 1):
        for names in itertools.combinations(AXES, count):
            of = [tuple(AXES[name](config) for name in names) for config in configs]
            for values in sorted(set(of)):
                members = np.array([value == values for value in of])
                found.append(ValueClass(dict(zip(names, values, strict=True)), members))
    # The sort is stable, so classes of one size stay in the order of axes and values.
    return sorted(found, key=lambda c: (len(c.values), -int(c.members.sum())))


def exclude(
    pilot: Pilot, ordered: Iterable[ValueClass], margin: float, rows: np.ndarray | slice
) -> tuple[np.ndarray, list[Exclusion]]:
    """Drop one class after another that stays ``margin`` behind on all of some rows.

    Returns:
        bool [configs], what is kept; and what was excluded, in order.
    """
    kept = np.ones(len(pilot.configs), bool)
    exclusions = []
    for values in ordered:
        members = int((kept & values.members).sum())
        if members < FEWEST:
            continue
        # Members that an earlier class excluded count, too: a margin is a fact of the values alone.
        nearest = float(pilot.loss(values.members, rows).min())
        if nearest >= margin:
            kept &= ~values.members
            exclusions.append(Exclusion(values.values, members, nearest))
    return kept, exclusions


def cross_validated(pilot: Pilot, ordered: Sequence[ValueClass], margin: float) -> np.ndarray:
    """Loss on each problem of exclusions that were derived without a quarter that holds it."""
    names = [str(problem) for problem in pilot.problems]
    number = {name: i for i, name in enumerate(sorted(set(names)))}
    fold = np.array([number[name] % FOLDS for name in names])
    losses = np.empty(len(names))
    for held_out in range(FOLDS):
        kept, _ = exclude(pilot, ordered, margin, fold != held_out)
        losses[fold == held_out] = pilot.loss(kept, fold == held_out)
    return losses


def describe(loss: np.ndarray) -> dict[str, float]:
    """Geometric mean, 95th percentile and maximum of losses, as shares."""
    return {
        "geomean": round(float(np.expm1(np.log1p(loss).mean())), 6),
        "p95": round(float(np.percentile(loss, 95)), 6),
        "max": round(float(loss.max()), 6),
    }


def value_classes(pilot: Pilot) -> dict[str, object]:
    """What excluding single values, pairs and triples costs and leaves, and which pairs."""
    compared = {}
    for most, name in enumerate(("single values", "pairs", "triples"), 1):
        ordered = classes(pilot.configs, most)
        kept, exclusions = exclude(pilot, ordered, MARGIN, slice(None))
        compared[name] = {
            "exclusions": len(exclusions),
            "kept": int(kept.sum()),
            "held_out_loss": describe(cross_validated(pilot, ordered, MARGIN)),
        }
    kept, exclusions = exclude(pilot, classes(pilot.configs, 2), MARGIN, slice(None))
    return {
        "compared": compared,
        "loss": describe(pilot.loss(kept)),
        "never_near": [
            {"values": e.values, "configs": e.configs, "margin": round(e.margin, 5)}
            for e in exclusions
        ],
    }


def schedule_choices(pilot: Pilot) -> dict[str, object]:
    """What trying fewer stages and raster orders loses against all that the pilot tried."""
    most = np.array([most_stages(config, LINEAR_BF16, GPU) for config in pilot.configs])
    stages = np.array([config.stages for config in pilot.configs])
    order = [(config.raster, config.swizzle) for config in pilot.configs]
    depths = {
        "deepest": stages == most,
        "deepest and one fewer": stages >= most - 1,
        "deepest, one fewer, half": (stages >= most - 1) | (stages == (most + 1) // 2),
        "all": stages <= most,
    }
    orders = {
        "first": SCHEDULES[:1],
        "three": SCHEDULES,
        "all": tuple(itertools.product(RASTERS, SWIZZLES)),
    }
    schedule_rule = next(rule for rule in MEASURED_RULES if rule.name == "schedule")
    by_rule = [schedule_rule.complaint(c, LINEAR_BF16, GPU) is None for c in pilot.configs]
    return {
        "schedules": SCHEDULES,
        "loss": {
            f"stages: {depth}; orders: {name}": describe(
                pilot.loss(deep & np.array([o in allowed for o in order]))
            )
            for depth, deep in depths.items()
            for name, allowed in orders.items()
        },
        "loss_of_rule": describe(pilot.loss(np.array(by_rule))),
    }


def l2_limit(pilot: Pilot, kept: np.ndarray) -> dict[str, object]:
    """How near the limit on loads from L2 the good configs come, and what it costs.

    Args:
        pilot: the base step.
        kept: bool [configs], what the exclusions leave.
    """
    rule = next(rule for rule in PROBLEM_RULES if rule.name == "l2-traffic")
    columns = ConfigColumns.of(pilot.configs)
    sides = [rule.sides(columns, problem, GPU) for problem in pilot.problems]
    floors = np.array([L2_SLACK * value / limit for value, limit in sides])
    measured = np.isfinite(pilot.slowdown)
    within = floors <= L2_SLACK
    return {
        "limit": L2_SLACK,
        "most_floors_of_configs": {
            f"within {near:.0%}": round(float(floors[pilot.slowdown <= 1 + near].max()), 3)
            for near in (0.0, 0.02, 0.05)
        },
        "loss_of_limit": describe(pilot.loss(within)),
        "loss_of_limit_and_exclusions": describe(pilot.loss(within & kept)),
        "share_of_configs_left": round(float((within & measured).sum() / measured.sum()), 4),
    }


def rule_counts() -> dict[str, object]:
    """Points of the axes that each rule leaves, in the order in which they are asked."""
    # No hardware rule looks at the order, so one stands for all of them.
    orders = list(itertools.product(RASTERS, SWIZZLES))
    left = [
        KernelConfig(tm, tn, tk, cm, cn, stages, groups, ctas, swap_ab=swap)
        for tm, tn, tk, (cm, cn), stages, groups, ctas, swap in itertools.product(
            TILE_M, TILE_N, TILE_K, CLUSTERS, STAGES, WARP_GROUPS, CTAS_PER_SM, (False, True)
        )
    ]
    counts = {"points": points()}
    for rule in RULES:
        left = [config for config in left if rule.complaint(config, LINEAR_BF16, GPU) is None]
        counts[rule.name] = len(left) * len(orders)
    left = [replace(config, raster=r, swizzle=s) for config in left for r, s in orders]
    for rule in MEASURED_RULES:
        left = [config for config in left if rule.complaint(config, LINEAR_BF16, GPU) is None]
        counts[rule.name] = len(left)
    if set(left) != set(valid_configs(LINEAR_BF16, GPU)):
        raise SystemExit("the rules one by one leave another space than valid_configs")
    return {"left_after": counts}


def problem_counts(problems: Iterable[GemmProblem]) -> dict[str, float]:
    """Candidates per problem that arithmetic leaves of the space."""
    counts = [len(candidates(problem, GPU)) for problem in problems]
    return {
        "problems": len(counts),
        "fewest": min(counts),
        "median": float(np.median(counts)),
        "most": max(counts),
    }


def main() -> None:
    """Derive everything; print the exclusions, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "space_pruning.json")
    out = parser.parse_args().out
    datasets = {
        step: read_dataset(RESULTS / f"space_pilot_{step}.parquet") for step in ("base", "schedule")
    }
    base, schedule = (read_pilot(dataset) for dataset in datasets.values())
    kept, exclusions = exclude(base, classes(base.configs, 2), MARGIN, slice(None))
    for exclusion in exclusions:
        values = " with ".join(f"{name} {value}" for name, value in exclusion.values.items())
        print(f"{values}: {exclusion.configs} configs, {exclusion.margin:.1%} behind or more")
    document = {
        "pilot": {
            step: {
                "sha256": dataset.digest,
                "rows": len(dataset.rows),
                "problems": len(dataset.problems()),
                "configs": len(pilot.configs),
                "problem_regimes": len(pilot.problems),
                "runs": [
                    {name: run[name] for name in ("date", "command", "gpus", "versions")}
                    for run in dataset.provenance["runs"]
                ],
            }
            for (step, dataset), pilot in zip(datasets.items(), (base, schedule), strict=True)
        },
        "pairs": value_classes(base),
        "schedule": schedule_choices(schedule),
        "l2_traffic": l2_limit(base, kept),
        "space": rule_counts() | {"candidates_of_pilot": problem_counts(set(base.problems))},
    }
    result.finish(document, out)


if __name__ == "__main__":
    main()
