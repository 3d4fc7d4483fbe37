"""Figures of one problem: its ranking, the reasons for the first, and all measured times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilecast.data_collection.dataset.select_times import MeasuredTimes
from tilecast.reporting.plots import COLOURS, Figure, axis, dots, figure, level, ratio_axis


def ranking_figure(document: Mapping[str, Any]) -> Figure:
    """Expected and measured times of the ranked configs, beside the roofline and cuBLAS.

    The expected time of cuBLAS is a lower estimate that nine in ten exceed.

    Args:
        document: what ``tilecast predict --json`` prints of one problem.
    """
    entries = document["ranking"]
    ranks = [f"{entry['rank']}  {entry['config']}" for entry in entries]
    series = {"expected": [entry["predicted_microseconds"] for entry in entries]}
    for regime in document["measured"]:
        series[f"measured, {regime}"] = [e["measured"][regime]["microseconds"] for e in entries]
    shared = {"type": "scatter", "y": ranks, "hovertemplate": "%{x:.2f} us"}
    data: list[dict[str, Any]] = [
        shared
        | {"mode": "markers", "name": name, "x": times}
        | {"marker": {"color": colour, "size": 11, "symbol": place}}
        for place, ((name, times), colour) in enumerate(zip(series.items(), COLOURS, strict=False))
    ]
    data += [
        shared
        | {"mode": "lines", "name": name, "x": [time] * len(ranks)}
        | {"line": {"color": COLOURS[3 + place], "dash": "dot"}}
        for place, (name, time) in enumerate(_levels(document).items())
    ]
    axes = {
        "xaxis": axis("microseconds", rangemode="tozero"),
        "yaxis": axis("", autorange="reversed", type="category"),
    }
    return figure(data, axes, 260 + 30 * len(ranks))


def _levels(document: Mapping[str, Any]) -> dict[str, float]:
    """The known times that the ranked ones are compared with, in microseconds, by name."""
    library = document["library"]
    lines = {
        "roofline": document["roofline"]["microseconds"],
        f"{library['name']}, at least, in nine cases of ten": library["at_least_microseconds"],
    }
    for regime, oracle in document["measured"].items():
        lines[f"{library['name']}, {regime}"] = oracle["reference_microseconds"]
    return {name: time for name, time in lines.items() if time is not None}


def reasons_figure(document: Mapping[str, Any]) -> Figure:
    """The effect of each feature on the expected cost of the first, against its rivals."""
    found = document["reasons"]
    effects = [reason["effect"] for reason in found]
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": effects,
        "y": [reason["feature"] for reason in found],
        "text": [reason["meaning"] for reason in found],
        "hovertemplate": "%{text}: %{x:+.1%}<extra></extra>",
        "textposition": "none",
        "marker": {"color": [COLOURS[2] if effect < 0 else COLOURS[0] for effect in effects]},
    }
    axes = {
        "xaxis": axis("effect on the expected cost, less is better", tickformat="+.1~%"),
        "yaxis": axis("", autorange="reversed"),
    }
    return figure([bars], axes, 180 + 34 * len(found))


def all_measured(truth: MeasuredTimes, regime: str, ranked: Sequence[str], library: str) -> Figure:
    """Every config that has a time in a regime, fastest first, with the ranked ones marked.

    Args:
        truth: the measured times.
        regime: their power regime.
        ranked: names of the first configs of the ranking.
        library: the operator that calls cuBLAS, such as ``torch.mm``.
    """
    names = sorted(truth.times, key=truth.times.__getitem__)
    places = {name: place for place, name in enumerate(names, 1)}
    known = [name for name in ranked if name in places]
    text = "%{text}: %{y:.2f} us<extra></extra>"
    x, y = [places[name] for name in known], [truth.times[name] for name in known]
    ranks = [str(ranked.index(name) + 1) for name in known]
    every = list(places.values()), [truth.times[name] for name in names], names
    data = [
        dots("every config that was measured", *every, {})
        | {"mode": "lines", "line": {"color": COLOURS[1]}, "hovertemplate": text},
        dots("the ranking", x, y, ranks, {"color": COLOURS[0], "size": 9})
        | {"mode": "markers+text", "textposition": "top center", "hovertemplate": text},
    ]
    shapes = [] if truth.reference is None else [level(truth.reference)]
    title = f"microseconds, {regime}" + (f"; dotted: {library}" if shapes else "")
    axes = {
        "xaxis": axis("place among the measured", type="log", dtick=1),
        "yaxis": ratio_axis(title),
    }
    return figure(data, axes, shapes=shapes)
