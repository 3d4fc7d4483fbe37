"""Tables of the learner: regret, speed beside cuBLAS, other operands, another GPU.

Each function takes the figures of all benchmarks, by the name of their result file.
"""

from cells import (
    AT,
    POWERS,
    Figures,
    bold,
    by_k,
    cells,
    markdown,
    mean_and_p95,
    mean_by_k,
    newest,
    percent,
)
from runner import SHOWN_K

from tilecast.heuristics.operands import K_GROUPS, ROW_GROUPS

GROUPS = {"random families": "random sizes", "other families": "other sizes"}
"""How tables call groups of problems whose names in the results say less."""


def locked(figures: Figures) -> str:
    """The shipped model on the locked set: regret, and the best kernel and its choice by cuBLAS."""
    heading = [f"locked set, asked {figures['locked_set']['asked']}x", "problems", AT]
    heading += ["worst, k = 1", "best of the space", "below 0.97x"]
    heading += ["first choice or cuBLAS", "below 0.97x", "least"]
    rows = []
    for power, by_group in figures["locked_set"]["regret and speed"].items():
        for name, one in by_group.items():
            if power != "robust" and name not in ("all", "m 65 to 256"):
                continue
            best, first = one["best over cuBLAS"], one["first or cuBLAS over cuBLAS"]
            rows.append([f"{power}, {name}", str(one["problems"]), mean_by_k(one["regret"])])
            rows[-1] += [percent(one["regret"]["1"]["max"])]
            for speed in (best, first):
                rows[-1] += [f"{speed['geomean']:.3f} ± {speed['error']:.3f}x"]
                rows[-1] += [f"{speed['slower']:.1%}"]
            rows[-1] += [f"{first['worst']:.2f}x"]
    return markdown(heading, rows)


def regret(figures: Figures) -> str:
    """Every heuristic over all problems, in each power regime and for the worse of both."""
    found = figures["selection_regret"]
    heading = ["held-out"]
    for power in POWERS:
        heading += [f"{AT}, {power}", "p95"]
    rows = [
        [bold(name)]
        + [by_k(found["regret"][p]["all"][name], f) for p in POWERS for f in ("geomean", "p95")]
        + [
            by_k(series, "max"),
            " / ".join(f"{series['within_2_percent'][k - 1]:.0%}" for k in SHOWN_K),
        ]
        for name, series in found["regret"]["robust"]["all"].items()
    ]
    floor = [percent(found["noise_floor"][p][f]) for p in POWERS for f in ("geomean", "p95")]
    floor += [percent(found["noise_floor"]["robust"]["max"]), ""]
    return markdown([*heading, "max", "≤ 2%"], [*rows, ["noise floor, k = 1", *floor]])


def by_m(figures: Figures) -> str:
    """The model's mean regret by m and kind of problem, in each power regime."""
    found = figures["selection_regret"]
    counts = {name: count for name, count in found["counts"].items() if name != "all"}
    heading = [f"{AT}, tilecast"]
    heading += [f"{GROUPS.get(name, name)} ({count})" for name, count in counts.items()]
    rows = [
        [power, *(by_k(found["regret"][power][name]["tilecast"]) for name in counts)]
        for power in POWERS
    ]
    return markdown(heading, rows)


def beside_library(figures: Figures) -> str:
    """CuBLAS's time over that of the best of the model's first k, by power."""
    heading = ["`torch.mm` over the best of the first k, held out"]
    heading += [f"k = {k}, p5, least, below 0.97x" for k in SHOWN_K]
    shapes = {"geomean": "{:.3f}x", "p5": "{:.2f}x", "least": "{:.2f}x", "slower": "{:.0%}"}
    rows = [
        [power, *(", ".join(cells(one, shapes)) for one in by_count.values())]
        for power, by_count in figures["selection_regret"]["library_over"].items()
    ]
    return markdown(heading, rows)


