"""Figures with a dot for each measured problem: coverage, winners, speed, doubts of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.heuristics.config import Geometry, KernelConfig
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.families import family_of
from tilecast.models.evaluation.regret import by_rows
from tilecast.models.learning.labels import ProblemLabels
from tilecast.reporting.choices import Choices
from tilecast.reporting.plots import (
    COLOURS,
    Figure,
    axis,
    bars,
    dots,
    extent_axis,
    figure,
    level,
    ratio_axis,
    stretch,
)
from tilecast.reporting.table import Table


def _power_of_two(value: np.ndarray) -> int:
    """The least power of two that is not less: there are more values than colours."""
    return 1 << (value.item() - 1).bit_length()


def _tile_size(shape: Geometry) -> tuple[int, str]:
    size = _power_of_two(shape.tile_m * shape.tile_n)
    return size, f"up to {size // 1024}k"


def _split_k(shape: Geometry) -> tuple[int, str]:
    split = _power_of_two(shape.split_k)
    return split, f"{split // 2 + 1} to {split}" if split > 2 else str(split)


def _schedule(shape: Geometry) -> tuple[int, str]:
    ping_pong = int(shape.ping_pong.item())
    return ping_pong, "ping-pong" if ping_pong else "cooperative"


Knob = Callable[[Geometry], tuple[int, str]]
KNOBS: dict[str, Knob] = {
    "Elements of the product in one tile": _tile_size,
    "CTAs that split k": _split_k,
    "Schedule": _schedule,
}
"""Properties of a config by title; each gives one of a few values, and its name."""


def winner(labels: ProblemLabels, power: str) -> KernelConfig:
    """The config that is best by the truth."""
    return labels.configs[int(labels.cost(power, truth=True).argmin())]


def winners(table: Sequence[ProblemLabels], power: str, knob: Knob) -> Figure:
    """Where each value of a knob wins, and its share by rows of the product."""
    best = [winner(labels, power) for labels in table]
    shown = [knob(family_of(config).geometry([config])) for config in best]
    values = np.array([value for value, _ in shown])
    m, n = (np.array([getattr(labels.problem, name) for labels in table]) for name in "mn")
    pairs = zip(table, best, strict=True)
    names = np.array([f"{labels.problem}: {config}" for labels, config in pairs])
    problems = [labels.problem for labels in table]
    data = []
    for place, (value, name) in enumerate(sorted(set(shown))):
        here = values == value
        style = {"color": COLOURS[place % len(COLOURS)], "opacity": 0.8}
        x, y, texts = (part[here].tolist() for part in (m, n, names))
        shares = _mean_by_rows(problems, here)
        beside = bars(name, shares, "%{x}: %{y:.0%}", style) | {"showlegend": False}
        data += [one | {"legendgroup": name} for one in (dots(name, x, y, texts, style), beside)]
    axes = {
        "xaxis": extent_axis("m", m.tolist(), domain=stretch(0, 2)),
        "yaxis": extent_axis("n", n.tolist()),
        "xaxis2": axis("", domain=stretch(1, 2)),
        "yaxis2": axis("share of the problems", anchor="x2", tickformat=".0%", range=[0, 1]),
    }
    return figure(data, axes, barmode="stack")


def doubt_figure(found: Sequence[Choices]) -> Figure:
    """How many kernels the model thinks worth compiling, by problem, and the mean by rows."""
    m, n = ([getattr(one.problem, name) for one in found] for name in "mn")
    sizes = np.array([one.shortlist for one in found])
    means = _mean_by_rows([one.problem for one in found], sizes)
    scale = {"title": {"text": "kernels"}, "x": stretch(0, 2)[1], "thickness": 10}
    colours = {"color": sizes.tolist(), "colorscale": "Viridis", "colorbar": scale}
    names = [f"{one.problem}: {one.shortlist}, {one.chosen[0].config}" for one in found]
    data = [
        dots("", m, n, names, {"size": 7} | colours),
        bars("", means, "%{x}: %{y:.1f}<extra></extra>", {"color": COLOURS[1]}),
    ]
    axes = {
        "xaxis": extent_axis("m", m, domain=stretch(0, 2)),
        "yaxis": extent_axis("n", n),
        "xaxis2": axis("", domain=stretch(1, 2)),
        "yaxis2": axis("kernels, on average", anchor="x2"),
    }
    return figure(data, axes, showlegend=False)


def _mean_by_rows(problems: Sequence[GemmProblem], values: np.ndarray) -> dict[str, float]:
    """The mean of the problems' values in each range of rows that has a problem."""
    known = by_rows(problems)
    return {rows: float(values[inside].mean()) for rows, inside in known.items() if inside.any()}


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
