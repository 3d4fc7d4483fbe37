"""Parts of figures: plain data as plotly.js reads it, so that making a figure needs no plotly.

A figure has ``data``, its traces, and ``layout``; colours of text and paper are the page's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Figure = dict[str, Any]
"""``data`` and ``layout`` of one figure."""
Trace = dict[str, Any]
"""One series of a figure."""

COLOURS = (
    "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#999999"
)  # fmt: skip
"""The palette of Okabe and Ito, which colour-blind people tell apart, without the black and yellow
that vanish on a dark or light page; the last is for everything else."""
QUIET = "rgba(128,128,128,0.25)"
"""The colour of grids, on light and dark paper."""
_GAP = 0.09
"""The gap between panels, as a share of the whole width or height."""


def figure(
    data: Sequence[Trace], axes: Mapping[str, Mapping[str, Any]], height: int = 420, **layout: Any
) -> Figure:
    """A figure of traces on axes, which are named ``xaxis``, ``yaxis``, ``xaxis2`` and so on."""
    plain = {"gridcolor": QUIET, "zeroline": False, "automargin": True}
    legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
    margin = {"l": 60, "r": 20, "t": 90, "b": 50}
    common = {"height": height, "legend": legend, "margin": margin, "hovermode": "closest"}
    shown = {name: plain | dict(axis) for name, axis in axes.items()}
    return {"data": list(data), "layout": common | shown | layout}


def dots(
    name: str, x: Sequence[Any], y: Sequence[Any], texts: Sequence[str], marker: Mapping[str, Any]
) -> Trace:
    """A series of dots, each with a text that the pointer shows."""
    trace = {"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y, "text": texts}
    return trace | {"hovertemplate": "%{text}<extra></extra>", "marker": marker}


def bars(name: str, shares: Mapping[str, float], text: str, marker: Mapping[str, Any]) -> Trace:
    """A bar for each share in the second panel."""
    trace = {"type": "bar", "name": name, "x": list(shares), "y": list(shares.values())}
    return trace | {"xaxis": "x2", "yaxis": "y2", "marker": marker, "hovertemplate": text}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """A linear axis."""
    return {"title": {"text": title}} | more


def extent_axis(title: str, values: Iterable[int], **more: Any) -> dict[str, Any]:
    """A logarithmic axis of extents, with ticks at powers of four that reach over all values."""
    known = list(values) or [1]
    least, most = min(known), max(known)
    ticks = [4**power for power in range(16) if least / 4 < 4**power < most * 4]
    shown = [f"{tick // 1024}k" if tick >= 1024 else str(tick) for tick in ticks]
    return axis(title, type="log", tickvals=ticks, ticktext=shown, **more)


def ratio_axis(title: str, **more: Any) -> dict[str, Any]:
    """A logarithmic axis with ticks at round numbers, from 0.1 to 50,000."""
    finely = [0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6, 2, 2.5, 3, 4, 5, 7]
    ticks = finely + [step * 10**power for power in range(1, 5) for step in (1, 1.5, 2, 3, 5)]
    return axis(title, type="log", tickvals=ticks, tickformat="~r", **more)


def stretch(place: int, count: int) -> list[float]:
    """The part of the width, or height, that one of ``count`` equal panels takes, from 0 to 1."""
    size = (1 - _GAP * (count - 1)) / count
    begin = place * (size + _GAP)
    return [round(begin, 4), round(min(begin + size, 1), 4)]


def suffix(place: int) -> str:
    """The end of the names of a panel's axes: nothing, then 2, 3 and so on."""
    return str(place + 1) if place else ""


def level(y: float, axes: str = "") -> dict[str, Any]:
    """A dotted line at one y over the whole width of the panel whose axes end in ``axes``."""
    line = {"color": "rgba(128,128,128,0.9)", "width": 1, "dash": "dot"}
    place = {"xref": f"x{axes} domain", "yref": f"y{axes}", "x0": 0, "x1": 1, "y0": y, "y1": y}
    return {"type": "line", "line": line} | place
