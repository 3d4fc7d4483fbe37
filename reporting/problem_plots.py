"""Figures with a dot for each measured problem: coverage, winners, and speed beside cuBLAS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.config_table import Geometry
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.families import family_of
from tilecast.models.evaluation.regret import by_rows
from tilecast.models.learning.labels import ProblemLabels
from tilecast.reporting.plots import (
    COLOURS,
    Figure,
    axis,
    dots,
    extent_axis,
    figure,
    level,
    ratio_axis,
    stretch,
)
from tilecast.reporting.table import Table


@dataclass(frozen=True)
class Knob:
    """A property of a winner."""

    title: str
    """Stands above the figure."""
    value: Callable[[Geometry], int]
    """Gives the value of one config, one of a few."""
    shown: Callable[[int], str]
    """Gives the name of a value."""


def _power_of_two(value: np.ndarray) -> int:
    """The least power of two that is not less: there are more values than colours."""
    return 1 << (value.item() - 1).bit_length()


def _up_to(value: int) -> str:
    return f"{value // 2 + 1} to {value}" if value > 2 else str(value)


KNOBS = (
    Knob(
        "Elements of the product in one tile",
        lambda shape: _power_of_two(shape.tile_m * shape.tile_n),
        lambda value: f"up to {value // 1024}k",
    ),
    Knob("CTAs that split k", lambda shape: _power_of_two(shape.split_k), _up_to),
    Knob(
        "Schedule",
        lambda shape: int(shape.ping_pong.item()),
        lambda value: "ping-pong" if value else "cooperative",
    ),
)


def winner(labels: ProblemLabels, power: str) -> KernelConfig:
    """The config that is best by the truth."""
    return labels.configs[int(labels.cost(power, truth=True).argmin())]


def winners(table: Sequence[ProblemLabels], power: str, knob: Knob) -> Figure:
    """Where each value of a knob wins, and its share by rows of the product."""
    best = [winner(labels, power) for labels in table]
    values = np.array([knob.value(family_of(config).geometry([config])) for config in best])
    m, n = (np.array([getattr(labels.problem, name) for labels in table]) for name in "mn")
    pairs = zip(table, best, strict=True)
    names = np.array([f"{labels.problem}: {config}" for labels, config in pairs])
    known = by_rows([labels.problem for labels in table])
    data = []
    for place, value in enumerate(np.unique(values).tolist()):
        here, name = values == value, knob.shown(value)
        shares = {
            bucket: float(here[inside].mean()) for bucket, inside in known.items() if inside.any()
        }
        style = {"color": COLOURS[place % len(COLOURS)], "opacity": 0.8}
        x, y, texts = (part[here].tolist() for part in (m, n, names))
        bars = {
            "type": "bar",
            "name": name,
            "legendgroup": name,
            "x": list(shares),
            "y": list(shares.values()),
            "xaxis": "x2",
            "yaxis": "y2",
            "marker": style,
            "showlegend": False,
            "hovertemplate": "%{x}: %{y:.0%}",
        }
        data += [dots(name, x, y, texts, style) | {"legendgroup": name}, bars]
    axes = {
        "xaxis": extent_axis("m", m.tolist(), domain=stretch(0, 2)),
        "yaxis": extent_axis("n", n.tolist()),
        "xaxis2": axis("", domain=stretch(1, 2)),
        "yaxis2": axis("share of the problems", anchor="x2", tickformat=".0%", range=[0, 1]),
    }
    return figure(data, axes, barmode="stack")


def coverage(problems: Sequence[GemmProblem]) -> Figure:
    """The extents of the problems: n against m, and n against k."""
    m, n, k = ([getattr(problem, name) for problem in problems] for name in "mnk")
    style = {"color": COLOURS[1], "size": 6, "opacity": 0.5}
    names = list(map(str, problems))
    data = [
        dots("", x, n, names, style) | {"showlegend": False, "xaxis": axis_name}
        for x, axis_name in ((m, "x"), (k, "x2"))
    ]
    axes = {
        "xaxis": extent_axis("m, rows of the product", m, domain=stretch(0, 2)),
        "xaxis2": extent_axis("k, the reduced extent", k, domain=stretch(1, 2)),
        "yaxis": extent_axis("n, columns of the product", n),
    }
    return figure(data, axes)


def best_over_library(table: Sequence[ProblemLabels], regime: str) -> np.ndarray:
    """The time of cuBLAS over the best config's of each problem, float64, by the truth.

    Above 1 the best config is faster; NaN where cuBLAS was not timed.
    """
    return np.array([np.max(labels.library_over(regime)) for labels in table])


def speed_figure(table: Sequence[ProblemLabels]) -> Figure:
    """The speed beside cuBLAS in each power regime, against the rows of the product."""
    m = [labels.problem.m for labels in table]
    data = []
    for colour, regime in zip(COLOURS, REGIMES, strict=False):
        times = best_over_library(table, regime)
        timed = np.flatnonzero(~np.isnan(times)).tolist()
        names = [str(table[i].problem) for i in timed]
        style = {"color": colour, "size": 6, "opacity": 0.55}
        x, y = [m[i] for i in timed], times[timed].tolist()
        data.append(dots(regime, x, y, names, style) | {"hovertemplate": "%{text}: %{y:.2f}x"})
    title = "time of cuBLAS / the best config's"
    axes = {"xaxis": extent_axis("m", m), "yaxis": ratio_axis(title)}
    return figure(data, axes, shapes=[level(1)])


def speed_table(table: Sequence[ProblemLabels]) -> Table:
    """Speed beside cuBLAS by power regime and rows of the product."""
    known, rows = by_rows([labels.problem for labels in table]), []
    for regime in REGIMES:
        times = best_over_library(table, regime)
        for bucket, inside in known.items():
            found = times[inside & ~np.isnan(times)]
            if found.size:
                mean = float(np.exp(np.log(found).mean()))
                slower = float((found < 1).mean())
                rows.append((regime, bucket, found.size, mean, slower, float(found.min())))
    columns = {"regime": "", "rows": "", "problems": "d", "geomean": ".2f"}
    return Table("", columns | {"slower than it": ".1%", "worst": ".2f"}, rows)
