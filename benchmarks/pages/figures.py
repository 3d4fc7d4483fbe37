"""The pictures of README and docs, drawn from ``benchmarks/results``.

``python benchmarks/pages/figures.py``. README's overview shows speed and compile time of whole
models, and ``regret_vs_k`` how held-out regret falls with the number of kernels.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, FuncFormatter, LogLocator, NullLocator

from tilecast.heuristics.files import write_atomically

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from cells import of_torch
from runner import RESULTS, Row

TORCH = "2.11"
STEPS = {
    "ATEN,TRITON,TILECAST k=5": ("ATEN,TRITON,TILECAST, five choices", "#D55E00", "o"),
    "ATEN,TILECAST k=1": ("ATEN,TILECAST, first choice, no benchmark", "#0072B2", "D"),
}
"""Label, colour and marker of each; colours are Okabe and Ito's, for the colour-blind."""
COMPILES = {
    "ATEN,TRITON": ("ATEN,TRITON", "#7F7F7F"),
    "ATEN,TRITON,TILECAST k=5": ("ATEN,TRITON,TILECAST, five choices", "#D55E00"),
    "TILECAST cold k=5": ("TILECAST, five choices, kernels not cached", "#E69F00"),
    "TILECAST k=5": ("TILECAST, five choices", "#E69F00"),
    "TILECAST k=1": ("TILECAST, first choice, no benchmark", "#0072B2"),
}
"""Label and colour of each list of backends."""
STYLES = {
    "tilecast": ("#D55E00", "o"),
    "tree+linear": ("#E69F00", "s"),
    "nearest neighbour": ("#0072B2", "^"),
    "best fixed subset": ("#009E73", "v"),
    "nvMatmulHeuristics": ("#000000", "D"),
    "default config": ("#7F7F7F", "X"),
    "random": ("#CC79A7", "P"),
}
"""Colour and marker of each heuristic."""
POWERS = {"burst": "burst", "sustained": "sustained", "robust": "worst of both"}
FIGURES = {"geomean": "geometric mean", "p95": "95th percentile"}


def _result(name: str) -> Row:
    return json.loads((RESULTS / f"{name}.json").read_text())


def _draw_steps(axes: Any, beside: Row) -> None:
    """A row for each step, a dot for each way of choosing."""
    best = next(iter(STEPS))
    names = sorted(beside, key=lambda step: beside[step][best])
    for variant, (label, colour, marker) in STEPS.items():
        speeds = [beside[step][variant] for step in names]
        order = 3 if variant == best else 2
        style = {"color": colour, "markersize": 5, "label": label, "zorder": order}
        axes.plot(speeds, range(len(names)), marker, **style)
    axes.axvline(1, color="#555555", linewidth=1)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.xaxis.set_major_formatter(FormatStrFormatter("%.1fx"))
    axes.set_xlabel("speed relative to ATEN,TRITON")
    axes.set_title(f"Speed of {len(names)} steps of models cut to few layers", fontsize=11)
    axes.grid(color="#DDDDDD", linewidth=0.8)


def _draw_compiling(axes: Any, gemms: Row) -> None:
    """A bar for each list of backends."""
    for row, (name, (label, colour)) in enumerate(COMPILES.items()):
        seconds = gemms[name]["sum"]
        axes.barh(-row, seconds, 0.6, color=colour)
        axes.text(seconds, -row, f" {seconds:.1f} s", va="center", fontsize=9)
        axes.text(0, 0.34 - row, label, va="bottom", fontsize=9)
    axes.set_yticks([])
    axes.set_ylim(0.6 - len(COMPILES), 0.8)
    axes.margins(x=0.14)
    axes.set_xlabel("seconds")
    axes.set_title(f"Compile time of {gemms['ATEN']['problems']} GEMMs", fontsize=11)


def overview() -> Figure:
    """Speed of every step to the left, seconds to compile GEMMs to the right."""
    models, compiling = (
        of_torch(TORCH, _result(name)["figures"]) for name in ("real_models", "compile_time")
    )
    figure = Figure(figsize=(10, 7.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.7, 1))
    _draw_steps(left, models["beside"])
    _draw_compiling(right, compiling["gemm"])
    for axes in (left, right):
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(STEPS), frameon=False)
    figure.suptitle(f"max-autotune on an H200, PyTorch {TORCH}", fontsize=12)
    return figure


def regret_vs_k() -> Figure:
    """One panel per figure and power regime, regret on a logarithmic axis."""
    result = _result("selection_regret")
    settings, figures = result["settings"], result["figures"]
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


DRAWN: tuple[Callable[[], Figure], ...] = (overview, regret_vs_k)
"""Each draws the picture of its name."""

if __name__ == "__main__":
    matplotlib.rcParams["font.size"] = 10
    # No version or date in a file: the same result gives the same bytes.
    options = {"dpi": 150, "format": "png", "metadata": {"Software": None}}
    for draw in DRAWN:
        write_atomically(RESULTS / f"{draw.__name__}.png", partial(draw().savefig, **options))
