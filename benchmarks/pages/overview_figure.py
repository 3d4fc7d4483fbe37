"""How fast do whole models run, and how fast do they compile, beside ATen's and Triton's kernels?

``python benchmarks/pages/overview_figure.py`` draws ``real_models.json`` and ``compile_time.json``
as ``overview.png``, the picture of README.
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter

from tilecast.heuristics.files import write_atomically

sys.path.append(str(Path(__file__).parents[1] / "shared"))

from runner import RESULTS, Row

TORCH = "2.11"
STEPS = {
    "ATEN,TRITON,TILECAST k=5": ("ATEN,TRITON,TILECAST, five choices", "#D55E00", "o"),
    "ATEN,TILECAST k=1": ("ATEN,TILECAST, first choice, no benchmark", "#0072B2", "D"),
}
"""Label, colour (Okabe and Ito's, which colour-blind people tell apart) and marker of each."""
COMPILES = {
    "ATEN,TRITON": ("ATEN,TRITON", "#7F7F7F"),
    "ATEN,TRITON,TILECAST k=5": ("ATEN,TRITON,TILECAST, five choices", "#D55E00"),
    "TILECAST cold k=5": ("TILECAST, five choices, kernels not cached", "#E69F00"),
    "TILECAST k=5": ("TILECAST, five choices", "#E69F00"),
    "TILECAST k=1": ("TILECAST, first choice, no benchmark", "#0072B2"),
}
"""Label and colour of each list of backends."""


def _measured(name: str) -> Row:
    figures = json.loads((RESULTS / f"{name}.json").read_text())["figures"]
    (found,) = [one for version, one in figures.items() if version.startswith(f"{TORCH}.")]
    return found


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
    axes.set_title(f"Speed of {len(names)} steps of models with two layers", fontsize=11)
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


def draw(models: Row, compiling: Row) -> Figure:
    """Speed of every step to the left, seconds to compile GEMMs to the right."""
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.7, 1))
    _draw_steps(left, models["beside"])
    _draw_compiling(right, compiling["gemm"])
    for axes in (left, right):
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(STEPS), frameon=False)
    figure.suptitle(f"max-autotune on an H200, PyTorch {TORCH}", fontsize=12)
    return figure


if __name__ == "__main__":
    matplotlib.rcParams["font.size"] = 10
    figure = draw(_measured("real_models"), _measured("compile_time"))
    # No version or date in the file: the same result gives the same bytes.
    facts, out = {"Software": None}, RESULTS / "overview.png"
    write_atomically(out, lambda at: figure.savefig(at, dpi=150, format="png", metadata=facts))
