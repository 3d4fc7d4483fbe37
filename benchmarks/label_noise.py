"""How well labels repeat: the race against the later verification of the same kernels.

Two figures per power regime. ``absolute`` is |ln(verify / race)|. ``relative`` takes out the median
over the problem's kernels first, where there are enough of them: what all share is the card's state
and orders nobody.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import result

from tilecast.data_collection.dataset import read_dataset
from tilecast.data_collection.measurement import REFERENCE, REGIMES

if TYPE_CHECKING:
    import pandas as pd

DATA = Path(__file__).parents[1] / "data_collection" / "data" / "h200_bf16_rcr.parquet"
SHORT = 10.0
"""Microseconds below which an event's resolution and the launch itself matter."""
ENOUGH = 3
"""Fewest kernels of a problem whose median change is taken out; of one, nothing would be left."""
PROBLEM = ("m", "n", "k", "batch", "dtype", "out_dtype", "layout")


@dataclass(frozen=True)
class Repeat:
    """One of our kernels, raced and verified."""

    group: tuple
    """Its problem and power regime."""
    microseconds: float
    """Time in the race."""
    change: float
    """ln(verify / race)."""


def repeats(rows: pd.DataFrame) -> list[Repeat]:
    """Every kernel of ours that was raced and verified."""
    names = (*PROBLEM, "regime", "config", "stage", "microseconds")
    raced: dict[tuple, float] = {}
    verified: dict[tuple, float] = {}
    for *key, stage, time in zip(*(rows[name].tolist() for name in names), strict=True):
        if stage != "screen" and key[-1] != REFERENCE and not math.isnan(time):
            (raced if stage == "race" else verified)[tuple(key)] = time
    return [
        Repeat(key[:-1], raced[key], math.log(again / raced[key]))
        for key, again in verified.items()
    ]


def noise(found: Sequence[Repeat]) -> dict[str, Any]:
    """Quantiles of the changes, per regime and size."""
    groups: dict[tuple, list[float]] = {}
    for repeat in found:
        groups.setdefault(repeat.group, []).append(repeat.change)
    shifts = {key: statistics.median(all_) for key, all_ in groups.items() if len(all_) >= ENOUGH}
    figures: dict[str, Any] = {}
    for regime in REGIMES:
        mine = [repeat for repeat in found if repeat.group[-1] == regime]
        figures[regime] = {
            size: {
                "problems": len({repeat.group for repeat in part}),
                "absolute": _quantiles([abs(r.change) for r in part]),
                "relative": _quantiles(
                    [abs(r.change - shifts[r.group]) for r in part if r.group in shifts]
                ),
            }
            for size, part in {
                "from_10_us": [repeat for repeat in mine if repeat.microseconds >= SHORT],
                "below_10_us": [repeat for repeat in mine if repeat.microseconds < SHORT],
            }.items()
        }
    return figures


def _quantiles(changes: Sequence[float]) -> dict[str, float]:
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99} if changes else {}
    found = {name: result.quantile(changes, share) for name, share in shares.items()}
    return {"pairs": len(changes), **found}


def rate(rows: pd.DataFrame, runs: list[dict[str, Any]]) -> dict[str, float]:
    """Measurements per second and GPU over whole runs, with all that they wait for."""
    gpus = len(set(rows["device"].tolist()))
    seconds = sum(run["end"]["seconds"] for run in runs if "end" in run)
    return {
        "measurements": len(rows),
        "gpus": gpus,
        "seconds": seconds,
        "measurements_per_second_per_gpu": len(rows) / seconds / gpus,
        "replays_per_second_per_gpu": sum(rows["rounds"].tolist()) / seconds / gpus,
    }


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=DATA, help="data set (default: the shipped one)"
    )
    result.add_out(parser)
    options = parser.parse_args()
    dataset = read_dataset(options.data)
    figures = {
        "data": options.data.name,
        "digest": dataset.digest,
        "noise": noise(repeats(dataset.rows)),
        "collector": rate(dataset.rows, dataset.provenance["runs"]),
    }
    result.finish(figures, options.out)


if __name__ == "__main__":
    main()
