"""Which problems were measured."""

from __future__ import annotations

from collections.abc import Sequence

from tilecast.heuristics.problem import GemmProblem
from tilecast.reporting.plots import COLOURS, Figure, extent_axis, figure, stretch


def coverage(problems: Sequence[GemmProblem]) -> Figure:
    """A dot for each problem: n against m, and n against k."""
    m, n, k = ([getattr(problem, name) for problem in problems] for name in "mnk")
    common = {
        "type": "scatter",
        "mode": "markers",
        "y": n,
        "text": list(map(str, problems)),
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": COLOURS[1], "size": 6, "opacity": 0.5},
        "showlegend": False,
    }
    axes = {
        "xaxis": extent_axis("m, rows of the product", m, domain=stretch(0, 2)),
        "xaxis2": extent_axis("k, the common extent", k, domain=stretch(1, 2)),
        "yaxis": extent_axis("n, columns of the product", n),
    }
    return figure([common | {"x": m}, common | {"x": k, "xaxis": "x2"}], axes)
