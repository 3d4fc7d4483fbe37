"""Which kernels win where: one knob of the best config of every problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilecast.heuristics.config import KernelConfig
from tilecast.heuristics.config_table import Geometry
from tilecast.kernels.families import family_of
from tilecast.models.evaluation.regret import by_rows
from tilecast.models.learning.labels import ProblemLabels
from tilecast.reporting.plots import COLOURS, Figure, axis, extent_axis, figure, stretch


@dataclass(frozen=True)
class Knob:
    """What is told of a winner."""

    title: str
    """Stands above the figure."""
    level: Callable[[Geometry], np.ndarray]
    """Which of a few levels configs are on; int [configs]."""
    shown: Callable[[int], str]
    """How a level is called."""


def _power_of_two(values: np.ndarray) -> np.ndarray:
    """The least powers of two from values on: there are more values than colours."""
    return 2 ** np.ceil(np.log2(values)).astype(int)


def _up_to(level: int) -> str:
    return "1" if level == 1 else f"{level // 2 + 1} to {level}" if level > 2 else "2"


KNOBS = (
    Knob(
        "Elements of the product in one tile",
        lambda shape: _power_of_two(shape.tile_m * shape.tile_n),
        lambda level: f"up to {level // 1024}k",
    ),
    Knob("CTAs that split k", lambda shape: _power_of_two(shape.split_k), _up_to),
    Knob(
        "Schedule",
        lambda shape: shape.ping_pong.astype(int),
        lambda level: "ping-pong" if level else "cooperative",
    ),
)


def winner(labels: ProblemLabels, power: str) -> KernelConfig:
    """The config that is best by the truth."""
    return labels.configs[int(labels.cost(power, truth=True).argmin())]


def winners(table: Sequence[ProblemLabels], power: str, knob: Knob) -> Figure:
    """Where each level of a knob wins: a dot a problem, and its share by rows of the product."""
    best = [winner(labels, power) for labels in table]
    levels = np.array([knob.level(family_of(config).geometry([config])) for config in best]).ravel()
    m, n = (np.array([getattr(labels.problem, name) for labels in table]) for name in "mn")
    pairs = zip(table, best, strict=True)
    names = np.array([f"{labels.problem}: {config}" for labels, config in pairs])
    known = by_rows([labels.problem for labels in table])
    data = []
    for place, level in enumerate(np.unique(levels).tolist()):
        here, name = levels == level, knob.shown(level)
        shares = {
            bucket: float(here[inside].mean()) for bucket, inside in known.items() if inside.any()
        }
        shared = {
            "name": name,
            "legendgroup": name,
            "marker": {"color": COLOURS[place % len(COLOURS)], "opacity": 0.8},
        }
        dots = {"x": m[here].tolist(), "y": n[here].tolist(), "text": names[here].tolist()}
        bars = {"x": list(shares), "y": list(shares.values()), "showlegend": False}
        data += [
            shared | dots | {"type": "scatter", "mode": "markers", "hovertemplate": "%{text}"},
            shared
            | bars
            | {"type": "bar", "xaxis": "x2", "yaxis": "y2", "hovertemplate": "%{x}: %{y:.0%}"},
        ]
    axes = {
        "xaxis": extent_axis("m", m.tolist(), domain=stretch(0, 2)),
        "yaxis": extent_axis("n", n.tolist()),
        "xaxis2": axis("", domain=stretch(1, 2)),
        "yaxis2": axis("share of the problems", anchor="x2", tickformat=".0%", range=[0, 1]),
    }
    return figure(data, axes, barmode="stack")
