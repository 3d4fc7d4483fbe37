"""The README's tables, rendered from ``benchmarks/results``.

A table stands in the README between ``<!-- table: NAME -->`` and ``<!-- end of table -->``.
``python benchmarks/tables.py`` writes each anew from the result file; a test asserts that nothing
would change.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import write_atomically

RESULT = Path(__file__).with_name("results") / "selection_regret.json"
ADAPTIVE = RESULT.with_name("adaptive_k.json")
README = Path(__file__).parents[1] / "README.md"

HOOK = ("compile_time", "kernel_speed", "end_to_end")
"""Results of the Inductor hook, each in a file of its own beside `RESULT`."""
SHOWN_K = (1, 3, 5)
SHOWN_SPEED = (
    ("TILECAST k=5", ("cuBLAS", "TRITON", "NVGEMM")),
    ("TILECAST k=1", ("cuBLAS", "TRITON", "NVGEMM")),
    ("TILECAST k=auto", ("NVGEMM",)),
    ("ATEN,TRITON,TILECAST k=5", ("ATEN,TRITON",)),
)
"""Comparisons that the table of kernel speed shows; the result file has all."""
_SLOT = re.compile(r"(<!-- table: (?P<name>[^>]*?) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_FLAT_LIST = re.compile(r"\[[^\[\]{}\"]*\]")


def compact(document: Mapping[str, Any]) -> str:
    """JSON with one line per list of numbers."""
    text = json.dumps(document, indent=1)
    return _FLAT_LIST.sub(lambda found: " ".join(found[0].split()), text) + "\n"


def markdown(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(share: float) -> str:
    """A share as text: two decimals below 1%, one below 100%, none beyond."""
    digits = 2 if share < 0.00995 else 1 if share < 0.9995 else 0
    return f"{share:.{digits}%}"


def regret(power: str) -> Callable[[Mapping[str, Any]], str]:
    """Renders the table of one power: every heuristic at k = 1, 3, 5 over all problems."""

    def render(document: Mapping[str, Any]) -> str:
        heading = [f"held-out, {power}"]
        for k in SHOWN_K:
            heading += [f"regret@{k}", "p95", "max", "≤ 2%"]
        rows = []
        for name, series in document["regret"][power]["all"].items():
            row = [_ours(name)]
            for k in SHOWN_K:
                figures = [percent(series[figure][k - 1]) for figure in ("geomean", "p95", "max")]
                row += [*figures, f"{series['within_2_percent'][k - 1]:.0%}"]
            rows.append(row)
        floor = document["noise_floor"][power]
        figures = [percent(floor[figure]) for figure in ("geomean", "p95", "max")]
        rows.append(["noise floor", *figures, *[""] * (len(heading) - 4)])
        return markdown(heading, rows)

    return render


def by_m(power: str) -> Callable[[Mapping[str, Any]], str]:
    """Renders the geometric mean regret of one power by m, each cell at k = 1, 3 and 5."""

    def render(document: Mapping[str, Any]) -> str:
        groups = document["regret"][power]
        counts = document["counts"]
        names = [name for name in counts if name != "all"]
        heading = [f"regret@{'/'.join(map(str, SHOWN_K))}, {power}"]
        heading += [f"{name.replace('<=', '≤')} ({counts[name]})" for name in names]
        rows = [
            [
                _ours(heuristic),
                *(
                    " / ".join(percent(groups[name][heuristic]["geomean"][k - 1]) for k in SHOWN_K)
                    for name in names
                ),
            ]
            for heuristic in groups["all"]
        ]
        return markdown(heading, rows)

    return render


def cross_regime(document: Mapping[str, Any]) -> str:
    """Render what choosing for one regime loses in another: geometric mean at k = 1, and p95."""
    found = document["cross_regime"]["regret"]
    powers = list(document["regret"])
    heading = ["chosen by, for", *(f"{power}, p95" for power in powers)]
    rows = [
        [
            f"{_ours(name)}, {made_for}",
            *(f"{percent(cell['geomean'][0])}, {percent(cell['p95'][0])}" for cell in run.values()),
        ]
        for name, losses in found.items()
        for made_for, run in losses.items()
    ]
    return markdown(heading, rows)


def among_stock(document: Mapping[str, Any]) -> str:
    """Render what choosing among the stock kernels loses, over the problems that have one."""
    heading = ["chosen among the stock kernels"]
    cells: dict[str, list[str]] = {}
    for where, found in document["among_stock"].items():
        for power in ("burst", "sustained"):
            heading.append(f"{where} ({found['problems']}), {power}")
            for name, series in found["regret"][power].items():
                figures = [percent(series["geomean"][k - 1]) for k in SHOWN_K]
                cells.setdefault(name, []).append(" / ".join(figures))
    return markdown(heading, [[name, *row] for name, row in cells.items()])


def adaptive(document: Mapping[str, Any]) -> str:
    """Render what choosing k gains: geometric mean and p95, by candidates per problem."""
    found = document["adaptive_k"]
    heading = ["candidates per problem", *(f"{mean}, p95" for mean in found["means"])]
    rows = []
    for power, by_mean in found["powers"].items():
        for name, shown in (("adaptive", "**adaptive k**"), ("fixed", "fixed k")):
            cells = (cell[name] for cell in by_mean)
            figures = [f"{percent(cell['geomean'])}, {percent(cell['p95'])}" for cell in cells]
            rows.append([f"{shown}, {power}", *figures])
        needed = [f"{cell['fixed_for_the_same']:.1f}" for cell in by_mean]
        rows.append([f"fixed k that finds as much, {power}", *needed])
    return markdown(heading, rows)


def compile_time(document: Mapping[str, Any]) -> str:
    """Render seconds per GEMM and for a whole model, and ratios of sums over the same GEMMs."""
    found = _newest(document["compile_time"])
    rivals = [name for name in ("TRITON", "NVGEMM") if name in found["gemm"]]
    heading = ["seconds to compile", "GEMMs", "first", "median", "sum"]
    heading += [*(f"to {rival}" for rival in rivals), "2-layer model"]
    rows = []
    for name, gemm in found["gemm"].items():
        ratios = [_given(gemm["to"].get(rival), "{:.2f}x") for rival in rivals]
        seconds = [_given(gemm[figure], "{:.2f}") for figure in ("first", "median", "sum")]
        model = _given(found["model"].get(name), "{:.1f}")
        rows.append([_hook(name), str(gemm["problems"]), *seconds, *ratios, model])
    return markdown(heading, rows)


def kernel_speed(document: Mapping[str, Any]) -> str:
    """Render how fast the selected kernels are: time over that of another selection."""
    heading = ["selected by, against", "regime", "GEMMs", "time", "faster", "level (1%)"]
    heading += ["worst", "noise"]
    rows = [
        [
            f"{_hook(ours)}, {theirs}",
            regime,
            str(pair["problems"]),
            f"{pair['geomean']:.3f}x",
            f"{pair['faster']:.0%}",
            f"{pair['level']:.0%}",
            f"{pair['worst']:.3f}x",
            percent(pair["noise"]),
        ]
        for ours, rivals in SHOWN_SPEED
        for theirs in rivals
        for regime, part in _newest(document["kernel_speed"])["compared"].items()
        for pair in [part.get(ours, {}).get(theirs)]
        if pair
    ]
    return markdown(heading, rows)


def end_to_end(document: Mapping[str, Any]) -> str:
    """Render time, speed over the default mode, compile time and our share of GEMMs of a layer."""
    heading = ["Llama 3.1 layer", "compiled with", "ms", "tokens/s", "speed", "compile s", "ours"]
    rows = [
        [
            case,
            _hook(name),
            f"{one['milliseconds']:.3f}",
            f"{one['tokens_per_second']:,.0f}",
            f"{one['speedup']:.2f}x",
            f"{one['compile_seconds']:.1f}",
            _given(one["tilecast_share"], "{:.0%}"),
        ]
        for case, variants in sorted(_newest(document["end_to_end"]).items(), key=_case)
        for name, one in variants.items()
    ]
    return markdown(heading, rows)


def _case(item: tuple[str, Any]) -> tuple[int, str, int]:
    """Where a case stands: by size, what is done, and batch."""
    size, kind, extents = item[0].split()
    return int(size.removesuffix("B")), kind, int(extents.split("x")[0])


def _newest(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The figures of the newest PyTorch that there are any of."""
    figures = document["figures"]
    return figures[
        max(figures, key=lambda version: [*map(int, version.split("+")[0].split(".")[:2])])
    ]