def deferral(figures: Figures) -> str:
    """First choices beside cuBLAS, alone and with falling back to it where it should win."""
    pairs: dict[tuple[str, str], dict[bool, Figures]] = {}
    for row in figures["selection_regret"]["deferral"]:
        pairs.setdefault((row["power"], row["problems"]), {})[row["deferral"]] = row
    heading = ["`torch.mm` over what runs, held out", "problems", "fall back to cuBLAS", "speed"]
    heading += ["below 0.97x", "worst", "k = 1 alone: speed", "below 0.97x", "worst"]
    shapes = {"geomean": "{:.3f}x", "slower": "{:.1%}", "worst": "{:.2f}x"}
    rows = [
        [f"{power}, {GROUPS.get(group, group)}", str(pair[True]["count"])]
        + [f"{pair[True]['left']:.0%}", *cells(pair[True], shapes), *cells(pair[False], shapes)]
        for (power, group), pair in pairs.items()
        if group == "all" or power == "robust"
    ]
    return markdown(heading, rows)


def cross_regime(figures: Figures) -> str:
    """What choosing for one regime loses in another: geometric mean at k = 1, and p95."""
    found = figures["selection_regret"]["cross_regime"]["regret"]
    rows = [
        [f"{bold(name)}, {made_for}"]
        + [
            mean_and_p95({figure: by_k[0] for figure, by_k in run.items()})
            for run in by_run.values()
        ]
        for name, losses in found.items()
        for made_for, by_run in losses.items()
    ]
    return markdown(["chosen by, for", *(f"{power}, p95" for power in POWERS)], rows)


def among_stock(figures: Figures) -> str:
    """What choosing among the stock configs loses, over the problems that have one."""
    found = figures["selection_regret"]["among_stock"]
    heading = [f"{AT}, chosen among the stock configs ({found['problems']} problems)"]
    rows = [
        [name, *(by_k(found["regret"][power][name]) for power in POWERS[:2])]
        for name in found["regret"]["burst"]
    ]
    return markdown([*heading, *POWERS[:2]], rows)


def operands(figures: Figures) -> str:
    """Each kind of operands: regret, and PyTorch's operator."""
    of_all = figures["selection_regret"]
    heading = ["operands", "problems", f"{AT}, robust", "p95", "PyTorch's operator"]
    heading += [f"its time over the fastest kernel's: {power}, least" for power in POWERS[:2]]
    shapes = {"geomean": "{:.2f}x", "least": "{:.2f}x"}
    rows = []
    for kind, count in of_all["operand_counts"].items():
        series, speed = of_all["operands"]["robust"][kind], figures["operator_speed"].get(kind)
        rows.append([f"`{kind}`", str(count), by_k(series), by_k(series, "p95")])
        if speed:
            rows[-1] += [f"`{speed['operator']}`{' +' if speed['others'] else ''}"]
            rows[-1] += [", ".join(cells(speed[power], shapes)) for power in POWERS[:2]]
        else:
            rows[-1] += 3 * [""]
    return markdown(heading, rows)


def grouped_regret(figures: Figures, groups: str = ROW_GROUPS) -> str:
    """A model of groups in each power regime, by group of problems, and that of dense products."""
    found = figures["grouped_regret"][groups]
    kinds = {ROW_GROUPS: "rows of all experts", K_GROUPS: "gradients of"}
    heading = [kinds[groups], "problems", *(f"{AT}, {power}" for power in POWERS)]
    rows = [
        [name.removeprefix("m "), str(count)]
        + [by_k(found["regret"][power][name]["tilecast"]) for power in POWERS]
        + [by_k(found["regret"]["robust"][name]["as a batch"])]
        for name, count in found["counts"].items()
        if count
    ]
    return markdown([*heading, "robust, as a batch"], rows)


def grouped_library(figures: Figures, groups: str = ROW_GROUPS) -> str:
    """PyTorch's time over the best of the first k, and over what runs with falling back."""
    found = figures["grouped_regret"][groups]
    heading = ["`torch._grouped_mm` over the best of the first k, held out"]
    heading += [f"k = {k}, p5, least, from 1.00x" for k in SHOWN_K]
    shapes = {"geomean": "{:.2f}x", "p5": "{:.2f}x", "least": "{:.2f}x", "as_fast": "{:.0%}"}
    rows = [
        [power, *(", ".join(cells(one, shapes)) for one in by_count.values())]
        for power, by_count in found["library_over"].items()
    ]
    shapes = {"left": "{:.0%}", "geomean": "{:.2f}x", "worst": "{:.2f}x"}
    for row, one in zip(rows, (r for r in found["deferral"] if r["deferral"]), strict=True):
        row.append(", ".join(cells(one, shapes)))
    return markdown([*heading, "k = 1, falling back: how often, speed, worst"], rows)


