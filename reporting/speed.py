"""How fast our best kernels are beside the library's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilecast.data_collection.dataset.measurement import REGIMES
from tilecast.models.evaluation.regret import by_rows
from tilecast.models.learning.labels import ProblemLabels
from tilecast.reporting.plots import COLOURS, Figure, extent_axis, figure, level, ratio_axis
from tilecast.reporting.table import Table


def best_over_library(table: Sequence[ProblemLabels], regime: str) -> np.ndarray:
    """The library's time over our best config's of each problem, float64, by the truth.

    Above 1 ours is faster; NaN where the library was not timed.
    """
    return np.array([np.max(labels.library_over(regime)) for labels in table])


def speed(table: Sequence[ProblemLabels]) -> Figure:
    """A dot for each problem and power regime, by rows of the product."""
    m = [labels.problem.m for labels in table]
    data = []
    for colour, regime in zip(COLOURS, REGIMES, strict=False):
        times = best_over_library(table, regime)
        timed = np.flatnonzero(~np.isnan(times)).tolist()
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": regime,
                "x": [m[i] for i in timed],
                "y": times[timed].tolist(),
                "text": [str(table[i].problem) for i in timed],
                "hovertemplate": "%{text}: %{y:.2f}x",
                "marker": {"color": colour, "size": 6, "opacity": 0.55},
            }
        )
    title = "library's time / our best"
    axes = {"xaxis": extent_axis("m", m), "yaxis": ratio_axis(title)}
    return figure(data, axes, shapes=[level(1)])


def speed_table(table: Sequence[ProblemLabels]) -> Table:
    """Geometric mean, least and share below 1 by rows of the product and power regime."""
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
