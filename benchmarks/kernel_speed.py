"""How fast the kernels are that Inductor selects with each set of GEMM backends.

On every problem of `held_out_problems` each variant compiles, then all that they selected and
`torch.mm` are timed side by side as `tilecast collect` times kernels: CUDA graphs over rotating
operand sets that exceed the L2, rounds interleaved, with idle gaps (``burst``) and, where the power
limit can matter, under load (``sustained``). Everything is timed twice; how far the two differ, and
how far two variants that selected the same kernel do, is the noise.

The outputs are what each call allocates, since that is what compiled code does.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, cast

import result
import torch
from held_out_problems import PROBLEMS
from pieces import Deadline, Record, ResultFile, over_gpus, shares, span
from variants import NVGEMM, Variant, competing, compiled, linear, named, selection, torch_version

from tilecast.data_collection.gpu_session import (
    MAX_RELATIVE_ERROR,
    GpuSession,
    random_operands,
)
from tilecast.data_collection.protocol import Entrant, without_drift
from tilecast.heuristics.problem import GemmProblem
from tilecast.kernels.object_cache import ObjectCache, default_root

OUT = Path(__file__).with_name("results") / "kernel_speed.json"

# In this order, because Inductor takes timings from its cache where that has all choices. So TRITON
# and TILECAST alone select from what was timed when they competed with the others, side by side.
VARIANTS = (
    Variant("ATEN,TRITON", "ATEN,TRITON"),
    Variant("TRITON", "TRITON"),
    Variant("ATEN,TRITON,TILECAST k=5", "ATEN,TRITON,TILECAST", 5),
    Variant("TILECAST k=5", "TILECAST", 5),
    Variant("TILECAST k=1", "TILECAST", 1),
    Variant("TILECAST k=auto", "TILECAST", "auto"),
    Variant(NVGEMM, NVGEMM),
)
CUBLAS = "cuBLAS"
"""`torch.mm`, as eager PyTorch calls it."""
OURS = tuple(v.name for v in VARIANTS if v.k is not None)
RIVALS = (CUBLAS, "TRITON", NVGEMM, "ATEN,TRITON")

SUSTAINED_FROM_M = 256
"""Problems with fewer rows stay below the power limit: both regimes are one."""
ROUNDS = {"burst": 12, "sustained": 24}
BATCHES = 2
"""Times that everything is timed, each with its own graphs."""
LEVEL = 0.01
"""Within this of each other: level."""
LONGEST_SECONDS = 30.0
"""What a problem may take, the first with the start of all worker processes."""

Call = Callable[..., torch.Tensor]
"""Takes x (m, k) and w (n, k), returns x times w transposed."""


class SelectionSession(GpuSession):
    """Times calls by name where a `GpuSession` times kernels by config."""

    def __init__(self):
        """Bind the first device that is visible."""
        super().__init__(ObjectCache(default_root()), 0, lambda entrant: None)
        self.calls: dict[str, Call] = {}
        self.outputs: list[torch.Tensor] = []

    def launcher(self, entrant: Entrant, problem: GemmProblem) -> Callable[..., object]:
        """What makes the call of a name; what it returns is kept.

        Kept until the graphs are gone, each launch writes to memory of its own.
        """
        call = self.calls[cast(str, entrant)]
        return lambda a, b, out: self.outputs.append(call(a, b.mT))


def measure(
    session: SelectionSession, problem: GemmProblem, variants: Sequence[Variant]
) -> dict[str, Any]:
    """Compile a problem with each variant, check what was selected, and time it.

    Returns:
        ``selected``, ``error`` (relative, or why there is no kernel) and ``compile_seconds`` by
        variant; ``microseconds`` by regime and variant, one median per batch.
    """
    from torch._inductor.utils import fresh_cache

    torch._dynamo.reset()
    session.calls = {CUBLAS: lambda x, w: torch.mm(x, w.t())}
    with fresh_cache():
        facts = _compile_all(session, problem, variants)
        return {**facts, "microseconds": _time_all(session, problem)}


def regimes(problem: GemmProblem) -> tuple[str, ...]:
    """Power regimes in which a problem is timed."""
    return ("burst", "sustained") if problem.m >= SUSTAINED_FROM_M else ("burst",)


def _compile_all(
    session: SelectionSession, problem: GemmProblem, variants: Sequence[Variant]
) -> dict[str, dict[str, Any]]:
    """Compile with each variant; those whose result is right join the session's calls."""
    a, b = random_operands(problem, 1)
    x, w = a[0], b[0].mT
    reference = a[0].float() @ b[0].float()
    selected: dict[str, str] = {}
    errors: dict[str, float | str] = {}
    seconds: dict[str, float] = {}
    for variant in variants:
        start = time.perf_counter()
        # What one backend cannot compile is a result; the others go on.
        try:
            with competing(variant) as sources:
                call = compiled(linear, variant)
                call(x, w)
                torch.cuda.synchronize()
            seconds[variant.name] = time.perf_counter() - start
            selected[variant.name] = selection("\n".join(sources))
            errors[variant.name] = error = _relative_error(call, x, w, reference)
            if error <= MAX_RELATIVE_ERROR:
                session.calls[variant.name] = call
        except Exception as failure:
            errors[variant.name] = f"{type(failure).__name__}: {failure}"[:300]
    return {"selected": selected, "error": errors, "compile_seconds": seconds}


