"""Draw held-out regret against the number of kernels, for us and every baseline.

Reads ``benchmarks/results/selection_regret.json`` and writes ``regret_vs_k.png`` beside it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from tables import RESULT

from tilecast.heuristics.files import write_atomically

STYLES = {
    "tilecast": ("#D55E00", "o"),
    "tree+linear": ("#E69F00", "s"),
    "nearest neighbour": ("#0072B2", "^"),
    "best fixed subset": ("#009E73", "v"),
    "nvMatmulHeuristics": ("#000000", "D"),
    "default config": ("#7F7F7F", "X"),
    "random": ("#CC79A7", "P"),
}
"""Colour (Okabe and Ito's, which colour-blind people tell apart) and marker of each heuristic."""
POWERS = {"burst": "burst", "sustained": "sustained", "robust": "worst of both"}
FIGURES = {"geomean": "geometric mean", "p95": "95th percentile"}


def draw(document: Mapping[str, Any]) -> Figure:
    """One panel per figure and power regime, regret on a logarithmic axis."""
    figure = Figure(figsize=(9.2, 6.4), layout="constrained")
    panels = figure.subplots(len(FIGURES), len(POWERS), sharex=True, sharey="row", squeeze=False)
    for row, (name, label) in zip(panels, FIGURES.items(), strict=True):
        for axes, power in zip(row, POWERS, strict=True):
            _panel(axes, document, power, name)
        row[0].set_ylabel(f"regret, {label}")
    for axes, title in zip(panels[0], POWERS.values(), strict=True):
        axes.set_title(title, fontsize=11)
    panels[-1][1].set_xlabel("distinct kernels that are compiled and timed (k)")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    gpu = " and ".join(document["dataset"]["gpu"])
    figure.suptitle(
        f"Held-out regret on {document['problems']} bf16 GEMMs of {document['families']} "
        f"(n, k) families, {gpu}",
        fontsize=12,
    )
    return figure


def _panel(axes: Axes, document: Mapping[str, Any], power: str, name: str) -> None:
    k = document["k"]
    for heuristic, series in document["regret"][power]["all"].items():
        colour, marker = STYLES[heuristic]
        ours = heuristic == "tilecast"
        axes.plot(
            k,
            series[name],
            color=colour,
            marker=marker,
            markersize=5 if ours else 4,
            linewidth=2.4 if ours else 1.2,
            zorder=3 if ours else 2,
            label=heuristic,
        )
    floor = document["noise_floor"][power][name]
    axes.axhline(floor, color="#555555", linewidth=1, linestyle=":", label="noise floor, k = 1")
    axes.set_yscale("log")
    axes.set_xticks(k)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Read the result and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--out", type=Path, default=RESULT.with_name("regret_vs_k.png"))
    options = parser.parse_args()
    matplotlib.rcParams["font.size"] = 10
    figure = draw(json.loads(options.result.read_text()))
    # No version or date in the file: the same result gives the same bytes.
    facts = {"Software": None}
    write_atomically(
        options.out,
        lambda path: figure.savefig(path, dpi=150, format="png", metadata=facts),
    )
    print(json.dumps({"out": str(options.out), "bytes": options.out.stat().st_size}))


if __name__ == "__main__":
    main()
