"""One problem: its ranking, the reasons for the first, and all that was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilecast.data_collection.dataset.select_times import MeasuredTimes
from tilecast.reporting.plots import COLOURS, Figure, axis, figure, level, ratio_axis


def ranking(document: Mapping[str, Any]) -> Figure:
    """Expected and measured times of the ranked configs, with the roofline and the library below.

    Of the library it is shown what it takes at least in nine cases of ten.

    Args:
        document: what ``tilecast predict --json`` answers for one problem.
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
    """What the ranked times stand beside, in microseconds, by name; what is not known is not in."""
    library = document["library"]
    lines = {
        "roofline": document["roofline"]["microseconds"],
        f"{library['name']}, at least, in nine cases of ten": library["at_least_microseconds"],
    }
    for regime, oracle in document["measured"].items():
        lines[f"{library['name']}, {regime}"] = oracle["reference_microseconds"]
    return {name: time for name, time in lines.items() if time is not None}


def reasons(document: Mapping[str, Any]) -> Figure:
    """What each feature does to the expected cost of the first, against its rivals."""
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


def measured(truth: MeasuredTimes, regime: str, ranked: Sequence[str], library: str) -> Figure:
    """Every config that has a time in a regime, fastest first, with the ranked ones marked.

    Args:
        truth: what was measured.
        regime: in which regime.
        ranked: names of the first configs of the ranking.
        library: the library's operator, such as ``torch.mm``.
    """
    names = sorted(truth.times, key=truth.times.__getitem__)
    places = {name: place for place, name in enumerate(names, 1)}
    told = [name for name in ranked if name in places]
    common = {"type": "scatter", "hovertemplate": "%{text}: %{y:.2f} us<extra></extra>"}
    data = [
        common
        | {
            "mode": "lines",
            "name": "every config that was measured",
            "x": list(places.values()),
            "y": [truth.times[name] for name in names],
            "text": names,
            "line": {"color": COLOURS[1]},
        },
        common
        | {
            "mode": "markers+text",
            "name": "the ranking",
            "x": [places[name] for name in told],
            "y": [truth.times[name] for name in told],
            "text": [str(ranked.index(name) + 1) for name in told],
            "textposition": "top center",
            "marker": {"color": COLOURS[0], "size": 9},
        },
    ]
    shapes = [] if truth.reference is None else [level(truth.reference)]
    title = f"microseconds, {regime}" + (f"; dotted: {library}" if shapes else "")
    axes = {
        "xaxis": axis("place among the measured", type="log", dtick=1),
        "yaxis": ratio_axis(title),
    }
    return figure(data, axes, shapes=shapes)