def _relative_error(call: Call, x: Any, w: Any, reference: torch.Tensor) -> float:
    # Freed at once, so that the call most likely gets this memory for its output: what it leaves
    # unwritten is then no number.
    torch.full_like(reference, math.nan, dtype=x.dtype)
    difference = torch.linalg.norm(call(x, w).float() - reference)
    return (difference / torch.linalg.norm(reference)).item()


def _time_all(session: SelectionSession, problem: GemmProblem) -> dict[str, dict[str, list[float]]]:
    names = list(session.calls)
    bench = session.bench(problem, careful=False)
    times: dict[str, dict[str, list[float]]] = {}
    for regime in regimes(problem):
        times[regime] = {name: [] for name in names}
        for _ in range(BATCHES):
            # A bench tells entrants apart and asks the session what launches them, no more.
            rounds = bench.time(cast("list[Entrant]", names), regime, ROUNDS[regime])
            session.outputs.clear()
            for name, row in zip(names, without_drift(rounds), strict=True):
                times[regime][name].append(statistics.median(row))
    return times


def figures(records: Sequence[Record]) -> dict[str, Any]:
    """Comparisons and bars for every version of PyTorch and power regime."""
    found: dict[str, Any] = {}
    for version in sorted({record["torch"] for record in records}):
        mine = [record for record in records if record["torch"] == version]
        by_regime = {regime: _compared(mine, regime) for regime in ROUNDS}
        found[version] = {
            "problems": len({record["problem"] for record in mine}),
            "failed": _failed(mine),
            "compared": {regime: part for regime, part in by_regime.items() if part},
            "bars": bars({regime: part for regime, part in by_regime.items() if part}),
        }
    return found


def ratios(
    records: Sequence[Record], regime: str, ours: str, theirs: str
) -> dict[str, list[float]]:
    """Time of one over time of another by problem, once per batch; below 1 is faster.

    Both times are of one process and one run. Of several runs the last one counts.
    """
    found = {}
    for record in records:
        times = record["microseconds"].get(regime, {})
        if ours in times and theirs in times:
            pairs = zip(times[ours], times[theirs], strict=True)
            found[record["problem"]] = [mine / other for mine, other in pairs]
    return found


def noise_of(pairs: Mapping[str, Sequence[float]], alike: Collection[str] = ()) -> float:
    """What a difference must exceed to be one: the larger of two 95th percentiles.

    Args:
        pairs: ratios by problem, one a batch.
        alike: problems on which both selected the same kernel, so that all of the difference is
            where their memory lies and when they run.

    Returns:
        How far the ratios of two batches are apart, or those of the same kernel from 1.
    """
    repeats = [abs(math.log(r[0] / r[-1])) for r in pairs.values()]
    same = [abs(math.log(statistics.geometric_mean(pairs[problem]))) for problem in alike]
    return max(result.quantile(sample, 0.95) for sample in (repeats, same) if sample)


def alike(records: Sequence[Record], ours: str, theirs: str) -> set[str]:
    """Problems on which two variants selected the same kernel."""
    return {
        record["problem"]
        for record in records
        if record["selected"].get(ours, ours) == record["selected"].get(theirs, theirs)
    }


def comparison(pairs: Mapping[str, Sequence[float]], alike: Collection[str] = ()) -> dict[str, Any]:
    """Figures of one pair over its problems, from the geometric mean of each problem's batches.

    ``slower_beyond_noise`` counts problems that every batch finds slower by more than the noise,
    of those on which the two selected different kernels.
    """
    levels = {problem: statistics.geometric_mean(r) for problem, r in pairs.items()}
    noise = noise_of(pairs, alike)
    worst = max(levels, key=lambda problem: levels[problem])
    count = len(levels)
    return {
        "problems": count,
        "geomean": statistics.geometric_mean(levels.values()),
        "faster": sum(level < 1 - LEVEL for level in levels.values()) / count,
        "level": sum(abs(level - 1) <= LEVEL for level in levels.values()) / count,
        "faster_by_3_percent": sum(level <= 0.97 for level in levels.values()) / count,
        "worst": levels[worst],
        "worst_problem": worst,
        "noise": noise,
        "same_kernel": len(alike),
        "slower_beyond_noise": sum(
            min(r) > 1 + noise for problem, r in pairs.items() if problem not in alike
        ),
    }