def new_gpu(figures: Figures) -> str:
    """Regret by how many problems of a new GPU were measured, with another one known or not."""
    found = figures["new_gpu"]
    regret, seconds = found["regret"], found["card_seconds_a_problem"]
    counts = sorted({int(name.split()[0]) for name in regret["burst"] if name != "borrowed"})
    known = {"alone": "alone", "with the H200": "with the H200's data"}
    heading = [f"{AT}, problems measured", "minutes of one GPU"]
    heading += [f"{power}, {how}" for power in regret for how in known.values()]
    rows = [
        [str(count), f"{count * seconds / 60:.1f}"]
        + [
            mean_by_k(cell) if (cell := regret[power].get(f"{count} {how}")) else ""
            for power in regret
            for how in known
        ]
        for count in counts
    ]
    return markdown(heading, rows)


def unmeasured_gpu(figures: Figures) -> str:
    """Regret on GPUs that are taken as unmeasured, by what ranks."""
    regret = figures["unmeasured_gpu"]["regret"]
    stock = figures["selection_regret"]["regret"]["robust"]["all"]["nvMatmulHeuristics"]
    names = {"analytic time": "analytic time", "borrowed": "the other GPU's measurements"}
    rows = [
        [shown, *(mean_by_k(regret[gpu][name]) for gpu in regret)] for name, shown in names.items()
    ]
    rows.append(["nvMatmulHeuristics", by_k(stock), ""])
    return markdown([f"{AT}, robust", *regret], rows)


def adaptive_k(figures: Figures) -> str:
    """What choosing k gains: geometric mean and p95, by candidates per problem."""
    found, rows = figures["adaptive_k"], []
    for power in ("burst", "robust"):
        row = found["powers"][power]
        for name, way in (("**adaptive k**", "adaptive"), ("fixed k", "fixed")):
            rows.append([f"{name}, {power}", *(mean_and_p95(one[way]) for one in row)])
        needed = [f"{one['fixed_for_the_same']:.1f}" for one in row]
        rows.append([f"fixed k that finds as much, {power}", *needed])
    return markdown(["candidates per problem", *(f"{m}, p95" for m in found["means"])], rows)


def learning(figures: Figures) -> str:
    """Regret before and after learning from autotuning, on what it saw and on what it did not."""
    heading = [f"{AT}, ranker", "problems that were compiled", "other (n, k)"]
    rows = [
        [f"{power}, {name}", *map(mean_by_k, found.values())]
        for power, rankers in figures["learn_on_gpu"]["regret"].items()
        for name, found in rankers.items()
    ]
    return markdown(heading, rows)


def common_kernels(figures: Figures) -> str:
    """What the most common kernels cover of first choices and first fives, by their number."""
    found = figures["common_kernels"]
    shapes: dict[str, str] = dict.fromkeys(("first", "first_five", "all_five"), "{:.0%}")
    sizes = list(next(iter(found.values()))["covered"])
    rows = [
        [f"{name.replace('families', 'sizes')} ({one['problems']})"]
        + [" / ".join(cells(one["covered"][size], shapes)) for size in sizes]
        for name, one in found.items()
    ]
    return markdown(["first choices / all of the first five / whole fives", *sizes], rows)


def screens(figures: Figures) -> str:
    """How far screens are from races, and how often the race's best was sent there."""
    heading = ["screens", "deviation, median / most", "range, median / most", "best was raced"]
    rows = [
        [name]
        + [
            f"{percent(one[of]['median'])} / {percent(one[of]['most'])}"
            for of in ("deviation", "range")
        ]
        + [f"{one['best among finalists']} of {one['problems']}", f"{one['finalists']:.0f}"]
        + ["{median:.0f} / {most}".format(**one["place of the best"])]
        for name, one in newest(figures["screen_against_race"]).items()
    ]
    return markdown([*heading, "kernels raced", "place of the best, median / most"], rows)
