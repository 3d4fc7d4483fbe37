"""How does held-out regret fall with the number of kernels, for us and every baseline?

``python benchmarks/pages/regret_figure.py`` draws ``selection_regret.json`` as ``regret_vs_k.png``.
"""

import json
import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from tilecast.heuristics.files import write_atomically

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from runner import RESULTS, Row

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


def draw(settings: Row, figures: Row) -> Figure:
    """One panel per figure and power regime, regret on a logarithmic axis."""
    figure = Figure(figsize=(9.2, 6.4), layout="constrained")
    panels = figure.subplots(len(FIGURES), len(POWERS), sharex=True, sharey="row", squeeze=False)
    for row, (name, label) in zip(panels, FIGURES.items(), strict=True):
        row[0].set_ylabel(f"regret, {label}")
        for axes, power in zip(row, POWERS, strict=True):
            for heuristic, series in figures["regret"][power]["all"].items():
                colour, marker = STYLES[heuristic]
                size, width, order = (5, 2.4, 3) if heuristic == "tilecast" else (4, 1.2, 2)
                style = {"color": colour, "marker": marker, "markersize": size, "linewidth": width}
                axes.plot(settings["k"], series[name], zorder=order, label=heuristic, **style)
            line = {"color": "#555555", "linewidth": 1, "linestyle": ":"}
            floor = figures["noise_floor"][power][name]
            axes.axhline(floor, label="noise floor, k = 1", **line)
            axes.set_title(POWERS[power] if name == "geomean" else "", fontsize=11)
            axes.set_yscale("log")
            axes.set_xticks(settings["k"])
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
            axes.spines[["top", "right"]].set_visible(False)
    panels[-1][1].set_xlabel("distinct kernels that are compiled and timed (k)")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    gpus = {gpu["name"] for run in settings["dataset"]["runs"] for gpu in run["gpus"]}
    problems = f"{settings['problems']} bf16 GEMMs of {settings['families']} (n, k) families"
    figure.suptitle(f"Held-out regret on {problems}, {' and '.join(gpus)}", fontsize=12)
    return figure


if __name__ == "__main__":
    matplotlib.rcParams["font.size"] = 10
    result = json.loads((RESULTS / "selection_regret.json").read_text())
    figure = draw(result["settings"], result["figures"])
    # No version or date in the file: the same result gives the same bytes.
    facts, out = {"Software": None}, RESULTS / "regret_vs_k.png"
    write_atomically(out, lambda at: figure.savefig(at, dpi=150, format="png", metadata=facts))
