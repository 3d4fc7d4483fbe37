"""Tables of what users of the hook see: compile time, kernels, whole models, README's overview.

Each function takes the figures of all benchmarks, by the name of their result file.
"""

import statistics

from cells import (
    AT,
    POWERS,
    Figures,
    bold,
    by_numbers,
    cells,
    markdown,
    mean_by_k,
    newest,
    of_torch,
    percent,
    with_error,
)

from tilecast.heuristics.operands import ROW_GROUPS

RIVAL, FIVE, FIRST = "ATEN,TRITON", "ATEN,TRITON,TILECAST k=5", "ATEN,TILECAST k=1"
COMPARED = (
    (FIVE, "cuBLAS"),
    (FIVE, RIVAL),
    ("TILECAST k=5", "cuBLAS"),
    ("TILECAST k=1", "cuBLAS"),
    ("TILECAST k=auto", "cuBLAS"),
)
"""Pairs that the table of kernel speed shows; the result file has more."""
WAYS = {
    "inductor": "as Inductor does",
    "in graphs": "in graphs",
    "at the limit": "**in graphs, then at the limit**",
}


def overview(figures: Figures) -> str:
    """README's table: gains, compile time and worst cases of five choices and of the first."""
    kernels = newest(figures["kernel_speed"])["groups"]
    deferral = {
        row["problems"]: row
        for row in figures["selection_regret"]["deferral"]
        if row["power"] == "robust" and row["deferral"]
    }
    models = of_torch("2.11", figures["real_models"])
    steps = models["beside"].values()
    speeds = {name: [step[name] for step in steps] for name in (FIVE, FIRST)}
    slowest = max(
        by_rival[FIVE]["cuBLAS"]["worst"]
        for group in kernels.values()
        for by_rival in group["compared"].values()
    )
    locked = figures["locked_set"]["regret and speed"]["robust"]["all"]
    rows = [
        [f"kernels, locked set: loss against the fastest ({locked['problems']} problems)"]
        + [with_error(locked["regret"][k]) for k in "51"]
    ]
    for group, alike in (("layers", "layers of language models"), ("random", "random families")):
        selected, held_out = kernels[group]["compared"]["burst"][FIVE]["cuBLAS"], deferral[alike]
        name = alike.replace("families", "sizes")
        rows.append(
            [f"kernels, {name}: speed over cuBLAS (problems)"]
            + [f"{1 / selected['geomean']:.2f}x ({selected['problems']})"]
            + [f"{held_out['geomean']:.2f}x ({held_out['count']:,})"]
        )
    groups = figures["grouped_regret"][ROW_GROUPS]
    best = groups["library_over"]["robust"]["5"]
    (first,) = [r for r in groups["deferral"] if r["power"] == "robust" and r["deferral"]]
    rows.append(
        ["grouped products of experts: speed over `torch._grouped_mm` (problems)"]
        + [
            f"{one['geomean']:.2f}x ({count})"
            for one, count in ((best, best["problems"]), (first, first["count"]))
        ]
    )
    for name, of_variant in {
        f"whole models, {len(steps)} steps: speed over {RIVAL}":
            lambda name: statistics.geometric_mean(speeds[name]),
        f"compile time of these steps: share of {RIVAL}'s":
            lambda name: 1 / models["compiling"][name]["geomean"],
        "slowest kernel, over cuBLAS":
            lambda name: 1 / slowest if name == FIVE else deferral["all"]["worst"],
        f"slowest step, over {RIVAL}": lambda name: min(speeds[name]),
    }.items():  # fmt: skip
        rows.append([name, *(f"{of_variant(variant):.2f}x" for variant in (FIVE, FIRST))])
    heading = ["on an H200", f"five choices beside {RIVAL}", "first choice, no benchmark"]
    return markdown(heading, rows)


def compile_time(figures: Figures) -> str:
    """Seconds per GEMM, and ratios of sums over the same GEMMs."""
    found = newest(figures["compile_time"])["gemm"]
    rivals = [name for name in ("TRITON", RIVAL, "NVGEMM") if name in found]
    heading = ["seconds to compile", "GEMMs", "first", "median", "sum"]
    heading += [f"to {rival}" for rival in rivals]
    shapes = {"problems": "{}"} | dict.fromkeys(("first", "median", "sum"), "{:.2f}")
    ratios = dict.fromkeys(rivals, "{:.2f}x")
    rows = [
        [bold(name), *cells(gemm, shapes), *cells(gemm["to"], ratios)]
        for name, gemm in found.items()
    ]
    return markdown(heading, rows)


def kernel_speed(figures: Figures) -> str:
    """How fast the selected kernels are: time over that of another selection."""
    groups = newest(figures["kernel_speed"])["groups"]
    shapes = {"geomean": "{:.3f}x", "faster": "{:.0%}", "level": "{:.0%}", "worst": "{:.3f}x"}
    heading = ["selected by, against", "regime"]
    for group in groups:
        heading += [f"{group}: problems", "time", "faster", "level (1%)", "worst", "noise"]
    rows = []
    for variant, rival in COMPARED:
        for regime in POWERS[:2]:
            rows.append([f"{bold(variant)}, {rival}", regime])
            for group in groups.values():
                pair = group["compared"][regime][variant][rival]
                rows[-1] += [str(pair["problems"]), *cells(pair, shapes), percent(pair["noise"])]
    return markdown(heading, rows)


def real_models(figures: Figures, torch: str = "2.11") -> str:
    """Each step beside ATen and Triton: speed, seconds to compile, tilecast's share of products."""
    return _real_models(of_torch(torch, figures["real_models"]))


