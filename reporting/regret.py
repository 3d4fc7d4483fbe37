"""Held-out regret against the number of kernels, of every heuristic that was scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilecast.reporting.plots import Figure, axis, caption, figure, level, line, stretch, suffix

FIGURES = {"geomean": "geometric mean", "p95": "95th percentile"}
"""A panel each."""
_SHARES = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3]


def regret_figure(rows: Sequence[Mapping[str, Any]], floor: Mapping[str, float]) -> Figure:
    """A line for each heuristic, in panels for the `FIGURES`.

    Args:
        rows: ``regret`` of `tilecast.models.evaluation.evaluation.evaluate`, of one power and
            group of problems.
        floor: the score of the labels themselves, by figure.
    """
    data = []
    for place, heuristic in enumerate(dict.fromkeys(row["heuristic"] for row in rows)):
        rows_of_it = [row for row in rows if row["heuristic"] == heuristic]
        k = [row["k"] for row in rows_of_it]
        for panel, name in enumerate(FIGURES):
            found = line(heuristic, place, panel, k, [row[name] for row in rows_of_it])
            if not place:
                found["line"]["width"] = 3
            more = {"xaxis": f"x{suffix(panel)}", "hovertemplate": "k = %{x}: %{y:.2%}"}
            data.append(found | more)
    axes: dict[str, dict[str, Any]] = {}
    captions, lines = [], []
    for panel, (name, title) in enumerate(FIGURES.items()):
        place, number = stretch(panel, len(FIGURES)), suffix(panel)
        axes[f"xaxis{number}"] = axis("kernels that are compiled and timed, k", domain=place)
        shares = {"type": "log", "tickvals": _SHARES, "tickformat": ".1~%"}
        axes[f"yaxis{number}"] = axis("regret", anchor=f"x{number}", **shares)
        captions.append(caption(title, sum(place) / 2))
        if floor[name] > 0:
            lines.append(level(floor[name], number))
    return figure(
        data, axes, 480, annotations=captions, shapes=lines, legend={"orientation": "h", "y": -0.2}
    )
