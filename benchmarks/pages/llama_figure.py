"""How fast is each backend on Llama's shapes?

``python benchmarks/pages/llama_figure.py`` draws ``llama_shapes.json`` as ``llama_shapes.png``.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from tilecast.heuristics.files import write_atomically
from tilecast.heuristics.problem import GemmProblem

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from runner import RESULTS, Row

REGIME = "burst"
COLOURS = {"ATEN": "#7F7F7F", "TRITON": "#0072B2", "TILECAST": "#D55E00"}  # of Okabe and Ito
WIDTH = 0.27  # of a bar, where shapes are 1 apart


def draw(rows: Sequence[Row]) -> Figure:
    """One panel per kind and m; a group of bars per shape, one a backend that can."""
    panels: dict[str, dict[int, list[tuple[GemmProblem, Row]]]] = {}
    for row in rows:
        kind, extents = row["problem"].split()
        problem = GemmProblem.parse(extents)
        by_m = panels.setdefault(kind, {}).setdefault(problem.m, [])
        by_m.append((problem, row["microseconds"].get(REGIME, {})))
    columns = max(map(len, panels.values()))
    figure = Figure(figsize=(3.2 * columns, 2.7 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), columns, squeeze=False)
    for line, (kind, by_m) in zip(axes, sorted(panels.items()), strict=True):
        line[0].set_ylabel(f"{kind}, TFLOP/s")
        for panel, (m, group) in zip(line, sorted(by_m.items()), strict=False):
            _fill(panel, sorted(group, key=lambda one: one[0].family))
            panel.set_title(f"m = {m}", fontsize=10)
        for panel in line[len(by_m) :]:
            panel.set_visible(False)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(f"The best of each backend under max-autotune, {REGIME}; n x k", fontsize=12)
    return figure


def _fill(panel: Any, group: Sequence[tuple[GemmProblem, Row]]) -> None:
    for place, (backend, colour) in enumerate(COLOURS.items()):
        heights = [p.flops / times[backend] / 1e6 if backend in times else 0 for p, times in group]
        at = [shape + (place - 1) * WIDTH for shape in range(len(group))]
        panel.bar(at, heights, WIDTH, color=colour, label=backend)
    names = [f"{problem.n}x{problem.k}" for problem, _ in group]
    panel.set_xticks(range(len(group)), names, rotation=45, ha="right", fontsize=8)
    panel.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    matplotlib.rcParams["font.size"] = 10
    figure = draw(json.loads((RESULTS / "llama_shapes.json").read_text())["rows"])
    # No version or date in the file: the same result gives the same bytes.
    facts, out = {"Software": None}, RESULTS / "llama_shapes.png"
    write_atomically(out, lambda at: figure.savefig(at, dpi=150, format="png", metadata=facts))