def _compared(records: Sequence[Record], regime: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for ours, theirs in [*product(OURS, RIVALS), ("TRITON", CUBLAS), ("ATEN,TRITON", CUBLAS)]:
        pairs = ratios(records, regime, ours, theirs)
        if pairs:
            same = alike(records, ours, theirs) & pairs.keys()
            found.setdefault(ours, {})[theirs] = comparison(pairs, same)
    return found


def bars(compared: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, bool]]:
    """What was promised, and whether it holds, by regime.

    Args:
        compared: by regime, then ours, then theirs, a `comparison`.
    """
    promises: dict[str, tuple[str, str, Callable[[Mapping[str, Any]], bool]]] = {
        "k=5 at least 5% faster than NVGEMM in geometric mean": (
            *("TILECAST k=5", NVGEMM),
            lambda c: c["geomean"] <= 1 / 1.05,
        ),
        "k=5 never more than 3% slower than NVGEMM": (
            *("TILECAST k=5", NVGEMM),
            lambda c: c["worst"] <= 1.03,
        ),
        "k=5 level with or faster than TRITON on 90%": (
            *("TILECAST k=5", "TRITON"),
            lambda c: c["faster"] + c["level"] >= 0.9,
        ),
        "added to ATEN,TRITON never slower beyond noise": (
            *("ATEN,TRITON,TILECAST k=5", "ATEN,TRITON"),
            lambda c: c["slower_beyond_noise"] == 0,
        ),
        "added to ATEN,TRITON 3% faster on a third": (
            *("ATEN,TRITON,TILECAST k=5", "ATEN,TRITON"),
            lambda c: c["faster_by_3_percent"] >= 1 / 3,
        ),
    }
    return {
        promise: {
            regime: holds(part[ours][theirs])
            for regime, part in compared.items()
            if theirs in part.get(ours, {})
        }
        for promise, (ours, theirs, holds) in promises.items()
    }


def _failed(records: Sequence[Record]) -> list[str]:
    return [
        f"{record['problem']} {name}: {error}"
        for record in records
        for name, error in record["error"].items()
        if isinstance(error, str) or not error <= MAX_RELATIVE_ERROR
    ]


def missing(
    problems: Sequence[GemmProblem], kept: ResultFile, identity: Mapping[str, Any]
) -> Iterator[GemmProblem]:
    """Problems that the result does not have yet."""
    for problem in problems:
        if not kept.has(problem=str(problem), **identity):
            yield problem


def main() -> None:
    """Measure what is missing; print progress and, last, one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="added to where it exists")
    parser.add_argument("--problems", type=span, default=slice(0, None), metavar="START:STOP")
    parser.add_argument(
        "--backends", nargs="+", choices=[v.name for v in VARIANTS], metavar="NAME", help="variants"
    )
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs to spread over")
    parser.add_argument("--deadline", type=float, default=600, metavar="SECONDS")
    options = parser.parse_args()
    kept = ResultFile(options.out, ("torch", "problem", "variants"), figures)
    if options.gpus > 1:
        pieces = shares(options.problems, len(PROBLEMS), options.gpus)
        arguments = ["--out", str(options.out), "--deadline", str(options.deadline)]
        if options.backends:
            arguments += ["--backends", *options.backends]
        over_gpus("--problems", pieces, arguments)
    else:
        _measure_missing(kept, PROBLEMS[options.problems], options.backends, options.deadline)
    print(json.dumps({"out": str(options.out), "figures": kept.read()["figures"]}))


def _measure_missing(
    kept: ResultFile, problems: Sequence[GemmProblem], names: Sequence[str] | None, seconds: float
) -> None:
    deadline = Deadline(seconds, LONGEST_SECONDS)
    session = SelectionSession()
    variants = named(VARIANTS, names, torch_version())
    identity = {
        "torch": torch.__version__,
        "variants": ",".join(variant.name for variant in variants),
    }
    run = kept.start()
    for problem in missing(problems, kept, identity):
        if not deadline.allows():
            print(f"stopped before {problem}: {deadline.left():.0f} s left", file=sys.stderr)
            break
        start = time.perf_counter()
        record = {"problem": str(problem), **identity, "run": run, "device": session.card}
        record |= measure(session, problem, variants)
        kept.add(record)
        spent = time.perf_counter() - start
        deadline.spent(spent)
        shown = {name: f"{times[0]:.2f}" for name, times in record["microseconds"]["burst"].items()}
        print(f"{problem} {spent:.1f} s {shown} {record['selected']}", flush=True)
    kept.end(run)


if __name__ == "__main__":
    main()