def real_models_newer(figures: Figures) -> str:
    """The same on PyTorch 2.15."""
    return real_models(figures, "2.15")


def real_models_h100(figures: Figures) -> str:
    """Steps on H100s beside ATen and Triton by kind: mean speed, and the least and most."""
    found = of_torch("2.11", figures["h100/real_models"])
    lists = {"k=5": FIVE, "k=1": FIRST, "k=auto": "ATEN,TILECAST k=auto", "default": "default"}
    shapes: dict[str, str] = dict.fromkeys(("geomean", "least", "most"), "{:.2f}x")
    groups = {**found["summary"], "compile time, all steps": found["compiling"]}
    rows = [
        [kind, str(speeds[FIVE]["cases"])]
        + [", ".join(filter(None, cells(speeds.get(name, {}), shapes))) for name in lists.values()]
        for kind, speeds in groups.items()
    ]
    return markdown(["speed over ATEN,TRITON, least, most", "steps", *lists], rows)


def _real_models(found: Figures) -> str:
    lists = {
        "k=5": FIVE,
        "k=1": FIRST,
        "k=1 or Triton": "ATEN,TRITON,TILECAST k=1",
        "k=auto": "ATEN,TILECAST k=auto",
    }
    speeds = {"again": f"{RIVAL} again", "default": "default"}
    speeds |= {f"**{k}**": name for k, name in lists.items()} | {"k=5, unfused": f"{FIVE} unfused"}
    speeds |= {"eager": "eager", "**eager, switched on**": "eager TILECAST"}
    # Not every PyTorch was measured with all of them.
    known = {name for one in found["beside"].values() for name in one}
    lists, speeds = ({k: n for k, n in all.items() if n in known} for all in (lists, speeds))
    heading = ["step of two layers", f"{RIVAL}, ms", *speeds]
    heading += [f"tilecast's share of products, {', '.join(lists)}", "s to compile"]
    heading += [f"**{name}**" for name in lists]
    rows = []
    for case in sorted(found["beside"], key=by_numbers):
        variants = found["cases"][case]
        compiled = [variants.get(name, {}) for name in (RIVAL, *lists.values())]
        shares = [cells(one, {"tilecast_share": "{:.0%}"})[0] or "-" for one in compiled[1:]]
        rows.append(
            [case, f"{variants[RIVAL]['milliseconds']:.3f}"]
            + cells(found["beside"][case], dict.fromkeys(speeds.values(), "{:.2f}x"))
            + [" / ".join(shares)]
            + [cell for one in compiled for cell in cells(one, {"compile_seconds": "{:.1f}"})]
        )
    return markdown(heading, rows)


def int8_weights(figures: Figures) -> str:
    """Steps with int8 weights: milliseconds, and how many times as fast as bf16 weights."""
    found = of_torch("2.11", figures["real_models"])
    lists = {RIVAL: RIVAL, "**k=5**": FIVE, "**k=1**": FIRST}
    rows = []
    for case, speed in sorted(found["beside_bf16"].items(), key=lambda one: by_numbers(one[0])):
        variants = found["cases"][case]
        times = [f"{variants[name]['milliseconds']:.3f}" for name in lists.values()]
        rows.append([case, *times, f"{speed:.2f}x"])
    heading = ["step of two layers", *(f"{name}, ms" for name in lists)]
    return markdown([*heading, "k=5 over bf16 weights, k=5"], rows)


def grouped(figures: Figures) -> str:
    """PyTorch's time over the best kernel's by rows and regime, and regret of the model."""
    regimes = {"burst": "burst", "sustained": "sustained", "rows spread evenly": "burst, even"}
    rows = []
    for name, found in newest(figures["grouped_speed"]).items():
        speeds = [found.get(regime, {}) for regime in regimes.values()]
        shown = [f"{s['geomean']:.2f}x, {s['least']:.2f}x" if s else "" for s in speeds]
        rows.append([name, str(found["burst"]["problems"]), *shown, mean_by_k(found["regret"])])
    return markdown(["rows of all experts", "layers", *regimes, AT], rows)


def llama_kinds(figures: Figures) -> str:
    """Tilecast beside the faster of ATen and Triton, by operands and regime."""
    heading = ["operands", "shapes"]
    for regime in POWERS[:2]:
        heading += [f"{regime}: tilecast ahead", "speed", "least"]
    shapes = {"ahead": "{}", "speed": "{:.2f}x", "least": "{:.3f}x"}
    rows = [
        [kind, str(found["burst"]["problems"])]
        + [cell for regime in found.values() for cell in cells(regime, shapes)]
        for kind, found in sorted(newest(figures["llama_shapes"])["beside"].items())
    ]
    return markdown(heading, rows)


def timing(figures: Figures) -> str:
    """What each way of timing choices costs, how it repeats, and what its picks lose."""
    regimes = {"burst, library": "burst", "sustained, library": "sustained"}
    heading = ["choices timed", "ms a choice", "repeats differ, median / p95"]
    heading += [f"lost in {name}, mean / p95" for name in regimes.values()]
    rows = []
    for way, row in newest(figures["inductor_timing"]).items():
        spread = row["repeatability"]
        name, _, host = way.partition(", ")
        rows.append(
            [WAYS[name] + (f", {host}" if host else ""), f"{1e3 * row['seconds_a_choice']:.1f}"]
            + [f"{percent(spread['p50'])} / {percent(spread['p95'])}"]
            + [f"{percent(row[r]['geomean'])} / {percent(row[r]['p95'])}" for r in regimes]
        )
    return markdown(heading, rows)