def _given(figure: float | None, shape: str) -> str:
    return "" if figure is None else shape.format(figure)


def _hook(name: str) -> str:
    return f"**{name}**" if "TILECAST" in name else name


def _ours(name: str) -> str:
    return f"**{name}**" if name == "tilecast" else name


REGRET_TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    **{f"regret {power}": regret(power) for power in ("burst", "sustained", "robust")},
    **{f"regret by m {power}": by_m(power) for power in ("burst", "sustained", "robust")},
    "cross regime": cross_regime,
    "among stock": among_stock,
}
"""What `RESULT` alone is rendered as, by name."""
HOOK_TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "compile time": compile_time,
    "kernel speed": kernel_speed,
    "end to end": end_to_end,
}
"""What the results of `HOOK` are rendered as."""
TABLES = REGRET_TABLES | {"adaptive k": adaptive} | HOOK_TABLES
"""What may stand in the README, by name."""


def results(regret: Path = RESULT, adaptive_k: Path = ADAPTIVE) -> dict[str, Any]:
    """Everything that tables are rendered from, as one document."""
    hook = {name: json.loads(RESULT.with_name(f"{name}.json").read_text()) for name in HOOK}
    return (
        json.loads(regret.read_text()) | hook | {"adaptive_k": json.loads(adaptive_k.read_text())}
    )


def fill(text: str, document: Mapping[str, Any]) -> str:
    """Put each table that a text has a place for into it.

    Raises:
        TilecastError: a place asks for a table that is not known.
    """

    def table(slot: re.Match[str]) -> str:
        if slot["name"] not in TABLES:
            raise TilecastError(
                f"table {slot['name']!r} is not known; allowed: {', '.join(TABLES)}"
            )
        return f"{slot[1]}{TABLES[slot['name']](document)}\n{slot[3]}"

    return _SLOT.sub(table, text)


def main() -> None:
    """Fill the README in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--adaptive-k", type=Path, default=ADAPTIVE)
    parser.add_argument("--readme", type=Path, default=README)
    options = parser.parse_args()
    before = options.readme.read_text()
    after = fill(before, results(options.result, options.adaptive_k))
    write_atomically(options.readme, lambda path: path.write_text(after))
    print(json.dumps({"tables": len(_SLOT.findall(after)), "changed": after != before}))


if __name__ == "__main__":
    main()
