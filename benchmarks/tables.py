"""What do the results say? Renders the tables of README and docs from ``benchmarks/results``.

``python benchmarks/tables.py``. A table stands in any of `PAGES` between ``<!-- table: NAME -->``
and ``<!-- end of table -->``, and is written anew; a test asserts that nothing would change.
"""

import argparse
import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from runner import RESULTS

from tilecast.heuristics.errors import TilecastError
from tilecast.heuristics.files import write_atomically

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md")
POWERS = ("burst", "sustained", "robust")
SHOWN_K = (1, 3, 5)
SHOWN_SPEED = {
    "ATEN,TRITON,TILECAST k=5": ("cuBLAS", "ATEN,TRITON"),
    "TILECAST k=5": ("cuBLAS", "TRITON", "NVGEMM"),
    "TILECAST k=1": ("cuBLAS",),
    "TILECAST k=auto": ("cuBLAS",),
}
"""Comparisons that the table of kernel speed shows; the result file has all."""
_SLOT = re.compile(r"(<!-- table: (?P<name>[^>]*?) -->\n).*?(<!-- end of table -->)", re.DOTALL)

Figures = Mapping[str, Any]


def markdown(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(share: float) -> str:
    """A share as text: two decimals below 1%, one below 100%, none beyond."""
    digits = 2 if share < 0.00995 else 1 if share < 0.9995 else 0
    return f"{share:.{digits}%}"


def regret(power: str, figures: Figures) -> str:
    """Every heuristic at k = 1, 3 and 5 over all problems, for one power."""
    shown = ("geomean", "p95", "max")
    heading, rows = [f"held-out, {power}"], []
    for k in SHOWN_K:
        heading += [f"regret@{k}", "p95", "max", "≤ 2%"]
    for name, series in figures["regret"][power]["all"].items():
        rows.append([_bold(name)])
        for k in SHOWN_K:
            rows[-1] += [percent(series[figure][k - 1]) for figure in shown]
            rows[-1].append(f"{series['within_2_percent'][k - 1]:.0%}")
    floor = [percent(figures["noise_floor"][power][figure]) for figure in shown]
    return markdown(heading, [*rows, ["noise floor", *floor, *[""] * (len(heading) - 4)]])


def by_m(power: str, figures: Figures) -> str:
    """The geometric mean regret of one power by m, each cell at k = 1, 3 and 5."""
    groups = figures["regret"][power]
    counts = {name: count for name, count in figures["counts"].items() if name != "all"}
    heading = [f"regret@{'/'.join(map(str, SHOWN_K))}, {power}"]
    heading += [f"{name.replace('<=', '≤')} ({count})" for name, count in counts.items()]
    rows = [
        [_bold(heuristic), *(_at_shown_k(groups[name][heuristic]) for name in counts)]
        for heuristic in groups["all"]
    ]
    return markdown(heading, rows)


def deferral(figures: Figures) -> str:
    """First choices beside the library, alone and with those left to it that it should win."""
    heading = ["`torch.mm` over what runs, held out", "problems", "left to it", "speed"]
    heading += ["below 0.97x", "worst"]
    rows = [
        [
            f"{'**k = 1 or the library**' if row['deferral'] else 'k = 1'}, {row['power']}, "
            f"{row['problems']}",
            str(row["count"]),
            f"{row['left']:.0%}" if row["deferral"] else "",
            f"{row['geomean']:.3f}x",
            f"{row['slower']:.1%}",
            f"{row['worst']:.2f}x",
        ]
        for row in figures["deferral"]
    ]
    return markdown(heading, rows)


def cross_regime(figures: Figures) -> str:
    """What choosing for one regime loses in another: geometric mean at k = 1, and p95."""
    rows = [
        [f"{_bold(name)}, {made_for}", *(_mean_and_p95(run, 0) for run in by_run.values())]
        for name, losses in figures["cross_regime"]["regret"].items()
        for made_for, by_run in losses.items()
    ]
    return markdown(["chosen by, for", *(f"{power}, p95" for power in figures["regret"])], rows)


def among_stock(figures: Figures) -> str:
    """What choosing among the stock configs loses, over the problems that have one."""
    found = figures["among_stock"]
    heading = [f"chosen among the stock configs ({found['problems']} problems)"]
    rows: dict[str, list[str]] = {}
    for power in POWERS[:2]:
        heading.append(power)
        for name, series in found["regret"][power].items():
            rows.setdefault(name, [name]).append(_at_shown_k(series))
    return markdown(heading, list(rows.values()))


def beside_library(figures: Figures) -> str:
    """The library's time over that of our best of the first k, by power."""
    heading = ["`torch.mm` over the best of the first k, held out"]
    heading += [f"k = {k}, p5, least, below 0.97x" for k in SHOWN_K]
    rows = [
        [
            power,
            *(
                f"{one['geomean']:.3f}x, {one['p5']:.2f}x, {one['least']:.2f}x, {one['slower']:.0%}"
                for one in by_k.values()
            ),
        ]
        for power, by_k in figures["library_over"].items()
    ]
    return markdown(heading, rows)


def operator_speed(figures: Figures) -> str:
    """PyTorch's time over that of the fastest measured kernel, by kind of operands."""
    heading = ["PyTorch's time over the fastest measured kernel's", "beside", "problems"]
    heading += [f"{power}, least, most" for power in POWERS[:2]]
    rows = [
        [
            f"`{kind}`",
            f"`{one['operator']}`{' +' if one['others'] else ''}",
            str(one[POWERS[0]]["problems"]),
            *(
                f"{one[power]['geomean']:.2f}x, {one[power]['least']:.2f}x, "
                f"{one[power]['most']:.1f}x"
                for power in POWERS[:2]
            ),
        ]
        for kind, one in figures.items()
    ]
    return markdown(heading, rows)


def adaptive_k(figures: Figures) -> str:
    """What choosing k gains: geometric mean and p95, by candidates per problem."""
    rows = []
    for power, cells in figures["powers"].items():
        for name, shown in (("**adaptive k**", "adaptive"), ("fixed k", "fixed")):
            rows.append([f"{name}, {power}", *(_mean_and_p95(one[shown]) for one in cells)])
        needed = [f"{one['fixed_for_the_same']:.1f}" for one in cells]
        rows.append([f"fixed k that finds as much, {power}", *needed])
    return markdown(["candidates per problem", *(f"{m}, p95" for m in figures["means"])], rows)


def overview(figures: Figures) -> str:
    """README's table: gains, compile time and worst cases of five choices and of the first."""
    five, first = "ATEN,TRITON,TILECAST k=5", "ATEN,TILECAST k=1"
    kernels = _newest(figures["kernel_speed"])["groups"]
    deferral = {
        row["problems"]: row
        for row in figures["selection_regret"]["deferral"]
        if row["power"] == "robust" and row["deferral"]
    }
    models = _of("2.11", figures["real_models"])
    steps = models["beside"].values()
    speeds = {name: [step[name] for step in steps] for name in (five, first)}
    slowest = max(
        by_rival[five]["cuBLAS"]["worst"]
        for group in kernels.values()
        for by_rival in group["compared"].values()
    )
    heading = ["on an H200", "five choices beside ATEN,TRITON", "first choice, no benchmark"]
    rows = []
    for group, alike in (("layers", "layers of language models"), ("random", "random families")):
        selected, held_out = kernels[group]["compared"]["burst"][five]["cuBLAS"], deferral[alike]
        rows.append(
            [f"kernels, {alike.replace('families', 'sizes')}: speed over cuBLAS (problems)"]
        )
        rows[-1] += [f"{1 / selected['geomean']:.2f}x ({selected['problems']})"]
        rows[-1] += [f"{held_out['geomean']:.2f}x ({held_out['count']:,})"]
    rows.append([f"whole models, {len(steps)} steps: speed over ATEN,TRITON"])
    rows[-1] += [f"{statistics.geometric_mean(speeds[name]):.2f}x" for name in (five, first)]
    rows.append(["compile time of these steps: share of ATEN,TRITON's"])
    rows[-1] += [f"{1 / models['compiling'][name]['geomean']:.2f}x" for name in (five, first)]
    rows.append(["slowest kernel, over cuBLAS"])
    rows[-1] += [f"{1 / slowest:.2f}x", f"{deferral['all']['worst']:.2f}x"]
    rows.append(["slowest step, over ATEN,TRITON"])
    rows[-1] += [f"{min(speeds[name]):.2f}x" for name in (five, first)]
    return markdown(heading, rows)


def compile_time(figures: Figures) -> str:
    """Seconds per GEMM, and ratios of sums over the same GEMMs."""
    found = _newest(figures)["gemm"]
    rivals = [name for name in ("TRITON", "ATEN,TRITON", "NVGEMM") if name in found]
    heading = ["seconds to compile", "GEMMs", "first", "median", "sum"]
    heading += [f"to {rival}" for rival in rivals]
    shapes = {"problems": "{}"} | dict.fromkeys(("first", "median", "sum"), "{:.2f}")
    ratios = dict.fromkeys(rivals, "{:.2f}x")
    rows = [
        [_bold(name), *_cells(gemm, shapes), *_cells(gemm["to"], ratios)]
        for name, gemm in found.items()
    ]
    return markdown(heading, rows)


def common_kernels(figures: Figures) -> str:
    """What the most common kernels cover of first choices and first fives, by their number."""
    shapes: dict[str, str] = dict.fromkeys(("first", "first_five", "all_five"), "{:.0%}")
    sizes = list(next(iter(figures.values()))["covered"])
    rows = [
        [f"{name} ({one['problems']})"]
        + [" / ".join(_cells(one["covered"][size], shapes)) for size in sizes]
        for name, one in figures.items()
    ]
    return markdown(["first choices / all of the first five / whole fives", *sizes], rows)


def kernel_speed(figures: Figures) -> str:
    """How fast the selected kernels are: time over that of another selection."""
    heading = [
        "selected by, against",
        "regime",
        "problems",
        "of them",
        "time",
        "faster",
        "level (1%)",
    ]
    shapes = dict(
        problems="{}", geomean="{:.3f}x", faster="{:.0%}", level="{:.0%}", worst="{:.3f}x"
    )
    rows = [
        [f"{_bold(ours)}, {theirs}", regime, group, *_cells(pair, shapes), percent(pair["noise"])]
        for ours, rivals in SHOWN_SPEED.items()
        for theirs in rivals
        for regime in POWERS
        for group, found in _newest(figures)["groups"].items()
        if (pair := found["compared"].get(regime, {}).get(ours, {}).get(theirs))
    ]
    return markdown([*heading, "worst", "noise"], rows)


def real_models(torch: str, figures: Figures) -> str:
    """Each step beside ATen and Triton: speed, seconds to compile, share of products of ours."""
    found = _of(torch, figures)
    rival, best = "ATEN,TRITON", "ATEN,TRITON,TILECAST k=5"
    ours = {
        "k=5": best,
        "k=1": "ATEN,TILECAST k=1",
        "k=1 or Triton": "ATEN,TRITON,TILECAST k=1",
        "k=auto": "ATEN,TILECAST k=auto",
    }
    speeds = {"again": f"{rival} again", "default": "default"}
    speeds |= {f"**{k}**": name for k, name in ours.items()} | {"k=5, unfused": f"{best} unfused"}
    speeds |= {"eager": "eager", "**eager, switched on**": "eager TILECAST"}
    # Not every PyTorch was measured with all of them.
    known = {name for one in found["beside"].values() for name in one}
    ours, speeds = ({k: n for k, n in all.items() if n in known} for all in (ours, speeds))
    heading = ["step of two layers", f"{rival}, ms", *speeds]
    heading += [f"products of ours, {', '.join(ours)}", "s to compile", *map("**{}**".format, ours)]
    rows = []
    for case in sorted(found["beside"], key=_by_numbers):
        variants = found["cases"][case]
        compiled = [variants.get(name, {}) for name in (rival, *ours.values())]
        shares = [_cells(one, {"tilecast_share": "{:.0%}"})[0] or "-" for one in compiled[1:]]
        rows.append(
            [case, f"{variants[rival]['milliseconds']:.3f}"]
            + _cells(found["beside"][case], dict.fromkeys(speeds.values(), "{:.2f}x"))
            + [" / ".join(shares)]
            + [cell for one in compiled for cell in _cells(one, {"compile_seconds": "{:.1f}"})]
        )
    return markdown(heading, rows)


def llama_shapes(figures: Figures) -> str:
    """Choices that Inductor timed, and microseconds by its benchmark and by ours, by backend."""
    heading, backends = (
        ["operands, m"],
        {"ATEN": "ATen", "TRITON": "Triton", "TILECAST": "**ours**"},
    )
    parts = {"choices": "{:.0f}", "inductor": "{:.1f}", "burst": "{:.1f}", "sustained": "{:.1f}"}
    for part in parts:
        heading += [f"{part}: {backends['ATEN']}", *list(backends.values())[1:]]
    rows = [
        [name, *(cell for part, shape in parts.items()
                 for cell in _cells(group[part], dict.fromkeys(backends, shape)))]
        for name, group in sorted(
            _newest(figures)["means"].items(), key=lambda item: _by_numbers(item[0])
        )
    ]  # fmt: skip
    return markdown(heading, rows)


def llama_kinds(figures: Figures) -> str:
    """Ours beside the better of ATen and Triton, by operands and regime."""
    heading = ["operands", "shapes"]
    for regime in ("burst", "sustained"):
        heading += [f"{regime}: ours ahead", "speed", "least"]
    shapes = {"ahead": "{}", "speed": "{:.2f}x", "least": "{:.3f}x"}
    rows = [
        [kind, str(found["burst"]["problems"])]
        + [cell for regime in found.values() for cell in _cells(regime, shapes)]
        for kind, found in sorted(_newest(figures)["beside"].items())
    ]
    return markdown(heading, rows)


def timing(figures: Figures) -> str:
    """What each way of timing choices costs, how it repeats, and what its picks lose."""
    regimes = {"burst, library": "burst", "sustained, library": "sustained"}
    heading = ["choices timed", "ms a choice", "repeats differ, median / p95"]
    heading += [f"lost in {name}, mean / p95" for name in regimes.values()]
    rows = []
    for way, row in _newest(figures).items():
        spread = row["repeatability"]
        name, _, host = way.partition(", ")
        by = {
            "inductor": "as Inductor does",
            "in graphs": "in graphs",
            "at the limit": "**in graphs, then at the limit**",
        }[name]
        rows.append(
            [by + (f", {host}" if host else ""), f"{1e3 * row['seconds_a_choice']:.1f}"]
            + [f"{percent(spread['p50'])} / {percent(spread['p95'])}"]
            + [f"{percent(row[r]['geomean'])} / {percent(row[r]['p95'])}" for r in regimes]
        )
    return markdown(heading, rows)


def operands(figures: Figures) -> str:
    """Regret on each kind of operands, fitted to all, for each power."""
    at = "/".join(map(str, SHOWN_K))
    heading = ["held-out", "problems"]
    heading += [text for power in POWERS for text in (f"regret@{at}, {power}", "p95")]
    rows = [
        [f"`{kind}`", str(count)]
        + [
            _at_shown_k(figures["operands"][power][kind], figure)
            for power in POWERS
            for figure in ("geomean", "p95")
        ]
        for kind, count in figures["operand_counts"].items()
    ]
    return markdown(heading, rows)


def operand_transfer(figures: Figures) -> str:
    """Regret on each kind of operands, by what the model was fitted to."""
    fits = {"all": "all", "without": "all but these", "bf16:rcr": "bf16:rcr alone"}
    at = "/".join(map(str, SHOWN_K))
    heading = [f"regret@{at}, robust, fitted to", "problems", *fits.values()]
    rows = [
        [f"`{kind}`", str(row["problems"])] + [_by_shown_k(row[fit]) for fit in fits]
        for kind, row in figures["kinds"].items()
    ]
    return markdown(heading, rows)


def learning(figures: Figures) -> str:
    """Regret before and after learning from autotuning, on what it saw and on what it did not."""
    at = "/".join(map(str, SHOWN_K))
    heading = [f"regret@{at}, ranker", "production", "families that it saw nothing of"]
    rows = [
        [f"{power}, {name}"] + [_by_shown_k(part) for part in found.values()]
        for power, rankers in figures["regret"].items()
        for name, found in rankers.items()
    ]
    return markdown(heading, rows)


def new_gpu(figures: Figures) -> str:
    """Regret by how many problems of a new GPU were measured, with another one known or not."""
    regret = figures["regret"]
    counts = sorted({int(name.split()[0]) for name in regret["burst"] if name != "borrowed"})
    seconds = figures["card_seconds_a_problem"]

    def cell(power: str, name: str) -> str:
        found = regret[power].get(name)
        return _by_shown_k(found) if found else ""

    heading = ["regret@1/3/5, problems measured", "minutes of one card"]
    heading += [f"{power}, {how}" for power in regret for how in ("alone", "with the H200's data")]
    rows = [
        [str(count), f"{count * seconds / 60:.1f}"]
        + [
            cell(power, f"{count} {name}")
            for power in regret
            for name in ("alone", "with the H200")
        ]
        for count in counts
    ]
    return markdown(heading, rows)


def new_operand(figures: Figures) -> str:
    """Regret by how many problems of new operands were measured, others known or not."""
    heading = [f"regret@{'/'.join(map(str, SHOWN_K))}, robust, problems known"]
    heading += ["minutes of one card", "beside others", "alone"]
    rows = [
        [f"`{kind}`, {cell['problems']}", f"{cell['minutes']:.1f}"]
        + [_by_shown_k(cell[how]) if how in cell else "" for how in ("beside others", "alone")]
        for kind, one in _newest(figures).items()
        for cell in one["known"].values()
    ]
    return markdown(heading, rows)


def _by_shown_k(found: Figures) -> str:
    """Mean regret at each k of `SHOWN_K`, of figures by k."""
    return " / ".join(percent(found[str(k)]["geomean"]) for k in SHOWN_K)


def _by_numbers(name: str) -> list[str | int]:
    """A key that sorts names by their text and then by the numbers in it."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _of(torch: str, figures: Figures) -> Figures:
    """The figures of a PyTorch such as ``2.11``, which was measured."""
    (found,) = [one for version, one in figures.items() if version.startswith(f"{torch}.")]
    return found


def _newest(figures: Figures) -> Figures:
    return figures[max(figures, key=lambda v: [*map(int, v.split("+")[0].split(".")[:2])])]


def _cells(figures: Figures, shapes: Mapping[str, str]) -> list[str]:
    """Some of the figures as text; nothing for one that is missing."""
    values = {name: figures.get(name) for name in shapes}
    return ["" if found is None else shapes[name].format(found) for name, found in values.items()]


def _bold(name: str) -> str:
    return f"**{name}**" if "tilecast" in name.lower() else name


def _at_shown_k(series: Figures, figure: str = "geomean") -> str:
    """A figure of regret at each k of `SHOWN_K`, of lists with a number for every k."""
    return " / ".join(percent(series[figure][k - 1]) for k in SHOWN_K)


def _mean_and_p95(cell: Figures, k: int | None = None) -> str:
    figures = (cell[name] for name in ("geomean", "p95"))
    return ", ".join(percent(figure if k is None else figure[k]) for figure in figures)


TABLES: dict[str, tuple[str, Callable[[Figures], str]]] = {
    **{f"regret {power}": ("selection_regret", partial(regret, power)) for power in POWERS},
    **{f"regret by m {power}": ("selection_regret", partial(by_m, power)) for power in POWERS},
    "cross regime": ("selection_regret", cross_regime),
    "among stock": ("selection_regret", among_stock),
    "beside library": ("selection_regret", beside_library),
    "deferral": ("selection_regret", deferral),
    "adaptive k": ("adaptive_k", adaptive_k),
    "operands": ("selection_regret", operands),
    "operand transfer": ("operand_transfer", operand_transfer),
    "operator speed": ("operator_speed", operator_speed),
    "new gpu": ("new_gpu", new_gpu),
    "new operand": ("new_operand", new_operand),
    "learning on a gpu": ("learn_on_gpu", learning),
    "compile time": ("compile_time", compile_time),
    "timing": ("inductor_timing", timing),
    "common kernels": ("common_kernels", common_kernels),
    "kernel speed": ("kernel_speed", kernel_speed),
    **{f"real models {v}": ("real_models", partial(real_models, v)) for v in ("2.11", "2.15")},
    "real models H100": ("h100/real_models", partial(real_models, "2.11")),
    "llama shapes": ("llama_shapes", llama_shapes),
    "llama kinds": ("llama_shapes", llama_kinds),
    "overview": ("all", overview),
}
"""What may stand in a page: by name, the benchmark (or ``all``) and what renders its figures."""


def results() -> dict[str, Figures]:
    """The figures of every benchmark that a table is of, and of ``all`` by benchmark."""
    names = {benchmark for benchmark, _ in TABLES.values()} - {"all"}
    found: dict[str, Figures] = {
        n: json.loads((RESULTS / f"{n}.json").read_text())["figures"] for n in names
    }
    return {**found, "all": found}


def fill(text: str, figures: Mapping[str, Figures]) -> str:
    """Put each table that a text has a place for into it, from the figures of each benchmark.

    Raises:
        TilecastError: a place asks for a table that is not known.
    """

    def table(slot: re.Match[str]) -> str:
        name = slot["name"]
        if name not in TABLES:
            raise TilecastError(f"table {name!r} is not known; allowed: {', '.join(TABLES)}")
        benchmark, render = TABLES[name]
        return f"{slot[1]}{render(figures[benchmark])}\n{slot[3]}"

    return _SLOT.sub(table, text)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    for page in filter(Path.exists, PAGES):
        text = fill(page.read_text(), results())
        write_atomically(page, lambda path, text=text: path.write_text(text))
        print(json.dumps({"page": str(page), "tables": len(_SLOT.findall(text))}))
