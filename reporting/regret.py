"""Held-out regret against the number of kernels, of every heuristic that was scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilecast.reporting.plots import COLOURS, Figure, axis, figure, level, stretch, suffix

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
            colour, width = COLOURS[place % len(COLOURS)], 1 if place else 3
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": heuristic,
                    "legendgroup": heuristic,
                    "showlegend": not panel,
                    "x": k,
                    "y": [row[name] for row in rows_of_it],
                    "xaxis": f"x{suffix(panel)}",
                    "yaxis": f"y{suffix(panel)}",
                    "line": {"color": colour, "width": width},
                    "marker": {"symbol": place % 8, "size": 7},
                    "hovertemplate": "k = %{x}: %{y:.2%}",
                }
            )
    axes: dict[str, dict[str, Any]] = {}
    captions, lines = [], []
    for panel, (name, title) in enumerate(FIGURES.items()):
        place, number = stretch(panel, len(FIGURES)), suffix(panel)
        axes[f"xaxis{number}"] = axis("kernels that are compiled and timed, k", domain=place)
        shares = {"type": "log", "tickvals": _SHARES, "tickformat": ".1~%"}
        axes[f"yaxis{number}"] = axis("regret", anchor=f"x{number}", **shares)
        above = {"xref": "paper", "yref": "paper", "x": sum(place) / 2, "y": 1.0}
        anchors = {"xanchor": "center", "yanchor": "bottom"}
        captions.append(above | anchors | {"text": title, "showarrow": False})
        if floor[name] > 0:
            lines.append(level(floor[name], number))
    return figure(
        data, axes, 480, annotations=captions, shapes=lines, legend={"orientation": "h", "y": -0.2}
    )
